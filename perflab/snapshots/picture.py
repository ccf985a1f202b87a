"""The timeline of live bytes, split into bands and drawn as SVG. Pure; no script, no network.

Bands are categories, or the largest allocations at the peak. Each block is in one band, so at every moment the bands
add up to the live bytes, whichever way they are stacked.

The horizontal axis counts allocations and frees: each takes the same width, whatever its duration. Times are written
below the axis. If there are more than ``POINTS`` moments, each stretch of moments is drawn at its highest moment.
"""

from __future__ import annotations

import html
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from perflab.base.grouping import groups_of
from perflab.page.charts import ticks
from perflab.snapshots import analysis
from perflab.snapshots.difference import lines_of_both
from perflab.snapshots.model import Block, Snapshot
from perflab.tables.escaping import one_line
from perflab.units import BYTES_PER, format_bytes, format_ns

MOST_LARGEST = 12
"""The most bands for blocks of one size and stack, as more colours cannot be distinguished; the rest is one band."""
REST = "all other blocks"


class Stacking(NamedTuple):
    """The names of a picture's bands, from the bottom up, and the band of each block."""

    key: str
    """The way of stacking: ``category`` or ``largest``."""
    names: tuple[str, ...]
    band_of: Sequence[int]
    """The band of each of the snapshot's blocks, in the order of the blocks."""


class Point(NamedTuple):
    """A stretch of moments in a picture, drawn at the moment of the stretch at which the most bytes are alive."""

    start: int
    end: int
    """The last moment of the stretch."""
    moment: int
    by_band: tuple[int, ...]
    """Live bytes at ``moment``, in the order of the stacking's names."""


def by_category(snapshot: Snapshot) -> Stacking:
    """Return a stacking with one band for each category."""
    names = tuple(analysis.categories_of(snapshot))
    number = {name: position for position, name in enumerate(names)}
    return Stacking("category", names, array("i", (number[block.category] for block in snapshot.blocks)))


def by_largest(snapshot: Snapshot) -> Stacking:
    """Return a stacking by the largest groups of blocks of one size and stack at the peak, with a band for the rest."""
    found, key = (
        analysis.alike(analysis.alive_at(snapshot, analysis.peak_moment(analysis.levels(snapshot))))[:MOST_LARGEST],
        analysis.alike_keys(),
    )
    line = analysis.lines_in(snapshot)
    number = {key(one[0]): position for position, one in enumerate(found)}
    bands = array("i", (number.get(key(block), len(found)) for block in snapshot.blocks))
    rest = (REST,) if len(found) in bands or not found else ()
    named, differences = [], []
    for one in found:
        first = one[0]
        named.append(
            _band(first.size_bytes, first.category, first.tensor, analysis.shared_module(one), line(first.stack))
        )
        calls = (f" < {call}" for call in analysis.other_calls(first.stack))
        differences.append([f", {first.size_bytes:,} B each", *calls])
    names = told_apart(named, differences)
    counted = (f"{len(one):,} × {name}" for one, name in zip(found, names, strict=True))
    return Stacking("largest", (*counted, *rest), bands)


def _band(size_bytes: int, category: str, tensor: str, module: str, line: str) -> str:
    about = (f"{format_bytes(size_bytes)} {category}", tensor, module and f"in {module}", line)
    return ", ".join(text for text in about if text)


def told_apart(names: Sequence[str], differences: Sequence[Sequence[str]]) -> list[str]:
    """Return the names; equal names get the first of their ``differences`` that differ appended, and more if needed."""
    found = list(names)
    for place in range(max(map(len, differences), default=0)):
        for numbers in groups_of(range(len(found)), found.__getitem__).values():
            more = ["".join(differences[number][place : place + 1]) for number in numbers]
            if len({*more}) > 1:
                for number, text in zip(numbers, more, strict=True):
                    found[number] += text
    return found


_Shared = tuple[int, str, str, str, str]
"""Size, category, shape, module and line of blocks that two snapshots may both have."""


