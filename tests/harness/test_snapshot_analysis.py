"""Sums over snapshots are exact, predictions read back are what they were, and a diff leaves nothing unexplained."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from perflab.measure.memory.histories import record_memory
from perflab.predicted.memory.account import account_of
from perflab.predicted.memory.snapshot import write_snapshot
from perflab.predicted.trace.trace import Trace
from perflab.results.peak import CATEGORIES
from perflab.snapshots.analysis import (
    alike,
    alive_at,
    categories_of,
    levels,
    outliving,
    parts_by,
    peak_moment,
)
from perflab.snapshots.difference import compare
from perflab.snapshots.picture import by_category, thinned
from perflab.snapshots.report import Report, Table, first_changes
from perflab.snapshots.summary import summarize
from tests.harness.made_snapshots import MIB, MODEL, TRAIN, Recording, block, content, read, segment, training, written
from tests.harness.traced import Work, exact, phased, traced_as_is, traced_fake


def table(report: Report, key: str) -> Table:
    (found,) = [one for one in report.tables if one.key == key]
    return found


def summed(found: Table, key: str) -> int:
    at = [column.key for column in found.columns].index(key)
    return sum(row[at] for row in found.rows if isinstance(row[at], int))


def random_recording(seed: int, events: int) -> Recording:
    chance, made, live = random.Random(seed), Recording(), {}
    for number in range(events):
        made.mark = ("", "forward", "backward")[number * 3 // events]
        if live and chance.random() < 0.45:
            address = chance.choice(list(live))
            made.free(address, live.pop(address), TRAIN)
        else:
            address, size = (number + 1) * 64 * MIB, chance.randrange(1, 9 * MIB)
            live[address] = size
            made.alloc(address, size, chance.choice([MODEL, TRAIN]), TRAIN)
    return made


def step(layers: int = 1, width: int = 32) -> Work:
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(layers)), torch.nn.GELU())
    optimizer, data = torch.optim.AdamW(model.parameters()), torch.randn(16, width)
    loss: list[torch.Tensor] = []

    def forward() -> None:
        loss[:] = [model(data).square().mean()]

    def backward() -> None:
        loss.pop().backward()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()

    return phased(forward=forward, backward=backward, optimizer=update)


@pytest.mark.parametrize("seed", range(5))
def test_categories_add_up_to_the_live_bytes_at_every_moment(tmp_path: Path, seed: int) -> None:
    found = read(written(tmp_path / "snapshot.pickle", content(random_recording(seed, 300))))
    level = levels(found)
    assert len(level) == found.moments + 1 == 301
    for moment in range(301):
        parts = parts_by(alive_at(found, moment), lambda one: one.category)
        assert sum(part.size_bytes for part in parts.values()) == level[moment]
    points = thinned(found, 1000, by_category(found))
    assert [sum(point.by_band) for point in points] == list(level)
    few = thinned(found, 20, by_category(found))
    assert max(sum(point.by_band) for point in few) == max(level)
    assert [point.start for point in few[1:]] == [point.end + 1 for point in few[:-1]]
    assert (few[0].start, few[-1].end) == (0, 300)


@pytest.mark.parametrize("most", [1, 3, 100])
def test_every_table_of_the_peak_adds_up_to_it(tmp_path: Path, most: int) -> None:
    found = read(written(tmp_path / "snapshot.pickle", content(random_recording(7, 400))))
    report = summarize(found, "snapshot", most)
    peak = max(levels(found))
    for key in ("by_category", "by_module", "by_line", "largest"):
        assert summed(table(report, key), "bytes") == peak, key
    assert len(table(report, "largest").rows) <= most + 1 or most == 100


def test_a_timeline_of_many_events_keeps_its_peak(tmp_path: Path) -> None:
    made = training(1200)
    made.alloc(200 * MIB, 70 * MIB, MODEL).free(200 * MIB, 70 * MIB)
    made.events = made.events[5000:] + made.events[:5000]  # the peak is alone somewhere between
    found = read(written(tmp_path / "long.pickle", content(made)))
    assert found.moments > 7000
    points = thinned(found, 500, by_category(found))
    assert len(points) <= 500
    assert max(sum(point.by_band) for point in points) == max(levels(found))
    assert peak_moment(levels(found)) in {point.moment for point in points}


def test_blocks_of_one_size_and_stack_are_counted_together(tmp_path: Path) -> None:
    made = Recording()
    for number in range(64):
        made.alloc(number * 64 * MIB, 40 * MIB, MODEL, TRAIN)
    made.alloc(5000 * MIB, 40 * MIB, TRAIN)
    found = read(written(tmp_path / "snapshot.pickle", content(made)))
    assert [(len(one), one[0].size_bytes) for one in alike(found.blocks)] == [(64, 40 * MIB), (1, 40 * MIB)]
    rows = table(summarize(found, "snapshot"), "largest").rows
    assert rows[0][:3] == (64, 40 * MIB, 64 * 40 * MIB)
    assert rows[0][-3:] == ("model.py:190", "", "model.py:190 forward < train.py:12 main")


def test_a_stack_of_c_plus_plus_alone_is_named_by_its_operator(tmp_path: Path) -> None:
    engine = ("??", 0, "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)")
    operator = ("/build/aten/src/ATen/ops.cpp", 5, "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)")
    made = Recording().alloc(0, MIB, ("c10.so", 0, "c10::cuda::malloc"), operator, engine, ("clone3.S", 81, "clone3"))
    found = read(written(tmp_path / "snapshot.pickle", content(made)))
    assert table(summarize(found, "snapshot"), "by_line").rows[0][0] == "aten::mm (C++)"
    assert found.blocks[0].category == "gradients"


def test_what_outlives_its_step_is_named_with_the_steps_that_leave_it(tmp_path: Path) -> None:
    made = training(3)
    leak, events = Recording(), []
    for number, event in enumerate(made.events):
        if event["user_metadata"] == "optimizer" and made.events[number - 1]["user_metadata"] == "backward":
            leak.mark = "optimizer"
            events += leak.alloc((500 + number) * MIB, 3 * MIB, TRAIN).events[-1:]
        events.append(event)
    for time, event in enumerate(events):
        event["time_us"] = time
    made.events = events
    found = read(written(tmp_path / "snapshot.pickle", content(made)))
    assert [(steps, left, len(ones), ones[0].size_bytes) for ones, steps, left in outliving(found)] == [
        (3, 3, 3, 3 * MIB),
        (1, 1, 1, 2 * MIB),  # the optimizer's state
    ]


def test_what_the_next_step_lets_go_does_not_grow(tmp_path: Path) -> None:
    made = Recording()
    for step_number in range(4):
        made.mark = "forward"
        made.alloc((step_number % 2) * 64 * MIB, MIB, MODEL)
        if step_number:
            made.free(((step_number - 1) % 2) * 64 * MIB, MIB, TRAIN)
        made.mark = "optimizer"
        made.alloc(500 * MIB, 512, TRAIN).free(500 * MIB, 512, TRAIN)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert [(steps, left) for _, steps, left in outliving(found)] == [(3, 0), (1, 1)]
    rows = table(summarize(found, "a"), "outliving")
    assert [row[:2] for row in rows.rows] == [(3, 0), (1, 1)]
    assert [column.title for column in rows.columns[:2]] == ["in steps", "left at the end"]


def test_segments_and_the_cache_stand_in_the_summary(tmp_path: Path) -> None:
    pieces = [block(2 * MIB), block(6 * MIB, "inactive", 0), block(MIB, asked=MIB - 5), block(11 * MIB, "inactive", 0)]
    made = training().add("segment_free", 0, 8 * MIB).add("segment_alloc", 0, 9 * MIB)
    report = summarize(read(written(tmp_path / "a.pickle", content(made, segments=[segment(pieces, 64 * MIB)]))), "a")
    assert table(report, "segments").rows[-1] == ("all segments", 20 * MIB, 3 * MIB, 3 * MIB - 5, 17 * MIB, None)
    assert table(report, "segments").rows[0][-1] == 11 * MIB
    assert [row[1:] for row in table(report, "cache").rows] == [(2, 29 * MIB), (1, 8 * MIB), (1, None)]


def test_sizes_that_the_allocator_rounds_further_are_noted(tmp_path: Path) -> None:
    for setting, noted in (("roundup_power2_divisions:4", True), ("expandable_segments:True", False)):
        about = {"allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": setting}}
        found = read(written(tmp_path / "a.pickle", content(training(), **about)))
        assert any("rounded sizes up further" in note for note in found.notes) is noted


def test_out_of_memory_says_what_was_asked_and_what_was_alive(tmp_path: Path) -> None:
    made = Recording().alloc(0, 8 * MIB, MODEL).add("oom", 0, 70 * MIB, MODEL, device_free=MIB)
    full = table(summarize(read(written(tmp_path / "full.pickle", content(made))), "full"), "out_of_memory_1")
    assert full.rows == (("asked for", 70 * MIB), ("free on the device", MIB), ("alive: unknown", 8 * MIB))
    assert "model.py:190 forward" in full.note


def test_a_snapshot_without_marks_says_so(tmp_path: Path) -> None:
    report = summarize(read(written(tmp_path / "plain.pickle", content(training(2, marks=False)))), "plain")
    assert any("Stages are unmarked" in note for note in report.notes)
    assert ("peak_stage", "unmarked") in [(fact.key, fact.value) for fact in report.facts]
    assert not any(one.key == "stages" for one in report.tables)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_prediction_read_back_has_its_account_s_peak_and_composition(tmp_path: Path, layers: int) -> None:
    trace = traced_fake(lambda: step(layers))
    account = account_of(trace)
    found = read(write_snapshot(trace, tmp_path / "predicted", time_of=lambda op: 1.0))
    level = levels(found)
    peak = peak_moment(level)
    assert level[peak] == account.peak_bytes
    assert level[0] == account.held_bytes
    parts = parts_by(alive_at(found, peak), lambda one: one.category)
    assert {kind: part.size_bytes for kind, part in parts.items()} == account.composition
    assert {*categories_of(found)} <= {*CATEGORIES}
    assert [stage.name for stage in found.stages] == ["forward", "backward", "optimizer"]


def test_a_recording_and_a_prediction_of_one_step_differ_by_nothing_that_is_not_listed(tmp_path: Path) -> None:
    work = step(2, 64)
    work.run(lambda: None)
    trace: Trace = traced_as_is(work)
    predicted = read(write_snapshot(trace, tmp_path / "predicted", time_of=lambda op: 1.0))
    with record_memory(tmp_path / "recorded", torch.device("cpu")) as recorded:
        work.run(lambda: None)
    measured = read(recorded.path)
    report = compare(predicted, measured, ("predicted", "measured"), most=2)
    change = max(levels(measured)) - max(levels(predicted))
    for key in ("by_category", "changes"):
        assert summed(table(report, key), "change_bytes") == change, key
    # The recording begins with the call, so what was held is not in it. What the call adds is the same, but for scalars
    # that operators make of Python's numbers inside of themselves.
    scalars = max(levels(measured)) - (exact(trace).peak_bytes - exact(trace).held_bytes)
    assert 0 <= scalars < 64


@pytest.mark.parametrize("most", [1, 4, 50])
def test_a_diff_adds_up_to_the_difference_of_the_peaks(tmp_path: Path, most: int) -> None:
    before = read(written(tmp_path / "a.pickle", content(random_recording(1, 200))))
    after = read(written(tmp_path / "b.pickle", content(random_recording(2, 300))))
    report = compare(before, after, ("a", "b"), most)
    change = max(levels(after)) - max(levels(before))
    assert ("change_bytes", change) in [(fact.key, fact.value) for fact in report.facts]
    for found in report.tables:
        assert summed(found, "change_bytes") == change
        assert summed(found, "after_bytes") - summed(found, "before_bytes") == change
    same = compare(before, before, ("a", "a"), most)
    assert first_changes(same) == ["memory: peak of the snapshot unchanged"]
    assert all(not found.rows for found in same.tables)


def holding(
    folder: str, *makes: tuple[int, int], train: int = 12, module: str = "", absolute: bool = True
) -> dict[str, object]:
    """Blocks of so many MiB that lines of ``forward`` hold to the end, and one of 50 MiB by the line ``train``."""
    made, root = Recording(), f"/home/{folder}" if absolute else folder
    for number, (line, size) in enumerate(makes):
        made.alloc(number * 64 * MIB, size * MIB, (f"{root}/model.py", line, "forward"), TRAIN)
    made.alloc(6400 * MIB, 50 * MIB, (f"{root}/scripts/train.py", train, "main"))
    for event in made.events:
        event["module"] = module
    return content(made)


def changes(tmp_path: Path, before: dict[str, object], after: dict[str, object]) -> list[tuple[object, ...]]:
    first, second = (read(written(tmp_path / name, one)) for name, one in (("a", before), ("b", after)))
    rows = table(compare(first, second, ("a", "b")), "changes").rows
    return [row[:6] for row in rows]


def test_lines_that_moved_are_no_change(tmp_path: Path) -> None:
    before = holding("me/project", (190, 8), (195, 8), (200, 3))
    assert changes(tmp_path, before, holding("me/project", (191, 8), (196, 8), (201, 3), train=14)) == []
    # in a checkout elsewhere, from whose working directory paths are told, and with names of modules besides
    assert changes(tmp_path, before, holding("you/base", (190, 8), (195, 8), (200, 3))) == []
    elsewhere = holding("src", (191, 8), (196, 8), (201, 3), module="blocks.1", absolute=False)
    assert changes(tmp_path, before, elsewhere) == []
    assert changes(tmp_path, elsewhere, before) == []


def test_a_comparison_with_a_file_without_modules_lists_no_changes_by_module(tmp_path: Path) -> None:
    made = {has: holding("me/project", (190, 8), module=has) for has in ("", "blocks.1")}
    more = {has: holding("me/project", (190, 8), (195, 3), module=has) for has in ("", "blocks.1")}

    def compared(before: str, after: str) -> Report:
        first, second = written(tmp_path / "a", made[before]), written(tmp_path / "b", more[after])
        return compare(read(first), read(second), ("a", "b"))

    for before, after in (("", "blocks.1"), ("blocks.1", ""), ("", "")):
        report = compared(before, after)
        assert [one.key for one in report.tables] == ["by_category", "changes"]
        assert any("not listed by module" in note for note in report.notes) is (before != after)
        assert [row[:3] for row in table(report, "changes").rows] == [("model.py:195", "", "unknown")]
    rows = table(compared("blocks.1", "blocks.1"), "by_module").rows
    assert rows == (("blocks.*", 3 * MIB, 58 * MIB, 61 * MIB, 2, 3),)


def test_of_lines_that_moved_what_changed_is_named(tmp_path: Path) -> None:
    before = holding("me/project", (190, 8), (195, 8), (200, 3))
    smaller = holding("me/project", (191, 8), (196, 4), (201, 3))
    assert changes(tmp_path, before, smaller) == [("model.py:196", "", "unknown", -4 * MIB, 8 * MIB, 4 * MIB)]
    more = holding("me/project", (191, 8), (193, 7), (196, 8), (201, 3))
    assert changes(tmp_path, before, more) == [("model.py:193", "", "unknown", 7 * MIB, 0, 7 * MIB)]
    assert changes(tmp_path, more, before) == [("model.py:193", "", "unknown", -7 * MIB, 7 * MIB, 0)]


def test_a_line_that_moved_to_the_number_of_one_that_changed_is_not_named_for_it(tmp_path: Path) -> None:
    before = holding("me/project", (10, 8), (11, 4))
    after = holding("me/project", (11, 8), (12, 5), (13, 2))
    assert changes(tmp_path, before, after) == [
        ("model.py:12", "", "unknown", 5 * MIB, 0, 5 * MIB),
        ("model.py:11 (before)", "", "unknown", -4 * MIB, 4 * MIB, 0),
        ("model.py:13", "", "unknown", 2 * MIB, 0, 2 * MIB),
    ]
    assert changes(tmp_path, after, before) == [
        ("model.py:12", "", "unknown", -5 * MIB, 5 * MIB, 0),
        ("model.py:11", "", "unknown", 4 * MIB, 0, 4 * MIB),
        ("model.py:13", "", "unknown", -2 * MIB, 2 * MIB, 0),
    ]


def test_layers_of_a_prediction_are_counted_together_with_the_shape_of_what_was_saved(tmp_path: Path) -> None:
    trace = traced_fake(lambda: step(layers=8, width=64), whole=False)
    found = read(write_snapshot(trace, tmp_path / "predicted", time_of=lambda op: 1.0))
    rows = table(summarize(found, "predicted"), "largest").rows
    parameters = next(row for row in rows if row[3] == "parameters")
    assert parameters[:3] == (8, 64 * 64 * 4, 8 * 64 * 64 * 4)
    assert parameters[4:] == ("*", "", "", "parameters in *")
    saved = next(one for one in alike(found.blocks) if one[0].category == "activations")
    assert (len(saved), saved[0].tensor) == (8, "(16, 64) float32")
