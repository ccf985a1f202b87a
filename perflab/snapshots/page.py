"""Renders a report as one HTML page with pictures, which loads nothing and runs only perflab's own script. Pure.

The script shows the block under the pointer, and searches. A block is three numbers: its kind, the moment of its
allocation and its lifetime. Each kind is written once, and so is each text that kinds share.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perflab.page import table as pages
from perflab.page.charts import element
from perflab.page.render import render
from perflab.snapshots.analysis import levels, lines_in, once_a_stack, peak_moment, shown_stack
from perflab.snapshots.model import Snapshot
from perflab.snapshots.picture import (
    BOTTOM,
    HEIGHT,
    LEFT,
    POINTS,
    REST,
    RIGHT,
    TOP,
    WIDTH,
    Axes,
    Stacking,
    by_category,
    by_largest,
    by_largest_of_both,
    color_of,
    picture,
    thinned,
)
from perflab.snapshots.report import Report, Table, shown
from perflab.tables.escaping import one_line
from perflab.tables.lines import cut
from perflab.units import format_bytes


def as_page(report: Report, pictured: Sequence[tuple[str, Snapshot]]) -> str:
    """Return a report and its pictures as one HTML page.

    Args:
        report: the facts, tables and notes.
        pictured: the snapshots whose timelines are drawn, each with a title. Two snapshots share the scale of bytes and
            the meaning of colours.
    """
    snapshots = [one for _, one in pictured]
    highest_bytes = max((max(levels(one)) for one in snapshots), default=0)
    largest = by_largest_of_both(snapshots[0], snapshots[1]) if len(snapshots) == 2 else map(by_largest, snapshots)
    views = []
    for (title, snapshot), groups in zip(pictured, largest, strict=True):
        stackings = {"category": by_category(snapshot), "largest allocations at the peak": groups}
        stacked = [
            dict(
                key=one.key,
                title=name,
                svg=Markup(picture(snapshot, one, highest_bytes)),
                legend=[(_square(color_of(one, number)), band) for number, band in enumerate(one.names)],
            )
            for name, one in stackings.items()
        ]
        blocks = page_blocks(snapshot, [*stackings.values()], highest_bytes)
        views.append(dict(title=title, stacked=stacked, blocks=blocks, moments=snapshot.moments))
    return render(
        "snapshot.html",
        script="timeline.js",
        report=report,
        pictured=views,
        facts=[(fact.title, shown(fact.value, fact.kind)) for fact in report.facts],
        tables=[(table, _table(table)) for table in report.tables],
    )


def _square(color: str) -> Markup:
    return element("svg", [element("rect", width=11, height=11, fill=color)], viewBox="0 0 11 11", aria_hidden="true")


def _table(table: Table) -> pages.PageTable:
    columns = [pages.Column(column.title, number=column.kind != "text") for column in table.columns]
    rows = [
        pages.Row(
            [
                pages.Cell(shown(value, column.kind), number=column.kind != "text")
                for value, column in zip(row, table.columns, strict=True)
            ]
        )
        for row in table.rows
    ]
    return pages.PageTable(columns, rows)


MOST_CHARACTERS = 2_800_000
"""The most characters of a picture's blocks; with bands and times, the page stays below 5 MB."""
MOST_MOMENTS = 150_000
"""The most moments whose times are all written; with more, only the moments that the picture shows have times."""
_LONGEST = 300
"""The most characters of a text."""
_OF_A_BLOCK = 18
"""The most characters that a block takes, unless its kind or one of its texts is new."""
_OF_A_KIND = 48


@dataclass(frozen=True)
class PageBlocks:
    """The blocks of a snapshot that a page contains."""

    data: Markup
    """JSON that is safe inside a ``<script>``."""
    listed: int
    left_out: str
    """Sentences on the blocks and times for which the page has no room; empty: the page has all."""


