"""Files that were made to hang, fill or crash the reader, and damaged ones: each ends soon, with its name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from perflab.snapshots.analysis import categories_of, levels
from perflab.snapshots.deduced import of_annotations
from perflab.snapshots.model import Stage
from perflab.snapshots.page import as_page
from perflab.snapshots.picture import by_category, picture
from perflab.snapshots.reading import read_snapshots
from perflab.snapshots.summary import summarize
from tests.harness.made_snapshots import (
    MIB,
    MODEL,
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

DEEP_TUPLE = b")" + b"\x85" * 1_000_000
WIDE_TUPLE = b"(" + b")\x94" + b"".join(b"h%ch%c\x86\x94" % (n, n) for n in range(60)) + b"t"
DEEP_LIST = b"]" * 100_000 + b"a" * 99_999
WIDE_LIST = b"(" + b"]\x94" + b"".join(b"](h%ch%ce\x94" % (n, n) for n in range(60)) + b"l"
BOMBS = {"deep tuple": DEEP_TUPLE, "wide tuple": WIDE_TUPLE, "deep list": DEEP_LIST, "wide list": WIDE_LIST}
EVENT = {"action": "alloc", "addr": 1, "size": 512, "stream": 0, "time_us": 1, "frames": []}
IN_USE = {"address": 1, "size": 512, "state": "active_allocated"}
HOLE = "here it stands"


def with_hole(key: str) -> dict[str, Any]:
    """A snapshot with ``HOLE`` for one of its values."""
    if key == "segment_type":
        return {"segments": [{"device": 0, "segment_type": HOLE, "blocks": [IN_USE]}], "device_traces": []}
    if key.startswith("block "):
        inner = {**IN_USE, key.removeprefix("block "): HOLE}
        return {"segments": [{"device": 0, "blocks": [inner]}], "device_traces": []}
    if key in ("filename", "name", "line"):
        frames = [{"filename": "a.py", "name": "f", "line": 1, key: HOLE}]
        return {"segments": [], "device_traces": [[{**EVENT, "frames": frames}]]}
    return {"segments": [], "device_traces": [[{**EVENT, key: HOLE}]]}


KEYS = (
    *(
        "action",
        "addr",
        "size",
        "stream",
        "time_us",
        "frames",
        "category",
        "module",
        "phase",
        "user_metadata",
        "tensor",
    ),
    *("filename", "name", "line", "segment_type", "block category", "block module", "block tensor", "block frames"),
)


def raw(value: Any, hole: bytes) -> bytes:
    """A pickle's bytes of a value without numbers of the memo, ``hole`` in the place of ``HOLE``."""
    if value == HOLE:
        return hole
    if isinstance(value, dict):
        return b"}(" + b"".join(raw(part, hole) for pair in value.items() for part in pair) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(raw(part, hole) for part in value) + b"e"
    if isinstance(value, str):
        return b"X" + len(value).to_bytes(4, "little") + value.encode()
    return b"\x8a\x09" + int(value).to_bytes(9, "little", signed=True)


def test_a_bomb_in_the_place_of_any_value_is_refused(tmp_path: Path) -> None:
    for name, bomb in BOMBS.items():
        for key in KEYS:
            (tmp_path / f"{name}, {key}.pickle").write_bytes(b"\x80\x04" + raw(with_hole(key), bomb) + b".")
    said = ended(tmp_path)
    assert said.count("\n  ->") == len(BOMBS) * len(KEYS), said


@pytest.mark.parametrize(
    ("flood", "said"),
    [
        (b"]" * 25_000_000, "containers in so few bytes"),
        (b"](" + b"}" * 25_000_000, "containers in so few bytes"),
        (b")" + b"\x85" * 25_000_000, "containers in so few bytes"),
        (b"N" * 25_000_000, "objects are in no container"),
    ],
    ids=["lists", "dictionaries", "tuples", "nothings"],
)
def test_a_flood_of_one_opcode_takes_little_memory_whatever_its_size(tmp_path: Path, flood: bytes, said: str) -> None:
    (tmp_path / "flood.pickle").write_bytes(b"\x80\x04" + flood + b".")
    assert said in ended(tmp_path, most_bytes=300_000_000)


