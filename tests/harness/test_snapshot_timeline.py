"""The picture of a memory timeline: both stackings add up, and so do the blocks that its page has for pointing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import accumulate, combinations
from math import dist
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.snapshots import page as page_module
from perflab.snapshots import picture as picture_module
from perflab.snapshots.analysis import alive_at, levels, peak_moment
from perflab.snapshots.difference import compare
from perflab.snapshots.model import Snapshot
from perflab.snapshots.page import as_page, page_blocks
from perflab.snapshots.picture import (
    BOTTOM,
    COLORS,
    HEIGHT,
    LARGEST,
    OTHERS,
    REST,
    TOP,
    WIDTH,
    Axes,
    by_category,
    by_largest,
    by_largest_of_both,
    picture,
    thinned,
)
from perflab.snapshots.summary import stage_at, summarize
from perflab.units import BYTES_PER, format_bytes, format_ns
from tests.harness.made_snapshots import MIB, MODEL, TRAIN, Recording, content, of_few_kinds, read, training, written


def drawn_by_category(found: Snapshot) -> str:
    return picture(found, by_category(found), 0)


def decoded(found: dict[str, Any]) -> list[tuple[int, int, int | None, list[int]]]:
    """Of each block its size, when it came and went, and its band in both stackings."""
    blocks = []
    for kind, start, life in zip(found["kind"], accumulate(found["from"]), found["life"], strict=True):
        size, *_, first, second = found["kinds"][kind]
        blocks.append((size, start, start + life if life else None, [first, second]))
    return blocks


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("points", [30, 10_000])
def test_both_stackings_are_equal_to_the_byte_at_every_point(tmp_path: Path, seed: int, points: int) -> None:
    found = read(written(tmp_path / "a.pickle", content(of_few_kinds(seed, 400))))
    level = levels(found)
    ours, theirs = (thinned(found, points, one) for one in (by_category(found), by_largest(found)))
    assert [one[:3] for one in ours] == [one[:3] for one in theirs]
    assert [sum(one.by_band) for one in ours] == [sum(one.by_band) for one in theirs]
    assert [sum(one.by_band) for one in theirs] == [level[one.moment] for one in theirs]
    assert peak_moment(level) in {one.moment for one in theirs}


def test_the_bands_of_the_largest_are_the_rows_of_their_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(written(tmp_path / "a.pickle", content(of_few_kinds(1, 600))))
    (rows,) = [table.rows for table in summarize(found, "a", 5).tables if table.key == "largest"]
    monkeypatch.setattr(picture_module, "MOST_LARGEST", 5)
    stacking, peak = by_largest(found), peak_moment(levels(found))
    (at_peak,) = [one for one in thinned(found, 10_000, stacking) if one.moment == peak]
    assert list(at_peak.by_band) == [row[2] for row in rows]
    assert stacking.names[-1] == REST
    for name, (blocks, size, _, category, _, line, *_) in zip(stacking.names[:-1], rows, strict=False):
        assert isinstance(size, int)
        assert name == f"{blocks} × {format_bytes(size)} {category}, {line}"


def test_where_there_is_nothing_else_there_is_no_band_of_the_rest(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    found = read(written(tmp_path / "a.pickle", content(Recording().alloc(0, MIB, MODEL))))
    assert by_largest(found).names == snapshot
    nothing = read(written(tmp_path / "b.pickle", content(Recording().free(0, MIB, MODEL))))
    assert [sum(one.by_band) for one in thinned(nothing, 10, by_largest(nothing))] == [MIB, 0]


def test_a_band_is_named_with_shape_and_module_where_they_are_known(tmp_path: Path) -> None:
    made = Recording()
    for layer in range(3):
        made.alloc(layer * 64 * MIB, MIB, MODEL)
        made.events[-1] |= {"category": "activations", "module": f"blocks.{layer}.mlp", "tensor": "(512, 512) float32"}
    found = read(written(tmp_path / "a.pickle", content(made)))
    name = "3 × 1.00 MiB activations, (512, 512) float32, in blocks.*.mlp, model.py:190"
    assert by_largest(found).names == (name,)


def test_bands_that_one_line_makes_for_several_callers_are_told_apart(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    helper, other = ("/home/me/project/model.py", 77, "scratch"), ("/home/me/project/train.py", 15, "main")
    library = ("/usr/lib/python3/site-packages/torch/nn/functional.py", 9, "gelu")
    made = Recording()
    for number, stack in enumerate([(helper, TRAIN), (helper, other), (MODEL, TRAIN), (library, helper, TRAIN)]):
        made.alloc(number * 64 * MIB, MIB, *stack)
    made.alloc(9 * 64 * MIB, MIB + 512, helper, TRAIN)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert sorted(by_largest(found).names) == snapshot


def test_alike_blocks_share_a_band_before_and_after_the_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Recording()
    for number in range(6):
        made.alloc(number * 64 * MIB, 3 * MIB, MODEL)
    made.alloc(900 * MIB, MIB, TRAIN)
    for number in range(6):
        made.free(number * 64 * MIB, 3 * MIB)
    made.alloc(0, 3 * MIB, MODEL)
    found = read(written(tmp_path / "a.pickle", content(made)))
    monkeypatch.setattr(picture_module, "MOST_LARGEST", 1)
    stacking = by_largest(found)
    assert list(stacking.band_of) == [0] * 6 + [1, 0]
    assert [one.by_band for one in thinned(found, 100, stacking)][-1] == (3 * MIB, MIB)


@pytest.mark.parametrize("seed", range(3))
def test_the_page_s_blocks_are_all_blocks_and_lie_in_the_bands_that_are_drawn(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(written(tmp_path / "a.pickle", content(of_few_kinds(seed, 500))))
    monkeypatch.setattr(picture_module, "MOST_LARGEST", 4)
    stackings = by_category(found), by_largest(found)
    listed = page_blocks(found, stackings, 0)
    data = json.loads(listed.data)
    blocks = decoded(data)
    assert (len(blocks), listed.left_out) == (len(found.blocks), "")
    assert [one[:3] for one in blocks] == [(one.size_bytes, one.allocated_at, one.freed_at) for one in found.blocks]
    for order, stacking in enumerate(stackings):
        told = data["stackings"][stacking.key]
        for moment, bands in zip(data["shown"], told["bands"], strict=True):
            there = [one for one in blocks if one[1] <= moment and (one[2] is None or one[2] > moment)]
            for band, size in enumerate(bands):
                assert size == sum(one[0] for one in there if one[3][order] == band)
    stages = ["unmarked" if number < 0 else data["texts"][number] for number in data["shown_stage"]]
    assert stages == [stage_at(found, moment) for moment in data["shown"]]
    assert {*stages} == {"unmarked", "forward", "backward", "optimizer"}
    since_first = [time - found.times_ns[0] for time in found.times_ns]
    assert (data["tick_ns"], [1000 * time for time in accumulate(data["times"])]) == (1000, since_first)


def test_the_page_s_times_are_exact_also_where_a_recording_has_nanoseconds(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"schema": 1, "events": [[5_000, 100], [6_999, 50], [12_345, -100], [7_000_001, 9]]}))
    found = read(path)
    data = json.loads(page_blocks(found, (by_category(found),), 0).data)
    since_first = [0, 1_999, 7_345, 6_995_001]
    assert [data["tick_ns"] * time for time in accumulate(data["times"])] == since_first
    assert [data["tick_ns"] * time for time in data["shown_times"]] == [
        [0, *since_first][moment] for moment in data["shown"]
    ]


def test_a_page_without_room_for_all_blocks_keeps_those_at_the_peak_and_counts_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(page_module, "MOST_CHARACTERS", 12_000)
    monkeypatch.setattr(page_module, "MOST_MOMENTS", 1000)
    found = read(written(tmp_path / "a.pickle", content(of_few_kinds(3, 2000, 2))))
    listed = page_blocks(found, (by_category(found), by_largest(found)), 0)
    blocks = decoded(json.loads(listed.data))
    peak = peak_moment(levels(found))
    assert sum(one[0] for one in blocks if one[1] <= peak and (one[2] is None or one[2] > peak)) == max(levels(found))
    assert len(alive_at(found, peak)) < len(blocks) == listed.listed < len(found.blocks)
    assert len(listed.data) < 60_000
    missing = len(found.blocks) - len(blocks)
    assert listed.left_out.startswith(f"{missing:,} of {len(found.blocks):,} blocks, of ")
    assert "alive at the peak" not in listed.left_out
    assert listed.left_out.partition(" With ")[2] == snapshot


def test_where_there_is_no_room_for_the_blocks_of_the_peak_the_note_says_what_they_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "MOST_CHARACTERS", 1500)
    found = read(written(tmp_path / "a.pickle", content(of_few_kinds(3, 2000, 2))))
    at_peak = alive_at(found, peak_moment(levels(found)))
    listed = page_blocks(found, (by_category(found), by_largest(found)), 0)
    sizes = sorted((one[0] for one in decoded(json.loads(listed.data))), reverse=True)
    assert 0 < len(sizes) < len(at_peak)
    assert sizes == sorted((one.size_bytes for one in at_peak), reverse=True)[: len(sizes)]
    lacks = format_bytes(max(levels(found)) - sum(sizes))
    assert f" {len(at_peak) - len(sizes):,} of them, {lacks}, are alive at the peak." in listed.left_out


def test_the_axis_says_moments_and_when_they_were(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    found = read(written(tmp_path / "a.pickle", content(training(3))))
    labels = re.findall(r'<text class="moment"[^>]*>([^<]*)</text>', drawn_by_category(found))
    moments, times, (name,) = labels[:-1:2], labels[1:-1:2], labels[-1:]
    assert name == snapshot
    assert moments == [str(number) for number in range(0, 19, 2)]
    assert times == [format_ns(found.times_ns[max(int(one) - 1, 0)] - found.times_ns[0]) for one in moments]
    without = drawn_by_category(replace(found, times_ns=()))
    assert "allocations and frees so far; the file has no times</text>" in without


@pytest.mark.parametrize("moments", [1, 10, 1000, 100_000, 1_000_000])
def test_every_label_of_the_axis_is_within_the_picture(moments: int) -> None:
    found = Snapshot("made", "cuda:0", (), (), moments)
    letter = 7.7  # pixels at most of a digit, whatever the font of 12 pixels
    for place, label in re.findall(r'<text class="moment" x="([^"]*)"[^>]*>([\d,]+)</text>', drawn_by_category(found)):
        assert letter * len(label) / 2 <= float(place) <= WIDTH - letter * len(label) / 2, label


def test_a_page_of_one_block_says_so(tmp_path: Path) -> None:
    found = read(written(tmp_path / "a.pickle", content(Recording().alloc(0, MIB, MODEL))))
    assert "Search 1 block, or click" in as_page(summarize(found, "a"), [("a", found)])


def test_the_picture_reaches_its_peak_and_no_further(tmp_path: Path) -> None:
    found = read(written(tmp_path / "a.pickle", content(of_few_kinds(4, 5000))))
    level = levels(found)
    axes = Axes(found.moments, max(level))
    for stacking in (by_category(found), by_largest(found)):
        corners = re.findall(r"[\d.]+,([\d.]+)", " ".join(re.findall(r'points="([^"]*)"', picture(found, stacking, 0))))
        assert min(map(float, corners)) == axes.y(max(level)) >= TOP
        assert max(map(float, corners)) == HEIGHT - BOTTOM


def lab_of(colour: str) -> tuple[float, float, float]:
    """CIE 1976 L*a*b* of an sRGB colour, white D65: distances in it are those that are seen."""
    values = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in values)
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883
    x, y, z = (one ** (1 / 3) if one > 216 / 24389 else (24389 / 27 * one + 16) / 116 for one in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize(
    "together", [(*LARGEST, COLORS["unknown"]), (*COLORS.values(), *OTHERS)], ids=["largest", "category"]
)
def test_all_colours_of_a_picture_are_told_apart_by_eye(together: tuple[str, ...]) -> None:
    least = min((dist(lab_of(one), lab_of(other)), one, other) for one, other in combinations(together, 2))
    assert least[0] > 15, least  # 2 is just seen beside each other


def in_line(line: int, size: int, many: int = 1, more: int = 0) -> Recording:
    """A line asks for blocks of so many MiB, and ``train.py`` for one more; other lines for a smaller one each."""
    made = Recording()
    for number in range(many):
        made.alloc(number * 64 * MIB, size * MIB, ("/home/me/project/model.py", line, "forward"), TRAIN)
    for number in range(more):
        made.alloc((500 + number) * 64 * MIB, 512, (f"/home/me/project/more{number}.py", number + 1, "more"), TRAIN)
    return made.alloc(9000 * MIB, 10 * MIB, TRAIN)


def drawn_pair(before: Snapshot, after: Snapshot) -> list[dict[str, list[str]]]:
    """Of both pictures of a comparison: sizes on the axis, colours and groups in the legend, heights of the peaks."""
    page = as_page(compare(before, after, ("a", "b")), [("a", before), ("b", after)])
    found = []
    for part in re.split('<div class="by-largest">', page)[1:]:
        svg, legend = part.split("</svg>", 1)
        legend = legend.split("</ul>")[0]
        found.append(
            {
                "axis": re.findall(r'<text class="size"[^>]*>([^<]*)<', svg),
                "peak": re.findall(r'<circle class="peak"[^>]* cy="([^"]*)"', svg),
                "bands": re.findall('<polygon fill="([^"]*)"', svg),
                "colours": re.findall('fill="([^"]*)"', legend),
                "groups": [re.sub(r"^[\d,]+ × ", "", one) for one in re.findall("</svg>([^<]*)</li>", legend)],
                "counts": re.findall(r"</svg>([\d,]+) ×", legend),
            }
        )
    return found


def test_two_pictures_of_a_comparison_have_one_axis_and_the_same_colours(tmp_path: Path) -> None:
    before, after = in_line(190, 2), in_line(195, 2, many=20)  # 12 and 50 MiB; the line moved
    first, second = (read(written(tmp_path / name, content(made))) for name, made in (("a", before), ("b", after)))
    one, other = drawn_pair(first, second)
    assert one["axis"] == other["axis"]
    axes = Axes(first.moments, 50 * MIB)
    assert [float(picture["peak"][0]) for picture in (one, other)] == [axes.y(12 * MIB), axes.y(50 * MIB)]
    assert one["groups"] == other["groups"] == ["2.00 MiB unknown, model.py:195", "10.0 MiB unknown, train.py:12"]
    assert one["colours"] == other["colours"] == one["bands"] == other["bands"] == [*LARGEST[:2]]
    assert (one["counts"], other["counts"]) == (["1", "1"], ["20", "1"])


def test_the_groups_of_two_pictures_are_the_largest_of_either_and_both_add_up(tmp_path: Path) -> None:
    first, second = (
        read(written(tmp_path / name, content(made)))
        for name, made in (("a", in_line(190, 30, more=14)), ("b", in_line(190, 3, many=2)))
    )
    stackings = by_largest_of_both(first, second)
    names = [[re.sub(r"^[\d,]+ × ", "", name) for name in one.names] for one in stackings]
    assert names[0] == names[1]
    assert names[0][:3] == [
        f"{size} unknown, {line}"
        for size, line in (("30.0 MiB", "model.py:190"), ("10.0 MiB", "train.py:12"), ("3.00 MiB", "model.py:190"))
    ]
    assert (len(names[0]), names[0][-1]) == (13, REST)
    assert [one.names[2][0] for one in stackings] == ["0", "2"]
    for snapshot, stacking in zip((first, second), stackings, strict=True):
        points = thinned(snapshot, 10_000, stacking)
        assert [sum(point.by_band) for point in points] == list(levels(snapshot))
        peak = points[peak_moment(levels(snapshot))].by_band
        said = [re.match(r"([\d,]+) × ([\d.]+) (\w+)", name) for name in stacking.names[:-1]]
        assert [format_bytes(size) for size in peak[:-1]] == [
            format_bytes(int(one[1]) * round(float(one[2]) * BYTES_PER[one[3]])) for one in said if one
        ]