def page_blocks(snapshot: Snapshot, stackings: Sequence[Stacking], highest_bytes: int) -> PageBlocks:
    """Return the blocks for hover and search: all, or as many as fit, those alive at the peak and the largest first.

    Args:
        snapshot: the recording.
        stackings: the ways in which the recording's picture is stacked.
        highest_bytes: the value up to which the picture's axis reaches, if higher than the peak.
    """
    listing = _Listing(snapshot, stackings)
    kept = listing.kept()
    blocks = [snapshot.blocks[number] for number in kept]
    level = levels(snapshot)
    points = [thinned(snapshot, POINTS, one) for one in stackings]
    top = Axes(snapshot.moments, max(level[peak_moment(level)], highest_bytes, 1)).top
    kinds = [listing.kind(number) for number in kept]
    shown = [point.moment for point in points[0]]
    stages = listing.stages(shown)
    times = [time - snapshot.times_ns[0] for time in snapshot.times_ns]
    tick_ns = 1 if any(time % 1000 for time in times) else 1000  # PyTorch's own times are whole microseconds
    content = {
        "frame": {"left": LEFT, "top": TOP, "width": WIDTH - LEFT - RIGHT, "height": HEIGHT - TOP - BOTTOM},
        "top_bytes": top,
        "moments": snapshot.moments,
        "blocks": len(snapshot.blocks),
        "texts": list(listing.texts),
        "kinds": list(listing.kinds),
        "kind": kinds,
        "from": _steps([block.allocated_at for block in blocks]),
        "life": [0 if block.freed_at is None else block.freed_at - block.allocated_at for block in blocks],
        "width": points[0][0].end + 1,
        "shown": shown,
        "shown_stage": stages,
        "tick_ns": tick_ns,
        "times": _steps([time // tick_ns for time in times]) if len(times) <= MOST_MOMENTS else [],
        "shown_times": [times[moment - 1] // tick_ns if moment else 0 for moment in shown] if times else [],
        "stackings": {
            one.key: {
                "names": [_short(name) for name in one.names],
                "counted": sum(name != REST for name in one.names) if one.key == "largest" else 0,
                "bands": [point.by_band for point in found],
            }
            for one, found in zip(stackings, points, strict=True)
        },
    }
    return PageBlocks(Markup(_json(content)), len(kept), _left_out(snapshot, kept, is_timed=bool(content["times"])))


def _json(content: object) -> str:
    """Return content as ASCII JSON without ``<``, so that nothing in the JSON ends a ``<script>``."""
    return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def _steps(values: Sequence[int]) -> list[int]:
    return [value - before for before, value in zip([0, *values], values, strict=False)]


def _short(text: str) -> str:
    return cut(one_line(text), _LONGEST)


def _left_out(snapshot: Snapshot, kept: Sequence[int], *, is_timed: bool) -> str:
    told = []
    if len(kept) < len(snapshot.blocks):
        there, peak = {*kept}, peak_moment(levels(snapshot))
        missing = [block for number, block in enumerate(snapshot.blocks) if number not in there]
        at_peak = [block.size_bytes for block in missing if block.is_there(peak)]
        told.append(
            f"{len(missing):,} of {len(snapshot.blocks):,} blocks, of "
            f"{format_bytes(max(block.size_bytes for block in missing))} at most, are in the "
            "picture alone: the page has no room for all of them in its search."
            + (f" {len(at_peak):,} of them, {format_bytes(sum(at_peak))}, are alive at the peak." if at_peak else "")
        )
    if len(snapshot.times_ns) and not is_timed:
        told.append(
            f"With more than {MOST_MOMENTS:,} allocations and frees, the list of blocks has moments and no times."
        )
    return " ".join(told)


class _Listing:
    """Numbers texts and kinds, in the order in which they are first requested."""

    def __init__(self, snapshot: Snapshot, stackings: Sequence[Stacking]) -> None:
        self.snapshot, self.stackings = snapshot, stackings
        self.line = lines_in(snapshot)
        self.texts: dict[str, int] = {}
        self.kinds: dict[tuple[int, ...], int] = {}
        self.stack = once_a_stack(lambda stack: self._text(shown_stack(stack)))
        self.characters = 0

    def kept(self) -> list[int]:
        """Return the numbers of the blocks that fit, in order of allocation."""
        found: list[int] = []
        blocks, peak = self.snapshot.blocks, peak_moment(levels(self.snapshot))
        most_important_first = sorted(
            range(len(blocks)), key=lambda number: (not blocks[number].is_there(peak), -blocks[number].size_bytes)
        )
        for number in most_important_first:
            self.kind(number)
            self.characters += _OF_A_BLOCK
            if self.characters > MOST_CHARACTERS:
                break
            found.append(number)
        return sorted(found, key=lambda number: (blocks[number].allocated_at, number))

    def kind(self, number: int) -> int:
        """Return the number of a block's kind: its size, texts, call stack and bands."""
        block = self.snapshot.blocks[number]
        key = (
            block.size_bytes,
            *(self._text(text) for text in (block.category, block.tensor, block.module, self.line(block.stack))),
            self.stack(block.stack),
            *(stacking.band_of[number] for stacking in self.stackings),
        )
        known = self.kinds.get(key)
        if known is None:
            known = self.kinds[key] = len(self.kinds)
            self.characters += _OF_A_KIND
        return known

    def stages(self, moments: Sequence[int]) -> list[int]:
        """Return the text number of each moment's stage; -1 for a moment outside of all stages."""
        found, starts = [], [stage.start for stage in self.snapshot.stages]
        for moment in moments:
            number = bisect_left(starts, moment) - 1
            is_within = number >= 0 and moment <= self.snapshot.stages[number].end
            found.append(self._text(self.snapshot.stages[number].name) if is_within else -1)
        return found

    def _text(self, text: str) -> int:
        known = self.texts.get(text := _short(text))
        if known is None:
            known = self.texts[text] = len(self.texts)
            self.characters += len(_json(text)) + 1
        return known