def content_of(*traces: list[Any], **more: Any) -> dict[str, Any]:
    return {"segments": [], "device_traces": list(traces), **more}


def test_numbers_that_no_device_has_are_refused(tmp_path: Path) -> None:
    made: dict[str, Any] = {
        "device": {"segments": [{"device": 10**15, "blocks": []}], "device_traces": []},
        "size": content_of([{**EVENT, "size": 2**63 - 1}]),
        "sizes": content_of([{**EVENT, "size": 2**62, "addr": number} for number in range(2)]),
        "below zero": content_of([{**EVENT, "size": -512}]),
        "far time": content_of([{**EVENT, "time_us": 2**62}]),
        "line": content_of([], segments=[segment([{**IN_USE, "frames": [{"line": float("inf")}]}])]),
    }
    for name, one in made.items():
        written(tmp_path / f"{name}.pickle", one)
    timeline = {"schema": 1, "device": "cpu", "events": [[0, 2**63]]}
    (tmp_path / "size.json").write_text(json.dumps(timeline))
    before = {**timeline, "events": [], "before": [[1, -5, 0]], "places": [{}]}
    (tmp_path / "before.json").write_text(json.dumps(before))
    said = ended(tmp_path)
    assert said.count("\n  ->") == len(made) + 2, said


def test_what_is_no_event_among_events_moves_none_to_another_device(tmp_path: Path) -> None:
    first, second = read_snapshots(written(tmp_path / "a.pickle", content_of([7, EVENT], [{**EVENT, "size": 1024}])))
    assert [(one.device, one.blocks[0].size_bytes) for one in (first, second)] == [("cuda:0", 512), ("cuda:1", 1024)]


def test_lists_that_are_no_stacks_are_left_alone(tmp_path: Path) -> None:
    notes, made = ["x"], training(20)
    for event in made.events:
        event["notes"] = notes
    assert read(written(tmp_path / "a.pickle", content(made))).moments == 121


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_blocks_share_stacks_with_events_that_stand_before_them(tmp_path: Path, protocol: int) -> None:
    made = training(20)
    alive = segment([block(512, frames=made.events[-1]["frames"])], 900 * MIB)
    path = written(tmp_path / "a.pickle", {"device_traces": [made.events], "segments": [alive]}, protocol)
    assert [one.stack[0].line for one in read(path).blocks if one.allocated_at == 0] == [12]


@pytest.mark.parametrize("protocol", [4, 5])
@pytest.mark.parametrize("marks", [True, False])
def test_events_without_stacks_are_read_at_once_too(tmp_path: Path, protocol: int, marks: bool) -> None:
    made = training(2000, frames=False, marks=marks)
    path = written(tmp_path / "a.pickle", content(made), protocol)
    events, machine = unpickled(path)
    assert len(events.rows) == len(made.events)
    assert vars(machine)["_objects"] < len(made.events) / 10


def test_events_that_cannot_be_read_at_once_count_little(tmp_path: Path) -> None:
    made = training(500)
    for event in made.events:
        event["forward_frames"] = ["".join(["model.py", ":7"])]
    path = written(tmp_path / "a.pickle", content(made))
    events, machine = unpickled(path)
    assert len(events.rows) == len(made.events)
    assert vars(machine)["_objects"] < 20 * len(made.events)  # they are 40 opcodes each


def test_texts_that_equal_a_key_are_no_keys(tmp_path: Path) -> None:
    texts = ["".join(["si", "ze"]) for _ in range(1_000_000)]
    written(tmp_path / "many.pickle", {"texts": texts, **content(training(20))})
    assert ended(tmp_path) == "many.pickle was read\n"


def test_a_file_with_a_category_for_each_block_shows_a_few(tmp_path: Path) -> None:
    events = [{**EVENT, "addr": number, "category": f"mine {number}"} for number in range(10_000)]
    found = read(written(tmp_path / "a.pickle", content_of(events)))
    assert len(categories_of(found)) == 13
    assert levels(found)[-1] == 10_000 * 512
    assert picture(found, by_category(found), 0).count("<polygon") == 13


