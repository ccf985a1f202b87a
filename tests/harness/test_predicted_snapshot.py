"""Predictions as memory snapshots: PyTorch's own readers take them, and they say what the trace says."""

from __future__ import annotations

import io
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest
from torch.cuda import _memory_viz

from perflab.predicted.memory.replay import replay
from perflab.predicted.memory.snapshot import write_snapshot
from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Op, Place, Trace, Use

MIB = 2**20
VIEWER_KNOWS = """
APPEND APPENDS BINFLOAT BINGET BININT BININT1 BININT2 BINPUT BINUNICODE DICT EMPTY_DICT EMPTY_LIST
EMPTY_TUPLE FRAME LIST LONG1 LONG_BINGET LONG_BINPUT MARK MEMOIZE NEWFALSE NEWTRUE NONE PROTO
SETITEM SETITEMS SHORT_BINUNICODE STOP TUPLE TUPLE1 TUPLE2 TUPLE3
"""
"""Opcodes of a pickle that ``unpickle`` in PyTorch's ``torch/utils/viz/MemoryViz.js`` reads."""
WEIGHT = Place("", "blocks.*.attention.q", "model.py:12")
SCORES = Place("forward", "blocks.*.attention", "perflab/lab/attention/naive.py:45")
BACKWARD = Place("backward", "blocks.*.attention", "perflab/lab/attention/naive.py:45", in_backward=True)
HELD = (Alloc(0, 3 * MIB, WEIGHT, "", Layer("blocks", 0)), Alloc(1, 700, Place("", "head", ""), ""))
EVENTS: tuple[Event, ...] = (
    Alloc(2, 12 * MIB + 100, SCORES, "aten::mm", Layer("blocks", 17)),
    Op("aten::mm", SCORES, 10, 20, "float32"),
    Alloc(3, 1000, SCORES, "aten::softmax"),
    Op("aten::softmax", SCORES, 0, 40, "float32"),
    Alloc(4, 0, SCORES, "aten::empty"),
    Free(2),
    Op("aten::mm", BACKWARD, 10, 20, "float32"),
    Free(1),
    Alloc(5, 2 * MIB, BACKWARD, "aten::mm"),
)
KINDS = {0: "parameters", 1: "inputs", 2: "activations", 3: "temporaries", 4: "temporaries", 5: "gradients"}
TRACE = Trace(HELD, EVENTS, {block: Use(kind) for block, kind in KINDS.items()}, {"blocks": 18})


