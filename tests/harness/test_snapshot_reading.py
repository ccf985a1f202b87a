"""Snapshots are read whoever wrote them, and a hostile file does nothing."""

from __future__ import annotations

import json
import os
import pickle
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from perflab.base.errors import SnapshotError
from perflab.measure.memory.histories import record_memory
from perflab.snapshots.analysis import alike, alive_at
from perflab.snapshots.events import Events
from perflab.snapshots.model import Stage
from perflab.snapshots.reading import choose, read_snapshots
from tests.harness.made_snapshots import (
    ADDRESS,
    MIB,
    MODEL,
    TRAIN,
    Recording,
    block,
    content,
    ended,
    read,
    segment,
    training,
    unpickled,
    written,
)

STATE = segment([block(2 * MIB), block(18 * MIB, "inactive", 0)], 64 * MIB)


class Harm:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_something_runs_nothing(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "harm"
    path = written(tmp_path / "bad.pickle", content(segments=[Harm(target)]), protocol)  # type: ignore[list-item]
    with pytest.raises(SnapshotError, match=r"(?s)bad\.pickle: byte .*do not load the file with pickle either"):
        read_snapshots(path)
    assert not target.exists()
    pickle.loads(path.read_bytes())
    assert target.exists()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"cposix\nsystem\n(S'true'\ntR.", "GLOBAL"),
        (b"(iposix\nsystem\n.", "INST"),
        (b"(cposix\nsystem\no.", "GLOBAL"),
        (b"]o.", "OBJ"),
        (b"\x80\x04\x8c\x05posix\x8c\x06system\x93.", "STACK_GLOBAL"),
        (b"]]R.", "REDUCE"),
        (b"]}b.", "BUILD"),
        (b"\x80\x02]\x81.", "NEWOBJ"),
        (b"\x80\x02\x82\x01.", "EXT1"),
        (b"\x80\x02\x83\x01\x00.", "EXT2"),
        (b"\x80\x02\x84\x01\x00\x00\x00.", "EXT4"),
        (b"Pname\n.", "PERSID"),
        (b"]Q.", "BINPERSID"),
        (b"\x80\x05\x97.", "opcode 0x97"),
        (b"\x80\x09.", "protocol 9"),
        (b"\x8a\xff" + b"\xff" * 255 + b".", "a number of 255 bytes"),
        (b"I" + b"9" * 5000 + b"\n.", "a number of 5000 digits"),
        (b"}K\x01K\x02s.", "keys are to be texts"),
        (b"}]K\x02s.", "keys are to be texts"),
        (b"(" * 1000, "more than 100 containers"),
        (b"]K\x01q\x00q\x00.", "given twice"),
        (b"]K\x01q\x07.", "object 7 of the memo is given before object 0"),
        (b"h\x07.................", "object 7 of the memo is used, and there is none"),
        (b"0.", "opcode 0x30"),
        (b"]]e.", "has not begun"),
        (b"]].", "more or less than one object"),
        (b"]K\x01K\x02s.", "no dictionary"),
        (b"\x8c\x02\xff\xfe.", "can't decode"),
        (b"not a pickle at all, but a text of some length\n", "opcode 0x6e"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_plain_data_does_not_need_is_refused_by_name(tmp_path: Path, text: bytes, named: str) -> None:
    path = tmp_path / "bad.pickle"
    path.write_bytes(text)
    with pytest.raises(SnapshotError, match=named):
        read_snapshots(path)


BOMBS = {
    "a text longer than the file": b"\x80\x04\x8d" + (2**40).to_bytes(8, "little") + b"x.",
    "bytes longer than the file": b"\x80\x04B" + (2**31).to_bytes(4, "little") + b"x.",
    "a far number of the memo": b"\x80\x02}r" + (2**32 - 1).to_bytes(4, "little") + b".",
    "a list that holds itself": b"\x80\x04]\x94h\x00a.",
    "a dictionary that holds itself": b"\x80\x04}\x94(\x8c\x08segmentsh\x00u.",
    "lists of lists, doubled 60 times": b"\x80\x04]\x94"
    + b"".join(b"](h%ch%ce\x94" % (n, n) for n in range(60))
    + b".",
    "forty million lists": b"\x80\x04](" + b"]" * 40_000_000 + b"e.",
}


def test_a_bomb_takes_no_memory_and_ends_with_an_error(tmp_path: Path) -> None:
    for name, text in BOMBS.items():
        (tmp_path / f"{name}.pickle").write_bytes(text)
    said = ended(tmp_path)
    assert [name for name in BOMBS if f"{name}.pickle" not in said] == []
    assert said.count("\n  ->") == len(BOMBS)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "keys", [{}, {"frames": False}, {"marks": False}, {"frames": False, "marks": False}], ids=lambda keys: str([*keys])
)
def test_every_protocol_and_every_version_s_keys_read_alike(
    tmp_path: Path, protocol: int, keys: dict[str, bool]
) -> None:
    found = read(written(tmp_path / "snapshot.pickle", content(training(3, **keys), segments=[STATE]), protocol))
    assert (found.source, found.device, found.moments, len(found.blocks)) == ("PyTorch", "cuda:0", 19, 10)
    first, last = found.blocks[0], found.blocks[-1]
    assert (first.requested_bytes, first.size_bytes, first.address) == (4 * MIB + 100, 4 * MIB + 512, ADDRESS)
    assert (first.allocated_at, first.freed_at, last.freed_at) == (1, 4, 19)
    has_frames, has_marks = keys.get("frames", True), keys.get("marks", True)
    assert [frame.line for frame in first.stack] == [190, 12] * has_frames
    assert [stage.name for stage in found.stages] == ["forward", "backward", "optimizer"] * 3 * has_marks
    assert len(found.steps) == 3 * has_marks
    assert (found.cache.taken, found.cache.taken_bytes) == (1, 20 * MIB)
    assert (found.segments[0].in_use_bytes, found.segments[0].free_bytes) == (2 * MIB, 18 * MIB)
    if has_frames:
        assert [one.category for one in found.blocks[:4]] == ["activations"] * 2 + ["gradients", "optimizer state"]


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_events_read_at_once_are_those_read_one_by_one(tmp_path: Path, protocol: int) -> None:
    path = written(tmp_path / "snapshot.pickle", content(training(40), training(5, marks=False)), protocol)
    ways = []
    for at_once in (True, False):
        events = Events()
        if not at_once:
            events.at_once = lambda machine: False  # type: ignore[method-assign]
        taken: list[bool] = []
        whole = events.at_once
        events.at_once = lambda one, whole=whole, taken=taken: taken.append(whole(one)) or taken[-1]  # type: ignore
        _, machine = unpickled(path, events)
        ways.append((vars(events.rows), len(machine.memo)))
        assert (sum(taken) > (300 if protocol > 2 else 30)) is at_once
    first, second = ways
    assert {key: value for key, value in first[0].items() if key[0] != "_"} == {
        key: value for key, value in second[0].items() if key[0] != "_"
    }
    assert first[1] == second[1]