def test_spans_that_never_end_take_no_time(tmp_path: Path) -> None:
    count = 50_000
    marks = [{"name": f"span {number}", "device": 0, "stage": "START", "time_us": 1} for number in range(count)]
    marks += [{"name": "other", "device": 0, "stage": "END", "time_us": 1} for _ in range(count)]
    written(tmp_path / "a.pickle", content_of([EVENT], external_annotations=marks))
    assert ended(tmp_path) == "a.pickle was read\n"


def test_spans_that_are_open_at_the_end_are_stages_if_nothing_began_in_them() -> None:
    times = [10, 20, 30, 40, 50, 60]
    spans = [("train", 5, None), ("forward", 10, 20), ("inner", 12, 15), ("backward", 30, 40), ("optimizer", 50, None)]
    marks = [(time, name, "START") for name, time, _ in spans] + [(end, name, "END") for name, _, end in spans if end]
    told = [{"name": name, "device": 0, "stage": stage, "time_us": time} for time, name, stage in sorted(marks)]
    stages, steps = of_annotations(told, 0, times)
    assert (stages, steps) == ([Stage("forward", 0, 2), Stage("backward", 2, 4), Stage("optimizer", 4, 6)], [])
    assert of_annotations([*told, {**told[0], "stage": "END", "time_us": 60}], 0, times)[0] == [Stage("train", 0, 6)]


def test_a_hundred_thousand_stages_are_thinned(tmp_path: Path) -> None:
    made = Recording()
    for number in range(20_000):
        made.mark = f"part {number}"
        made.alloc(number * MIB, 512, MODEL)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert len(picture(found, by_category(found), 0)) < 2**20


@pytest.mark.parametrize("hostile", ["\ud800", "</title><script>\x1b[31m\u202e"])
def test_texts_of_every_place_can_be_shown(tmp_path: Path, hostile: str) -> None:
    texts = dict.fromkeys(("category", "module", "phase", "tensor", "user_metadata"), hostile)
    found = read(written(tmp_path / "a.pickle", content_of([{**EVENT, **texts}])))
    page = as_page(summarize(found, "a"), [("a", found)])
    page.encode("utf-8")
    assert page.count("<script>") == 1  # ours
    assert not any(text in page for text in ("\x1b", "\u202e", "\ud800"))
    path = tmp_path / "a.json"
    place = {"frames": [[hostile, 1, hostile]], **texts}
    path.write_text(json.dumps({"schema": 3, "events": [[0, 5, 1, 0]], "places": [place], "looks": []}))
    found = read(path)
    as_page(summarize(found, "a"), [("a", found)]).encode("utf-8")


def test_json_that_is_cut_off_says_what_could_be_read(tmp_path: Path) -> None:
    chance = random.Random(1)
    sizes = [chance.randrange(1, 9000) for _ in range(200)]
    whole = json.dumps(
        {
            "schema": 3,
            "device": "cpu",
            "places": [{"module": "a", "phase": "forward"}],
            "before": [[7, 5, 0]],
            "looks": [],
            "events": [[number, size, 10 + number, 0] for number, size in enumerate(sizes)],
        }
    )
    path, counts = tmp_path / "cut.json", []
    for length in range(whole.index("events") + 30, len(whole) - 1, 53):
        path.write_text(whole[:length])
        found = read(path)
        assert "cut.json is cut off or damaged at character" in found.notes[0]
        assert f"{found.moments} events were read" in found.notes[0]
        assert sorted(one.size_bytes for one in found.blocks if one.allocated_at) == sorted(sizes[: found.moments])
        counts.append(found.moments)
    assert len({*counts}) > 50
    assert counts[-1] > 190


def test_json_of_empty_lists_takes_no_more_memory_than_there_is(tmp_path: Path) -> None:
    (tmp_path / "many.json").write_text('{"a":[' + "[]," * (2**26 // 3 - 10) + "[]]}")
    assert "it has no events" in ended(tmp_path)
    (tmp_path / "many.json").write_text('{"a":[' + "[]," * (2**26 // 3 + 10) + "[]]}")
    assert "JSON of more than 64.0 MiB" in ended(tmp_path)
