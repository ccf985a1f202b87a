"""Stages are where marks stood: what lies between two runs of one is theirs only if it may be another thread's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from perflab.measure.memory.memory_snapshot import record_memory
from perflab.snapshots.analysis import levels, peak_moment
from perflab.snapshots.model import Stage
from perflab.snapshots.stages import of_marks
from perflab.snapshots.summary import stage_at, summarize
from tests.harness.made_snapshots import ENGINE, MIB, MODEL, TRAIN, Recording, content, read, written

CPU = torch.device("cpu")
MAIN = ("/home/me/project/train.py", 30, "<module>")
OPERATOR = ("/build/aten/src/ATen/Operators_1.cpp", 700, "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)")
HOOK = ("/home/me/project/model.py", 60, "hook")


def test_a_moment_without_a_mark_ends_a_stage_and_one_of_another_thread_does_not() -> None:
    assert of_marks(["a", "", "a"]) == [Stage("a", 0, 1), Stage("a", 2, 3)]
    assert of_marks([None, "a", None, None, "a", None]) == [Stage("a", 1, 5)]
    assert of_marks(["a", None, "b", "b"]) == [Stage("a", 0, 1), Stage("b", 2, 4)]


def test_a_step_that_marks_its_optimizer_alone_has_no_optimizer_around_its_backward(tmp_path: Path) -> None:
    """``torch.optim`` marks its steps by itself."""
    net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    optimizer, data = torch.optim.AdamW(net.parameters()), torch.randn(512, 256)

    def step() -> None:
        net(data).square().mean().backward()
        optimizer.step()
        net.zero_grad()

    step()
    with record_memory(tmp_path / "cpu", CPU, lambda: (net, optimizer)) as recorded:
        for _ in range(3):
            step()
    found = read(recorded.path)
    assert [one.name for one in found.stages] == ["Optimizer.step#AdamW.step"] * 3
    assert len(found.steps) == 3
    assert stage_at(found, peak_moment(levels(found))) == "unmarked"
    assert "outliving" in {table.key for table in summarize(found, "cpu").tables}


def test_what_is_allocated_between_two_ranges_of_a_name_is_in_neither(tmp_path: Path) -> None:
    weight = torch.randn(256, 256, requires_grad=True)
    with record_memory(tmp_path / "cpu", CPU, lambda: (weight,)) as recorded:
        for _ in range(3):
            with torch.profiler.record_function("forward"):
                loss = (torch.randn(64, 256) @ weight).square().mean()
            torch.empty(1 << 20)
            loss.backward()  # type: ignore[no-untyped-call]
            weight.grad = None
    found = read(recorded.path)
    (peak,) = [fact.value for fact in summarize(found, "cpu").facts if fact.key == "peak_stage"]
    assert peak == "unmarked"
    assert [one.name for one in found.stages] == ["forward"] * 3


@pytest.mark.parametrize("main", [(), (MAIN,)], ids=["train", "module"])
def test_a_mark_that_is_cleared_marks_nothing_until_it_is_set_again(
    tmp_path: Path, main: tuple[tuple[str, int, str], ...]
) -> None:
    made = Recording()
    for _ in range(3):
        made.mark = "forward"
        made.alloc(0, 4 * MIB, MODEL, TRAIN, *main)
        made.mark = ""
        made.alloc(32 * MIB, 9 * MIB, ENGINE, TRAIN, *main).free(0, 4 * MIB, ENGINE, TRAIN, *main)
        made.free(32 * MIB, 9 * MIB, TRAIN, *main)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert [tuple(one) for one in found.stages] == [("forward", at, at + 1) for at in (0, 4, 8)]
    assert stage_at(found, peak_moment(levels(found))) == "unmarked"
    assert found.notes == []


@pytest.mark.parametrize("stack", [(), (OPERATOR,), (HOOK,)], ids=["none", "C++", "hook"])
def test_a_backward_holds_what_autograd_s_threads_do_in_it(
    tmp_path: Path, stack: tuple[tuple[str, int, str], ...]
) -> None:
    made = Recording()
    made.mark = "forward"
    made.alloc(0, 4 * MIB, MODEL, TRAIN)
    made.mark = "backward"
    made.alloc(64 * MIB, 512, TRAIN)
    made.mark = ""
    made.alloc(32 * MIB, 9 * MIB, *stack).free(0, 4 * MIB, *stack)
    made.mark = "backward"
    made.free(64 * MIB, 512, TRAIN)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert found.stages == [Stage("forward", 0, 1), Stage("backward", 1, 5)]
    assert stage_at(found, peak_moment(levels(found))) == "backward"


def test_where_frees_have_the_stacks_of_their_blocks_they_end_no_stage(tmp_path: Path) -> None:
    """With context="alloc" a free in an autograd thread bears the main thread's stack."""
    made = Recording()
    made.mark = "backward"
    made.alloc(0, MIB, MODEL, TRAIN).alloc(64 * MIB, MIB, TRAIN)
    made.mark = ""
    made.free(0, MIB, MODEL, TRAIN)
    made.mark = "backward"
    made.free(64 * MIB, MIB, TRAIN)
    assert read(written(tmp_path / "a.pickle", content(made))).stages == [Stage("backward", 0, 4)]


def test_marks_without_stacks_say_that_nobody_knows_whose_the_moments_between_are(tmp_path: Path) -> None:
    made = Recording(frames=False)
    for mark in ("backward", "", "backward"):
        made.mark = mark
        made.alloc(len(made.events) * 8 * MIB, MIB)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert found.stages == [Stage("backward", 0, 3)]
    assert "no stacks were recorded with the marks" in found.notes[0]
    made.mark = "optimizer"
    for event in made.events:
        event["user_metadata"] = "backward"
    assert read(written(tmp_path / "b.pickle", content(made.alloc(900 * MIB, MIB)))).notes == []
