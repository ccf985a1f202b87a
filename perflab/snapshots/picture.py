"""The timeline of live bytes as SVG: stacked by category, stages shaded, the peak marked. Pure; no script, no network.

The horizontal axis counts allocations and frees, so each of them has the same room, however long it took. Where there
are more than pixels, the highest moment of each stretch stands for it.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence

from perflab.report.escaping import one_line
from perflab.snapshots.analysis import Point, categories_of, levels, peak_moment, thinned
from perflab.snapshots.model import Snapshot
from perflab.units import BYTES_PER, format_bytes

WIDTH, HEIGHT = 1100, 420
LEFT, RIGHT, TOP, BOTTOM = 92, 16, 44, 40
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
OTHERS = ("#ff9da7", "#86bcb6", "#d37295", "#a0cbe8")
"""Colours of categories that are not ours."""
MOST_EDGES = 120
"""Lines between stages that are drawn."""
_THINNEST = 0.5
"""Pixels of a stage that is shaded."""
_NARROWEST = 34
"""Pixels of a stage whose name is written."""


def color_of(category: str) -> str:
    """The category's colour, the same in each picture."""
    return COLORS.get(category) or OTHERS[sum(map(ord, category)) % len(OTHERS)]


def picture(snapshot: Snapshot) -> str:
    """The SVG element."""
    level = levels(snapshot)
    peak = peak_moment(level)
    points, categories = thinned(snapshot, POINTS), categories_of(snapshot)
    frame = _Frame(snapshot.moments, max(level[peak], 1))
    text = f"Live bytes over {snapshot.moments:,} allocations and frees; peak {format_bytes(level[peak])}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{_escaped(text)}">',
        *frame.stages(snapshot),
        *frame.axes(),
        *(frame.area(points, number, category) for number, category in enumerate(categories)),
        *(f'<line class="edge" x1="{x}" x2="{x}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>' for x in frame.edges(snapshot)),
        *frame.marked(peak, level[peak]),
        *frame.hover(points, categories),
        "</svg>",
    ]
    return "\n".join(parts)


def _escaped(text: str) -> str:
    return html.escape(one_line(text))


class _Frame:
    def __init__(self, moments: int, highest: int) -> None:
        self.moments, self.highest = moments, highest
        self.step = _step(highest)
        self.top = -(-highest // self.step) * self.step

    def x(self, moment: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * moment / (self.moments + 1), 2)

    def y(self, size: int) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / self.top, 2)

    def stages(self, snapshot: Snapshot) -> Iterator[str]:
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

    def axes(self) -> Iterator[str]:
        for size in range(0, self.top + 1, self.step):
            y = self.y(size)
            yield f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>'
            yield f'<text class="size" x="{LEFT - 8}" y="{y + 4}">{format_bytes(size)}</text>'
        for part in range(5):
            moment = self.moments * part // 4
            yield f'<text class="moment" x="{self.x(moment)}" y="{HEIGHT - BOTTOM + 18}">{moment:,}</text>'
        yield (f'<text class="moment" x="{(LEFT + WIDTH) // 2}" y="{HEIGHT - 4}">allocations and frees so far</text>')

    def area(self, points: Sequence[Point], number: int, category: str) -> str:
        upper, lower = [], []
        for point in points:
            left, right = self.x(point.start), self.x(point.end + 1)
            below = sum(point.by_category[:number])
            above, under = self.y(below + point.by_category[number]), self.y(below)
            upper.append(f"{left},{above} {right},{above}")
            lower.append(f"{right},{under} {left},{under}")
        outline = " ".join([*upper, *reversed(lower)])
        return f'<polygon fill="{color_of(category)}" points="{outline}"><title>{_escaped(category)}</title></polygon>'

    def marked(self, moment: int, size: int) -> Iterator[str]:
        x, y = self.x(moment + 0.5), self.y(size)
        anchor = "end" if x > WIDTH / 2 else "start"
        yield f'<line class="peak" x1="{x}" x2="{x}" y1="{y}" y2="{HEIGHT - BOTTOM}"/>'
        yield f'<circle class="peak" cx="{x}" cy="{y}" r="4"/>'
        yield (
            f'<text class="peak" x="{x + (-8 if anchor == "end" else 8)}" y="{TOP - 24}" text-anchor="{anchor}">'
            f"peak {format_bytes(size)} at moment {moment:,}</text>"
        )

    def hover(self, points: Sequence[Point], categories: Sequence[str]) -> Iterator[str]:
        for point in points:
            sizes = [
                f"{one_line(category)} {format_bytes(size)}"
                for category, size in zip(categories, point.by_category, strict=True)
                if size
            ]
            text = "\n".join([f"moment {point.moment:,}: {format_bytes(sum(point.by_category))}", *sizes])
            left, right = self.x(point.start), self.x(point.end + 1)
            yield (
                f'<rect class="over" x="{left}" y="{TOP}" width="{round(right - left, 2)}" '
                f'height="{HEIGHT - TOP - BOTTOM}"><title>{html.escape(text)}</title></rect>'
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
