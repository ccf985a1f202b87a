"""What a recording of a CPU says: whose line each block is of, and what the recorder itself cannot know."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch

from perflab.measure.memory.histories import record_memory
from perflab.snapshots.model import Stack
from perflab.snapshots.summary import summarize
from tests.harness.made_snapshots import content, read, training, written

CPU = torch.device("cpu")


class Operators(torch.nn.Module):
    """One result of each size, so that sizes tell them apart."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(64, 96))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        more = rows + rows
        twice = torch.mul(more[:16], 2)
        product = twice @ self.weight
        return product.sum()


def call(model: torch.nn.Module) -> torch.Tensor:
    loss: torch.Tensor = model(torch.randn(32, 64))
    return loss


def line_in(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(number for number, line in enumerate(lines) if text in line)


def test_operators_that_are_no_calls_belong_to_the_function_that_they_stand_in(tmp_path: Path) -> None:
    model = Operators()
    with record_memory(tmp_path / "operators", CPU, lambda: (model,)) as recorded:
        call(model)
    stacks: dict[int, Stack] = {one.size_bytes: one.stack for one in read(recorded.path).blocks if one.allocated_at}
    of_product, of_multiple = ([(one.function, one.line) for one in stacks[4 * 16 * width]] for width in (96, 64))
    assert of_product[0] == ("forward", line_in(Operators.forward, "def forward"))
    assert of_multiple[0] == ("forward", line_in(Operators.forward, "torch.mul"))
    assert ("call", line_in(call, "model(")) in of_product
    assert of_product[1:] == of_multiple[1:]


def test_what_a_backward_makes_is_of_the_module_of_its_forward_as_in_a_prediction(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(24, 40), torch.nn.GELU(), torch.nn.Linear(40, 8))
    with record_memory(tmp_path / "backward", CPU, lambda: (model,)) as recorded:
        model(torch.randn(16, 24)).sum().backward()
    modules = {one.size_bytes: one.module for one in read(recorded.path).blocks if one.allocated_at}
    assert {modules[4 * inner * outer] for inner, outer in ((24, 40), (40, 8))} == {"0", "2"}


def test_a_function_calls_itself_and_each_call_stands_in_the_stack_once(tmp_path: Path) -> None:
    def halved(rows: torch.Tensor) -> torch.Tensor:
        return halved(rows[: len(rows) // 2]) if len(rows) > 25 else rows + rows

    rows = torch.randn(100, 64)
    with record_memory(tmp_path / "recursive", CPU) as recorded:
        halved(rows)
    (made,) = [one for one in read(recorded.path).blocks if one.size_bytes == 4 * 25 * 64]
    of_def = line_in(halved, "def halved")
    assert [frame.line for frame in made.stack if frame.function == "halved"] == [of_def, of_def + 1, of_def + 1]


def test_times_of_a_cpu_s_recording_are_said_to_be_the_profiler_s(tmp_path: Path) -> None:
    with record_memory(tmp_path / "times", CPU) as recorded:
        torch.ones(100)
    said = "Times are the profiler's"
    assert [note[: len(said)] for note in summarize(read(recorded.path), "times").notes].count(said) == 1
    of_pytorch = written(tmp_path / "a.pickle", content(training()))
    predicted = written(tmp_path / "b.pickle", content(training(), perflab={"kind": "prediction"}))
    for path in (of_pytorch, predicted):
        assert not [note for note in summarize(read(path), "other").notes if said in note]
