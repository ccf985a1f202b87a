"""The timeline of live bytes as SVG: bands on each other, stages shaded, the peak marked. Pure; no script, no network.

The horizontal axis counts allocations and frees, so each of them has the same room, however long it took; times stand
below. Where there are more than pixels, the highest moment of each stretch stands for it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from perflab.page.svg import ticks
from perflab.report.escaping import one_line
from perflab.snapshots.analysis import levels, peak_moment
from perflab.snapshots.model import Snapshot
from perflab.snapshots.timeline import REST, Point, Stacking, elapsed_ns, thinned
from perflab.units import BYTES_PER, format_bytes, format_ns

WIDTH, HEIGHT = 1100, 440
LEFT, RIGHT, TOP, BOTTOM = 92, 40, 44, 60
POINTS = 500
"""Stretches that are drawn: two pixels each."""
COLORS = {
    "parameters": "#4e79a7",
    "buffers": "#9c755f",
    "gradients": "#e15759",
    "optimizer state": "#b07aa1",
    "inputs": "#76b7b2",
    "activations": "#f28e2b",
    "temporaries": "#edc948",
    "workspace": "#59a14f",
    "unknown": "#8d99a6",
}
OTHERS = ("#ff9da7", "#b2df8a", "#d37295", "#a0cbe8")
"""Colours of categories that are not ours."""
LARGEST = (
    *("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948"),
    *("#b07aa1", "#9c755f", "#ff9da7", "#b2df8a", "#d37295", "#a0cbe8"),
)
"""Colours of the largest groups, in their order."""
MOST_EDGES = 120
"""Lines between stages that are drawn."""
_THINNEST = 0.5
"""Pixels of a stage that is shaded."""
_NARROWEST = 34
"""Pixels of a stage whose name is written."""


def color_of(stacking: Stacking, number: int) -> str:
    """A band's colour: a category's is the same in each picture."""
    name = stacking.names[number]
    if stacking.key == "category":
        return COLORS.get(name) or OTHERS[sum(map(ord, name)) % len(OTHERS)]
    return COLORS["unknown"] if name == REST else LARGEST[number % len(LARGEST)]


def picture(snapshot: Snapshot, stacking: Stacking, highest_bytes: int) -> str:
    """The SVG element.

    Args:
        snapshot: the recording.
        stacking: its bands.
        highest_bytes: what the axis has room for, if that is more than the peak: that of a picture beside it.
    """
    level = levels(snapshot)
    peak = peak_moment(level)
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
    """Where moments and bytes lie in the picture."""

    def __init__(self, moments: int, highest: int) -> None:
        self.moments, self.highest = moments, highest
        self.step = _step(highest)
        self.top = -(-highest // self.step) * self.step

    def x(self, moment: float) -> float:
        """Of a moment's left edge."""
        return round(LEFT + (WIDTH - LEFT - RIGHT) * moment / (self.moments + 1), 2)

    def y(self, size: int) -> float:
        """Of so many bytes."""
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / self.top, 2)

    def stages(self, snapshot: Snapshot) -> Iterator[str]:
        """Shaded stretches with their names above."""
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
        """Where stages begin and end, unless they are too many to be told apart."""
        places = sorted({self.x(moment + 1) for stage in snapshot.stages for moment in (stage.start, stage.end)})
        return places if len(places) <= MOST_EDGES else []

    def drawn(self, snapshot: Snapshot) -> Iterator[str]:
        """Bytes on the left; below it moments, and when they were."""
        for size in range(0, self.top + 1, self.step):
            y = self.y(size)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text class="size" x="{LEFT - 8}" y="{y + 4}">{format_bytes(size)}</text>'
        bottom = HEIGHT - BOTTOM
        for moment in sorted({int(tick) for tick in ticks(0, self.moments, 10)}):
            x = self.x(moment + 0.5)
            yield f'<line class="grid" x1="{x}" x2="{x}" y1="{bottom}" y2="{bottom + 5}"/>'
            yield f'<text class="moment" x="{x}" y="{bottom + 18}">{moment:,}</text>'
            elapsed = elapsed_ns(snapshot, moment)
            if elapsed is not None:
                yield f'<text class="moment" x="{x}" y="{bottom + 34}">{format_ns(elapsed)}</text>'
        below = "time since the first of them" if len(snapshot.times_ns) else "the file has no times"
        middle = (LEFT + WIDTH - RIGHT) // 2
        yield f'<text class="moment" x="{middle}" y="{HEIGHT - 6}">allocations and frees so far; {below}</text>'

    def area(self, points: Sequence[Point], number: int, stacking: Stacking) -> str:
        """One band."""
        upper, lower = list[tuple[float, float]](), list[tuple[float, float]]()
        for point in points:
            left, right = self.x(point.start), self.x(point.end + 1)
            below = sum(point.by_band[:number])
            for line, size in ((upper, below + point.by_band[number]), (lower, below)):
                y = self.y(size)
                # Where nothing rises or falls the line goes on, with no corner.
                if line and line[-1][1] == y:
                    line[-1] = right, y
                else:
                    line += [(left, y), (right, y)]
        outline = " ".join(f"{x},{y}" for x, y in [*upper, *reversed(lower)])
        name = _escaped(stacking.names[number])
        return f'<polygon fill="{color_of(stacking, number)}" points="{outline}"><title>{name}</title></polygon>'

    def marked(self, moment: int, size: int) -> Iterator[str]:
        """The peak."""
        x, y = self.x(moment + 0.5), self.y(size)
        anchor = "end" if x > WIDTH / 2 else "start"
        yield f'<line class="peak" x1="{x}" x2="{x}" y1="{y}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<circle class="peak" cx="{x}" cy="{y}" r="4"/>'
        yield (
            f'<text class="peak" x="{x + (-8 if anchor == "end" else 8)}" y="{TOP - 24}" text-anchor="{anchor}">'
            f"peak {format_bytes(size)} at moment {moment:,}</text>"
        )


def _step(highest: int) -> int:
    """Between lines of the grid: 1, 2 or 5 times a power of ten of the unit that fits, at most six of them."""
    unit = max((size for size in BYTES_PER.values() if size <= highest), default=1)
    step = unit
    for factor in (1, 2, 5, 10, 20, 50, 100, 200, 500):
        step = unit * factor
        if highest <= 6 * step:
            break
    return step