def test_a_file_that_is_cut_off_says_what_could_be_read(tmp_path: Path) -> None:
    whole = written(tmp_path / "whole.pickle", content(training(50), segments=[STATE])).read_bytes()
    levels = []
    for length in range(len(whole) // 3, len(whole), 97):
        path = tmp_path / "cut.pickle"
        path.write_bytes(whole[:length])
        try:
            found = read(path)
        except SnapshotError as error:
            assert "no events" in str(error) or "neither segments" in str(error)  # noqa: PT017
            continue
        assert "cut.pickle is cut off at byte" in found.notes[0]
        levels.append(found.moments)
        assert found.blocks[0].allocated_at == 1
    assert levels == sorted(levels)
    assert len(set(levels)) > 50
    assert 290 < levels[-1] <= 301


def test_what_was_there_before_is_known_by_its_free_or_by_the_end(tmp_path: Path) -> None:
    made = Recording()
    made.free(0, 3 * MIB, TRAIN).alloc(MIB, 700, MODEL).free(MIB, 700)
    stays = segment([block(MIB, asked=MIB - 10, frames=made.stack(MODEL)), block(MIB, "inactive")], 100 * MIB)
    found = read(written(tmp_path / "snapshot.pickle", content(made, segments=[stays])))
    assert [(one.size_bytes, one.allocated_at, one.freed_at) for one in found.blocks] == [
        (3 * MIB, 0, 1),
        (MIB, 0, None),
        (1024, 2, 3),
    ]
    assert found.blocks[1].stack[0].line == 190


def test_devices_expandable_segments_out_of_memory_and_retries(tmp_path: Path) -> None:
    first = Recording().add("segment_map", 0, 2 * MIB).alloc(0, 600).add("segment_unmap", 0, 2 * MIB)
    second = Recording().add("segment_free", 0, 8 * MIB).add("segment_alloc", 0, 9 * MIB).alloc(0, 9 * MIB, MODEL)
    second.add("oom", 0, 70 * MIB, MODEL, device_free=5 * MIB)
    del second.events[-1]["addr"]
    expandable = segment([block(1024)], 0, device=1, is_expandable=True)
    path = written(tmp_path / "snapshot.pickle", content(first, Recording(), second, segments=[expandable]))
    found = read_snapshots(path)
    assert [one.device for one in found] == ["cuda:0", "cuda:1", "cuda:2"]
    assert (found[0].cache.taken, found[0].cache.given_back) == (1, 1)
    assert found[1].segments[0].kind == "large, expandable"
    assert (found[2].cache.retries, found[2].cache.given_back_bytes) == (1, 8 * MIB)
    (full,) = found[2].out_of_memory
    assert (full.moment, full.asked_bytes, full.free_bytes, full.stack[0].line) == (1, 70 * MIB, 5 * MIB, 190)
    assert choose(found, "2", path) is choose(found, "cuda:2", path) is found[2]
    with pytest.raises(SnapshotError, match="nothing of device 7\n  -> choose of cuda:0, cuda:1, cuda:2"):
        choose(found, "7", path)


def test_spans_of_record_function_are_stages_and_profiler_steps_are_steps(tmp_path: Path) -> None:
    made = training(2, marks=False)
    times = [event["time_us"] for event in made.events]
    middle = times[len(times) // 2]
    spans = [
        ("ProfilerStep#1", times[0], middle),
        ("forward", times[0], times[1]),
        ("inner", times[1], times[1]),
        ("backward", times[2], times[4]),
    ]
    marks = [
        {"name": name, "device": 0, "stage": stage, "time_us": time}
        for name, *both in spans
        for stage, time in zip(("START", "END"), both, strict=True)
    ]
    marks.sort(key=lambda one: (one["time_us"], one["stage"] == "END"))
    found = read(written(tmp_path / "snapshot.pickle", content(made, external_annotations=marks)))
    assert found.stages == [Stage("forward", 0, 2), Stage("backward", 2, 4)]
    assert [step.name for step in found.steps] == ["ProfilerStep#1"]


def test_a_cpu_s_recording_names_module_line_phase_and_block(tmp_path: Path) -> None:
    layer, data = torch.nn.Linear(64, 32), torch.randn(16, 64)
    with record_memory(tmp_path / "cpu", torch.device("cpu")) as recorded:
        with torch.profiler.record_function("forward"):
            out = layer(data).relu()
        with torch.profiler.record_function("backward"):
            out.sum().backward()
    found = read(recorded.path)
    assert (found.source, found.device, found.rounding_bytes) == ("perflab", "cpu", 1)
    assert [stage.name for stage in found.stages] == ["forward", "backward"]
    first = found.blocks[0]
    assert (first.size_bytes, first.module, first.phase) == (16 * 32 * 4, "Linear", "forward")
    assert any(frame.file.endswith("test_snapshot_reading.py") for frame in first.stack)
    gradients = [one for one in found.blocks if one.category == "gradients" and one.freed_at is None]
    assert sorted(one.size_bytes for one in gradients) == [32 * 4, 64 * 32 * 4]


@pytest.mark.parametrize("module", ["", "net"])
def test_blocks_of_one_stack_are_alike_whatever_operator_made_them(tmp_path: Path, module: str) -> None:
    places = [
        {"operator": name, "module": module, "frames": [["/p/model.py", 5, "f"]]} for name in ("aten::mul", "aten::add")
    ]
    events = [[number, 4096, 100 + number, number % 2] for number in range(4)]
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": 3, "places": places, "looks": [], "events": events}))
    found = read(path)
    assert [(len(one), one[0].size_bytes) for one in alike(alive_at(found, 4))] == [(4, 4096)]


def test_a_recording_whose_blocks_nobody_can_tell_apart_reads(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": 1, "device": "cpu", "events": [[5, 100], [6, 50], [7, -100], [9, -7]]}))
    found = read(path)
    assert [(one.size_bytes, one.allocated_at, one.freed_at) for one in found.blocks] == [
        (7, 0, 4),
        (100, 1, 3),
        (50, 2, None),
    ]
    assert "schema 1" in found.notes[0]
    assert list(found.times_ns) == [5, 6, 7, 9]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "is empty"),
        ("{", "is no recording of memory_snapshot"),
        ('{"schema": 4, "events": []}', "its schema is 4, and 1 and 3 are known"),
        ('{"schema": 1}', "it has no events"),
        ('{"schema": 1, "events": [[1, "x"]]}', "'x' is no whole number"),
        ('{"schema": 2, "events": [[1, 2]], "blocks": [[1, 0]]}', "its schema is 2, and 1 and 3 are known"),
        ('{"schema": 3, "events": [[1, 2, 3, -1]], "places": [{}]}', "-1 is no whole number of 0 or more"),
        ('{"schema": 3, "events": [[1, 2, 3, 1]], "places": [{}]}', "list index out of range"),
        ('{"schema": 3, "events": [[1, 2]]}', "not enough values"),
        ('{"a":' * 100_000, "is no recording"),
    ],
    ids=str,
)
def test_foreign_and_damaged_json_is_named(tmp_path: Path, text: str, named: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(SnapshotError, match=named):
        read_snapshots(path)


def test_foreign_pickles_and_pipes_are_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="neither segments nor device_traces"):
        read_snapshots(written(tmp_path / "a.pickle", {"weights": [1, 2]}))
    bad = training()
    bad.events[3]["size"] = "large"
    with pytest.raises(SnapshotError, match="event 3 of the snapshot has a value that no event has"):
        read_snapshots(written(tmp_path / "b.pickle", content(bad)))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe"):
        read_snapshots(tmp_path / "pipe")


def test_a_hundred_thousand_events_take_little_memory(tmp_path: Path) -> None:
    path = written(tmp_path / "large.pickle", content(training(9_000)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    events, _ = unpickled(path)
    assert len(events.rows) == 9_000 * 9 + 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024  # as dictionaries: 100 MiB and more