def by_largest_of_both(before: Snapshot, after: Snapshot) -> tuple[Stacking, Stacking]:
    """Return two snapshots' stackings with the same bands: the largest groups of either peak, and one for the rest.

    Blocks are alike if they have one size and one row in a comparison, because stacks of two commits are never equal.
    """
    both = before, after
    at_peak = [analysis.alive_at(one, analysis.peak_moment(analysis.levels(one))) for one in both]
    has_modules, has_tensors = (
        all(any(map(has, ones)) for ones in at_peak) for has in map(attrgetter, ("module", "tensor"))
    )

    def keyed(line: analysis.Line) -> Callable[[Block], _Shared]:
        def key(block: Block) -> _Shared:
            tensor, module = block.tensor if has_tensors else "", analysis.module_of(block) if has_modules else ""
            return block.size_bytes, block.category, tensor, module, line(block.stack)

        return key

    keys = [keyed(line) for line in lines_of_both(at_peak[0], at_peak[1], both)]
    counts = [Counter(map(key, ones)) for key, ones in zip(keys, at_peak, strict=True)]
    by_size = sorted(counts[0] | counts[1], key=lambda key: -key[0] * max(count[key] for count in counts))
    largest = by_size[:MOST_LARGEST]
    number = {key: position for position, key in enumerate(largest)}
    bands = [
        array("i", (number.get(key(block), len(largest)) for block in snapshot.blocks))
        for key, snapshot in zip(keys, both, strict=True)
    ]
    rest = (REST,) if any(len(largest) in one for one in bands) or not largest else ()
    names = told_apart([_band(*key) for key in largest], [[f", {key[0]:,} B each"] for key in largest])
    first, second = (
        Stacking(
            "largest", (*(f"{count[key]:,} × {name}" for key, name in zip(largest, names, strict=True)), *rest), one
        )
        for count, one in zip(counts, bands, strict=True)
    )
    return first, second


def thinned(snapshot: Snapshot, points: int, stacking: Stacking) -> list[Point]:
    """Reduce the timeline to at most ``points`` stretches, each drawn at its highest moment, so that the peak is kept.

    The chosen moments do not depend on the stacking.
    """
    columns = [array("q", bytes(8 * (snapshot.moments + 1))) for _ in stacking.names]
    for block, band in zip(snapshot.blocks, stacking.band_of, strict=True):
        columns[band][block.allocated_at] += block.size_bytes
        if block.freed_at is not None:
            columns[band][block.freed_at] -= block.size_bytes
    width = max(1, -(-(snapshot.moments + 1) // points))
    now, found = [0] * len(columns), list[Point]()
    for start in range(0, snapshot.moments + 1, width):
        end = min(start + width, snapshot.moments + 1)
        best, best_moment, best_level = tuple(now), start, -1
        for moment in range(start, end):
            for number, column in enumerate(columns):
                if column[moment]:
                    now[number] += column[moment]
            if (level := sum(now)) > best_level:
                best, best_moment, best_level = tuple(now), moment, level
        found.append(Point(start, end - 1, best_moment, best))
    return found


WIDTH, HEIGHT = 1100, 440
LEFT, RIGHT, TOP, BOTTOM = 92, 40, 44, 60
POINTS = 500
"""The most stretches of moments that are drawn; each takes about two pixels."""
COLORS = {
    "parameters": "#4e79a7",
    "buffers": "#9c755f",
    "gradients": "#e15759",
    "optimizer state": "#b07aa1",
    "inputs": "#76b7b2",
    "gathered": "#ff9da7",
    "activations": "#f28e2b",
    "temporaries": "#edc948",
    "workspace": "#59a14f",
    "unknown": "#8d99a6",
}
OTHERS = ("#b2df8a", "#d37295", "#a0cbe8")
"""Colours of categories that perflab does not define."""
LARGEST = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948"),
    *("#b07aa1", "#9c755f", "#ff9da7", "#b2df8a", "#d37295", "#a0cbe8"),
)
"""Colours of the largest groups, in the order of the groups."""
MOST_EDGES = 120
"""The most lines between stages that are drawn; if there are more, none are drawn."""
_THINNEST = 0.5
"""The least width of a stage that is shaded, in pixels."""
_NARROWEST = 34
"""The least width of a stage whose name is written, in pixels."""


def color_of(stacking: Stacking, number: int) -> str:
    """Return the colour of a band; a category has the same colour in each picture."""
    name = stacking.names[number]
    if stacking.key == "category":
        return COLORS.get(name) or OTHERS[sum(map(ord, name)) % len(OTHERS)]
    return COLORS["unknown"] if name == REST else LARGEST[number % len(LARGEST)]


def picture(snapshot: Snapshot, stacking: Stacking, highest_bytes: int) -> str:
    """Return the timeline as an SVG element.

    Args:
        snapshot: the recording.
        stacking: the bands of the picture.
        highest_bytes: the value up to which the axis reaches, if higher than the peak: the peak of a picture beside
            this one.
    """
    level = analysis.levels(snapshot)
    peak = analysis.peak_moment(level)
    points = thinned(snapshot, POINTS, stacking)
    axes = Axes(snapshot.moments, max(level[peak], highest_bytes, 1))
    text = f"Live bytes over {snapshot.moments:,} allocations and frees; peak {format_bytes(level[peak])}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_escaped(text)}">',
        *axes.stages(snapshot),
        *axes.drawn(snapshot),
        *(axes.area(points, number, stacking) for number in range(len(stacking.names))),
        *(f'<line class="edge" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' for x in axes.edges(snapshot)),
        *axes.marked(peak, level[peak]),
        "</svg>",
    ]
    return "\n".join(parts)


