"""Recordings of perflab's own say what blocks are for by pointer, and name modules as the model does."""

from __future__ import annotations

import gc
import json
import pickle
import sys
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from perflab.attribution.held import held_bytes
from perflab.attribution.reachable import in_hands_of
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.memory.histories import record_call, record_memory
from perflab.measure.memory.peak import measure_memory
from perflab.snapshots.analysis import alive_at, levels, parts_by, peak_moment
from perflab.snapshots.model import Snapshot
from perflab.snapshots.recorded import BEGIN, Look, Notes
from tests.harness.command import Command
from tests.harness.made_snapshots import ADDRESS, MIB, MODEL, TRAIN, Recording, content, read, training, written

CPU = torch.device("cpu")
WIDTH, LAYERS, ROWS = 64, 3, 16


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.down(torch.relu(self.up(x)))
        return x + hidden


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def step_of(model: torch.nn.Module, data: torch.Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    step = Step(lambda: model(data).square().mean(), lambda loss: loss.backward(), update)
    step.run()
    return step


def size_of(snapshot: Snapshot, category: str, moment: int) -> int:
    parts = parts_by(alive_at(snapshot, moment), lambda one: one.category)
    return parts[category].size_bytes if category in parts else 0


def test_a_step_s_parameters_gradients_and_state_are_those_of_its_objects(tmp_path: Path) -> None:
    model = Net()
    step = step_of(model, torch.randn(ROWS, WIDTH))
    of_weights = sum(4 * one.numel() for one in model.parameters())
    found = read(record_call(step, tmp_path / "step", CPU).path)
    forward, backward, optimizer = found.stages
    assert size_of(found, "parameters", 0) == size_of(found, "parameters", found.moments) == of_weights
    assert size_of(found, "optimizer state", 0) == 2 * of_weights + 4 * len([*model.parameters()])
    assert size_of(found, "gradients", forward.end) == 0
    assert size_of(found, "gradients", backward.end) == of_weights
    assert size_of(found, "gradients", optimizer.end) == 0
    assert size_of(found, "inputs", 0) == 4 * ROWS * WIDTH
    held = held_bytes(step.roots, CPU)
    assert levels(found)[0] == held


def test_the_peak_of_a_recording_is_the_gate_s_own(tmp_path: Path) -> None:
    step = step_of(Net(), torch.randn(ROWS, WIDTH))
    memory, _ = measure_memory(step, CPU)
    level = levels(read(record_call(step, tmp_path / "step", CPU).path))
    assert level[peak_moment(level)] == memory.peak_bytes


def test_at_every_moment_the_categories_add_up_to_what_the_file_s_events_say(tmp_path: Path) -> None:
    path = record_call(step_of(Net(), torch.randn(ROWS, WIDTH)), tmp_path / "step", CPU).path
    written_down = json.loads(path.read_text())
    level = sum(size for _, size, _ in written_down["before"])
    found = read(path)
    for moment, (_, change, *_place) in enumerate([(0, 0), *written_down["events"]]):
        level += change
        parts = parts_by(alive_at(found, moment), lambda one: one.category)
        assert sum(part.size_bytes for part in parts.values()) == level, moment
    assert found.moments == len(written_down["events"]) > 50


def test_modules_bear_the_names_that_the_model_gives_them(tmp_path: Path, command: Command) -> None:
    path = record_call(step_of(Net(), torch.randn(ROWS, WIDTH)), tmp_path / "step", CPU).path
    found = read(path)
    saved = [one for one in found.blocks if one.category == "activations" and one.size_bytes == 4 * ROWS * 4 * WIDTH]
    assert [one.module for one in saved] == [f"blocks.{number}" for number in range(LAYERS)]
    weights = [one.module for one in found.blocks if one.size_bytes == 4 * WIDTH * 4 * WIDTH and not one.allocated_at]
    assert sorted(weights) == sorted(
        3 * [f"blocks.{number}.{one}" for number in range(LAYERS) for one in ("up", "down")]
    )
    text = command("memory", path, "--rows=100")
    assert "blocks.*.up" in text
    assert "known by pointer" in text
    assert "Linear" not in text.split("Alive at the peak, by module")[1].split("by line")[0]


def test_what_a_forward_s_result_keeps_is_activations_and_the_result_is_not(tmp_path: Path) -> None:
    model, data = Net(), torch.randn(ROWS, WIDTH)
    found = read(record_call(Workload(model, (data,), {}), tmp_path / "forward", CPU).path)
    (logits,) = [one for one in found.blocks if one.size_bytes == 4 * ROWS * 10]
    assert logits.category == "temporaries"
    # Of each block the input of ``down`` and the sum behind it, which the next layer reads; relu works on its result.
    assert size_of(found, "activations", logits.allocated_at) == LAYERS * 4 * ROWS * (4 * WIDTH + WIDTH)
    with torch.no_grad():
        bare = read(record_call(Workload(model, (data,), {}), tmp_path / "bare", CPU).path)
    assert "activations" not in {one.category for one in bare.blocks}


def test_a_look_holds_for_the_block_that_lies_there_at_its_moment(tmp_path: Path) -> None:
    made = Recording().alloc(0, MIB, MODEL).free(0, MIB, TRAIN).alloc(0, 2 * MIB, MODEL).alloc(8 * MIB, MIB, MODEL)
    found = read(written(tmp_path / "a.pickle", content(made)))
    looks = [
        Look(1, {ADDRESS: ("inputs", "")}),
        Look(3, {ADDRESS: ("gradients", "head")}),
        Look(4, {ADDRESS: ("inputs", ""), ADDRESS + 8 * MIB: ("parameters", "body")}),
    ]
    told = Notes(looks, [(0, "first"), (3, "second")]).told(found.blocks)
    assert [(one.category, one.module) for one in told] == [
        ("inputs", "first"),
        ("gradients", "head"),
        ("parameters", "body"),
    ]
    assert [one.size_bytes for one in told] == [one.size_bytes for one in found.blocks]


def behind(path: Path, notes: object) -> Path:
    with path.open("ab") as file:
        file.write(BEGIN + (notes if isinstance(notes, bytes) else json.dumps(notes).encode()))
    return path


def test_notes_of_a_recording_that_lost_its_beginning_count_from_the_end(tmp_path: Path) -> None:
    made = training(3)
    notes = {
        "device": 0,
        "events": 19,
        "modules": [[0, "early"], [12, "late"]],
        "looks": [[1, [[ADDRESS, "buffers", ""]]], [16, [[ADDRESS, "parameters", "w"]]]],
    }
    whole = read(behind(written(tmp_path / "whole.pickle", content(made)), notes))
    del made.events[:12]  # free_requested is no moment of its own
    lost = read(behind(written(tmp_path / "lost.pickle", content(made)), notes))
    assert whole.moments == 19 > lost.moments
    known = [(one.category, one.module) for one in whole.blocks]
    assert ("buffers", "early") in known
    assert ("parameters", "w") in known
    assert "buffers" not in {one.category for one in lost.blocks}
    at_the_end = [(one.size_bytes, one.category, one.module) for one in whole.blocks if one.allocated_at > 13]
    assert [(one.size_bytes, one.category, one.module) for one in lost.blocks if one.allocated_at][-3:] == at_the_end[
        -3:
    ]


def test_other_readers_stop_before_the_notes(tmp_path: Path) -> None:
    made = content(training())
    path = behind(written(tmp_path / "a.pickle", made), {"device": 0, "events": 13, "looks": [], "modules": []})
    with path.open("rb") as file:
        assert pickle.load(file) == made
    assert read(path).is_noted


@pytest.mark.parametrize(
    "notes",
    [
        b"{",
        b"[]",
        b'{"events": 3}',
        {"events": -1, "looks": []},
        {"events": 1, "device": 0, "looks": [[0, [[1, 2, ""]]]]},
    ],
    ids=str,
)
def test_a_recording_with_damaged_notes_reads_without_them_and_says_so(tmp_path: Path, notes: object) -> None:
    bare = read(written(tmp_path / "bare.pickle", content(training())))
    found = read(behind(written(tmp_path / "a.pickle", content(training())), notes))
    assert found.notes[0].startswith("a.pickle: the notes of perflab behind PyTorch's part are damaged (")
    assert found.notes[0].endswith("so that the file is read without them")
    assert (found.blocks, found.is_whole, found.is_noted) == (bare.blocks, True, False)


def test_a_recording_that_is_cut_off_anywhere_in_its_notes_reads_without_them_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pickle", content(training()))
    whole = path.stat().st_size
    bare = read(path)
    assert bare.notes == []
    data = behind(path, {"device": 0, "events": 13, "looks": [[0, [[ADDRESS, "parameters", "w"]]]]}).read_bytes()
    assert read(path).is_noted
    for size in range(whole + 1, len(data)):
        path.write_bytes(data[:size])
        found = read(path)
        assert found.blocks == bare.blocks
        assert "the notes of perflab behind PyTorch's part are damaged" in found.notes[0], size


def test_what_follows_a_pickle_and_is_not_ours_is_not_read(tmp_path: Path) -> None:
    path = written(tmp_path / "a.pickle", content(training()))
    path.write_bytes(path.read_bytes() + b"cposix\nsystem\n.")
    assert not read(path).is_noted


def test_what_a_test_lets_go_within_the_block_is_let_go_though_it_was_asked_for(tmp_path: Path) -> None:
    """Tensors, a model, and an optimizer with its state. A CPU's profiler does not say when."""
    model, data = torch.nn.Linear(WIDTH, WIDTH), torch.randn(ROWS, WIDTH)
    stays = torch.randn(100)
    optimizer = torch.optim.AdamW(model.parameters())
    model(data).sum().backward()
    optimizer.step()
    gone = [weakref.ref(one) for one in (data, model, optimizer)]
    with record_memory(tmp_path / "block", CPU, partial(in_hands_of, sys._getframe())) as recorded:
        del data
        optimizer.zero_grad()
        del optimizer, model
        gc.collect()
        left = [one() for one in gone]
    assert left == [None, None, None]
    found = read(recorded.path)
    assert set(levels(found)) == {stays.nbytes}
    weights = 4 * WIDTH * (WIDTH + 1)
    assert found.notes[0].startswith(
        f"{4 * weights + 2 * 4 + 4 * ROWS * WIDTH:,} bytes that were there before were let"
    )


def test_gradients_that_a_step_clears_first_are_seen_to_go(tmp_path: Path) -> None:
    model, data = Net(), torch.randn(ROWS, WIDTH)
    optimizer = torch.optim.SGD(model.parameters())

    def forward() -> torch.Tensor:
        optimizer.zero_grad()
        return model(data).square().mean()

    step = Step(forward, lambda loss: loss.backward(), optimizer.step)
    step.run()
    memory, _ = measure_memory(step, CPU)
    found = read(record_call(step, tmp_path / "step", CPU).path)
    of_weights = sum(4 * one.numel() for one in model.parameters())
    forward_stage = found.stages[0]
    assert size_of(found, "gradients", 0) == size_of(found, "gradients", found.moments) == of_weights
    assert size_of(found, "gradients", forward_stage.end) == 0
    assert max(levels(found)) == memory.peak_bytes
    assert found.notes == []


def test_models_among_the_locals_are_known_also_those_that_were_built_within(tmp_path: Path) -> None:
    model, data = Net(), torch.randn(ROWS, WIDTH)
    with record_memory(tmp_path / "block", CPU, partial(in_hands_of, sys._getframe())) as recorded:
        out = model(data)
        other = Net()
        other(data).sum().backward()
    found = read(recorded.path)
    of_weights = sum(4 * one.numel() for one in model.parameters())
    assert size_of(found, "parameters", 0) == of_weights
    assert size_of(found, "parameters", found.moments) == 2 * of_weights
    assert size_of(found, "gradients", found.moments) == of_weights
    assert {"blocks.0.up", "blocks.2.down", "head"} <= {one.module for one in found.blocks if one.allocated_at}
    (logits,) = [one for one in found.blocks if one.size_bytes == out.nbytes and one.freed_at is None]
    assert logits.category != "inputs"


def test_functions_that_are_gone_when_the_recording_is_read_do_no_harm(tmp_path: Path) -> None:
    """PyTorch's tracer keeps pointers to their names, and what lies there by now is no text. So do imports within."""

    def call() -> list[torch.Tensor]:
        made, filling = [], []
        for number in range(100):
            space: dict[str, Any] = {"torch": torch}
            name = f"gone_{number:060}"
            exec(f"def {name}(): return torch.ones(1000)", space)
            made.append(space.pop(name)())
            space.clear()
            filling.append([b"\xff" * (len(name) + 15) for _ in range(10)])
        return made

    found = read(record_call(Workload(call, (), {}), tmp_path / "gone", CPU).path)
    assert [one.size_bytes for one in found.blocks if one.size_bytes == 4000] == 100 * [4000]