class PlainUnpickler(pickle.Unpickler):
    """Loads containers, numbers and text; nothing can run."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        raise pickle.UnpicklingError(f"{module_name}.{global_name} is asked for")


def load(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = PlainUnpickler(io.BytesIO(path.read_bytes())).load()
    return content


def microsecond(op: Op) -> float:
    """What each operator takes, in nanoseconds."""
    return 1000.0


@pytest.fixture
def snapshot(tmp_path: Path) -> dict[str, Any]:
    return load(write_snapshot(TRACE, tmp_path / "predicted", workspace_bytes=4 * MIB, time_of=microsecond))


def test_a_snapshot_is_plain_data_that_the_viewer_can_unpickle(tmp_path: Path) -> None:
    path = write_snapshot(TRACE, tmp_path / "new" / "predicted", time_of=microsecond)
    assert path == tmp_path / "new" / "predicted.pickle"
    assert {code.name for code, _, _ in pickletools.genops(path.read_bytes())} <= set(VIEWER_KNOWS.split())
    assert set(load(path)) == {"segments", "device_traces", "allocator_settings", "external_annotations", "perflab"}
    with pytest.raises(pickle.UnpicklingError, match=r"posix\.system is asked for"):
        PlainUnpickler(io.BytesIO(b"cposix\nsystem\n.")).load()


def test_pytorch_s_own_readers_take_it(snapshot: dict[str, Any]) -> None:
    as_text = {"format_flamegraph": lambda lines: lines}  # the flame graph's lines, without the script that draws them
    assert "segments: 3" in _memory_viz.segsum(snapshot)
    assert "total_reserved: 36.0MiB" in _memory_viz.segsum(snapshot)
    listing = _memory_viz.trace(snapshot)
    assert "Device 0" in listing
    assert "12.0MiB" in listing
    assert "snapshot" in listing
    assert "naive.py:45:aten::softmax in blocks.*.attention (forward) 1000" in _memory_viz.memory(snapshot, **as_text)
    assert "active_allocated;model.py:12:parameters in blocks.0.attention.q 3145728" in _memory_viz.segments(
        snapshot, **as_text
    )
    assert "only_before" not in _memory_viz.compare([], snapshot["segments"], **as_text)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot)
    assert "Active Cached Memory Timeline" in _memory_viz.trace_plot(snapshot, plot_segments=True)
    assert "Allocator State History" in _memory_viz.segment_plot(snapshot)
    assert "Active Memory Timeline" in _memory_viz.trace_plot(snapshot, filter_freed=True)
    left = [(event["action"], event["size"]) for event in snapshot["device_traces"][0]]
    assert left[:2] == [("alloc", 1000), ("free_requested", 700)]  # the pair of block 2 is gone; block 1 came before
    assert ("alloc", 2 * MIB) in left


def test_a_snapshot_holds_what_the_replay_says(snapshot: dict[str, Any]) -> None:
    played = replay(TRACE, workspace_bytes=4 * MIB)
    addresses = {entry.block.block: entry.address for entry in played.log}
    addresses |= {block.block: address for address, block in played.alive.items()}
    events = snapshot["device_traces"][0]
    assert [(event["action"], event["addr"], event["size"], event["time_us"]) for event in events[:-1]] == [
        ("alloc", addresses[2], 12 * MIB + 100, 0),
        ("alloc", addresses[3], 1000, 1),
        ("free_requested", addresses[2], 12 * MIB + 100, 2),
        ("free_completed", addresses[2], 12 * MIB + 100, 2),
        ("free_requested", addresses[1], 700, 3),
        ("free_completed", addresses[1], 700, 3),
        ("alloc", addresses[5], 2 * MIB, 3),
    ]
    assert [event["category"] for event in events if event["action"] in ("alloc", "free_requested")] == [
        "activations",
        "temporaries",
        "activations",
        "inputs",
        "gradients",
    ]
    assert events[0]["frames"] == [
        {"filename": "perflab/lab/attention/naive.py", "line": 45, "name": "aten::mm in blocks.17.attention (forward)"}
    ]
    assert events[4]["frames"] == [{"filename": "", "line": 0, "name": "inputs in head"}]
    in_use = {
        block["address"]: (block["size"], block["requested_size"], block["frames"][0]["name"])
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    }
    assert in_use == {
        addresses[0]: (3 * MIB, 3 * MIB, "parameters in blocks.0.attention.q"),
        addresses[-1]: (5 * MIB - 512, 4 * MIB, "workspace"),  # a remainder of less than 1 MiB is not cut off
        addresses[-2]: (4 * MIB, 4 * MIB, "workspace"),
        addresses[3]: (1024, 1000, "aten::softmax in blocks.*.attention (forward)"),
        addresses[5]: (2 * MIB, 2 * MIB, "aten::mm in blocks.*.attention (backward)"),
    }
    assert events[-1]["action"] == "snapshot"
    assert events[-1]["size"] == sum(size for size, _, _ in in_use.values())
    assert sum(segment["total_size"] for segment in snapshot["segments"]) == played.peak_reserved_bytes
    for segment in snapshot["segments"]:
        assert segment["total_size"] == sum(block["size"] for block in segment["blocks"])


def test_times_are_those_of_the_operators_before(tmp_path: Path) -> None:
    predicted_ns = {"aten::mm": 1500.0, "aten::softmax": 700.0}
    path = write_snapshot(TRACE, tmp_path / "timed", time_of=lambda op: predicted_ns[op.name])
    actions = ("alloc", "free_completed")
    times = [event["time_us"] for event in load(path)["device_traces"][0] if event["action"] in actions]
    assert times == [0, 1, 2, 3, 3]


def test_an_old_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    (tmp_path / "predicted.pickle").write_bytes(b"old")
    write_snapshot(TRACE, tmp_path / "predicted", time_of=microsecond)
    assert [path.name for path in tmp_path.iterdir()] == ["predicted.pickle"]
    assert "segments" in load(tmp_path / "predicted.pickle")
    (tmp_path / "taken.pickle").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_snapshot(TRACE, tmp_path / "taken", time_of=microsecond)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["predicted.pickle", "taken.pickle"]