def _escaped(text: str) -> str:
    return html.escape(one_line(text))


class Axes:
    """The coordinates of moments and bytes in the picture, and the parts that are drawn along the axes."""

    def __init__(self, moments: int, highest: int) -> None:
        self.moments, self.highest = moments, highest
        self.step = _step(highest)
        self.top = -(-highest // self.step) * self.step

    def x(self, moment: float) -> float:
        """Return the x coordinate of a moment's left edge."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * moment / (self.moments + 1), 2)

    def y(self, size: int) -> float:
        """Return the y coordinate of a number of bytes."""
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / self.top, 2)

    def stages(self, snapshot: Snapshot) -> Iterator[str]:
        """Yield the stages as shaded stretches with names above."""
        for number, stage in enumerate(snapshot.stages):
            # The moment n stands between n and n + 1 on the axis: a stage begins with its first allocation or free.
            left, right = self.x(stage.start + 1), self.x(stage.end + 1)
            if right - left < _THINNEST:
                continue
            name = _escaped(stage.name)
            yield (
                f'<rect class="stage{number % 2}" x="{left}" y="{TOP}" width="{round(right - left, 2)}" '
                f'height="{HEIGHT - TOP - BOTTOM}"><title>{name}</title></rect>'
            )
            if right - left >= _NARROWEST:
                letters = max(3, int((right - left) / 7))
                short = stage.name if len(stage.name) <= letters else stage.name[: letters - 1] + "…"
                yield f'<text class="stage" x="{round((left + right) / 2, 2)}" y="{TOP - 6}">{_escaped(short)}</text>'

    def edges(self, snapshot: Snapshot) -> list[float]:
        """Return the x coordinates at which stages begin and end; none if there are more than ``MOST_EDGES``."""
        places = sorted({self.x(moment + 1) for stage in snapshot.stages for moment in (stage.start, stage.end)})
        return places if len(places) <= MOST_EDGES else []

    def drawn(self, snapshot: Snapshot) -> Iterator[str]:
        """Yield grid and labels: bytes at the left, moments and their times below."""
        for size in range(0, self.top + 1, self.step):
            y = self.y(size)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text class="size" x="{LEFT - 8}" y="{y + 4}">{format_bytes(size)}</text>'
        bottom = HEIGHT - BOTTOM
        for moment in sorted({int(tick) for tick in ticks(0, self.moments, 10)}):
            x = self.x(moment + 0.5)
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 5}"/>'
            yield f'<text class="moment" x="{x}" y="{bottom + 18}">{moment:,}</text>'
            elapsed = analysis.elapsed_ns(snapshot, moment)
            if elapsed is not None:
                yield f'<text class="moment" x="{x}" y="{bottom + 34}">{format_ns(elapsed)}</text>'
        below = "time since the first of them" if len(snapshot.times_ns) else "the file has no times"
        middle = (LEFT + WIDTH - RIGHT) // 2
        yield f'<text class="moment" x="{middle}" y="{HEIGHT - 6}">allocations and frees so far; {below}</text>'

    def area(self, points: Sequence[Point], number: int, stacking: Stacking) -> str:
        """Return one band as a polygon."""
        upper, lower = list[tuple[float, float]](), list[tuple[float, float]]()
        for point in points:
            left, right = self.x(point.start), self.x(point.end + 1)
            below = sum(point.by_band[:number])
            for line, size in ((upper, below + point.by_band[number]), (lower, below)):
                y = self.y(size)
                # While the level is unchanged, the line is extended without a corner.
                if line and line[-1][1] == y:
                    line[-1] = right, y
                else:
                    line += [(left, y), (right, y)]
        outline = " ".join(f"{x},{y}" for x, y in [*upper, *reversed(lower)])
        name = _escaped(stacking.names[number])
        return f'<polygon fill="{color_of(stacking, number)}" points="{outline}"><title>{name}</title></polygon>'

    def marked(self, moment: int, size: int) -> Iterator[str]:
        """Yield the mark of the peak: a line, a dot and a label."""
        x, y = self.x(moment + 0.5), self.y(size)
        anchor = "end" if x > WIDTH / 2 else "start"
        yield f'<line class="peak" x1="{x}" x2="{x}" y1="{y}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<circle class="peak" cx="{x}" cy="{y}" r="4"/>'
        yield (
            f'<text class="peak" x="{x + (-8 if anchor == "end" else 8)}" y="{TOP - 24}" text-anchor="{anchor}">'
            f"peak {format_bytes(size)} at moment {moment:,}</text>"
        )


def _step(highest: int) -> int:
    """Return the bytes between lines of the grid: 1, 2 or 5 times a power of ten of the unit that fits, six at most."""
    unit = max((size for size in BYTES_PER.values() if size <= highest), default=1)
    step = unit
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        step = unit * factor
        if highest <= 6 * step:
            break
    return step
