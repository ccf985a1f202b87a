"""Draws charts of a page as SVG: bars with intervals, steps over time, a stack of parts, readings along one axis. Pure.

Text and attributes of elements are escaped, and axes have round numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

from perflab.tables.escaping import one_line
from perflab.tables.lines import shorten
from perflab.units import BYTES_PER

_ROUND = (1, 2, 2.5, 5, 10)
Attribute = str | float | int


def element(name: str, content: str | Markup | Iterable[Markup] = "", /, **attributes: Attribute) -> Markup:
    """Write one element. In an attribute's name ``_`` becomes ``-``; at the end, ``_`` is dropped: ``class_``.

    Text within the element is escaped. Numbers in attributes have at most one digit after the point.
    """
    written = {key: escape(one_line(one)) if isinstance(one, str) else rounded(one) for key, one in attributes.items()}
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{value}"' for key, value in written.items())
    if isinstance(content, Markup):
        inside = content
    elif isinstance(content, str):
        inside = escape(one_line(content))
    else:
        inside = Markup("").join(content)
    return Markup(f"<{name}{given}>{inside}</{name}>") if inside else Markup(f"<{name}{given}/>")


def chart(title: str, description: str, width: float, height: float, parts: Iterable[Markup]) -> Markup:
    """Write a picture with its name, and with its numbers in words for screen readers."""
    heads = [element("title", title), *([element("desc", description)] if description else [])]
    view = f"0 0 {rounded(width)} {rounded(height)}"
    return element("svg", [*heads, *parts], viewBox=view, role="img", class_="chart")


def rounded(value: float) -> str:
    """Format a number with at most one digit after the point, such as ``12`` or ``12.5``; NaN becomes ``0``."""
    return f"{value:.1f}".rstrip("0").rstrip(".") if value == value else "0"


@dataclass(frozen=True)
class Scale:
    """A linear map from values to coordinates: ``low`` is drawn at ``start``, ``high`` at ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the coordinate at which a value is drawn."""
        span = self.high - self.low
        return self.start + (self.end - self.start) * ((value - self.low) / span if span else 0.5)


def around(values: Iterable[float], start: float, end: float, margin: float = 0.04) -> Scale:
    """Return a scale with room for all values and for a margin, given as a share of the range of the values."""
    found = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(found), max(found)
    more = (high - low) * margin or abs(high) * margin or 1.0
    return Scale(low - more if low > more or low <= 0 else low * (1 - margin), high + more, start, end)


def ticks(low: float, high: float, most: int = 5, unit: str = "") -> list[float]:
    """Return round numbers between two values, at most ``most + 1`` of them.

    The numbers are round in binary units if ``unit`` is ``bytes``.
    """
    span = high - low
    if not (span > 0 and math.isfinite(span)):
        return [low]
    base = max((size for size in BYTES_PER.values() if size <= high), default=1) if unit == "bytes" else 1.0
    raw = span / base / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = base * power * next(one for one in _ROUND if one * power >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


WIDTH = 520
LETTER = 7.2
"""The average width of a letter of a label, in pixels."""
_COLOURS = 8
_MARK = 64
"""The width that a mark of an axis takes, in pixels."""
_RISES = (1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 100, 1000)
_FALLS = (0.99, 0.98, 0.95, 0.9, 0.8, 0.7, 0.5, 0.2, 0.1, 0.01)
_STEP = 22
"""The distance from one bar to the next, in pixels."""
_LABEL = 124
"""The room for the names of a strip at the left, in pixels."""
_RIGHT = 16
_FAR = 3.0
"""A reading or an end of an interval that is this many times farther off than the others is left out."""
_LEAST_WIDTH = 0.02
"""The least width that is assumed for a distribution, as a share of its values: smaller differences are noise."""
Interval = tuple[float, float | None]
"""The lower and the upper end of an interval; the upper end is None if unbounded."""


@dataclass(frozen=True)
class Bar:
    """One bar of a chart. ``low`` and ``high`` are the ends of the bar's interval."""

    name: str
    value: float
    text: str
    low: float | None = None
    high: float | None = None
    kind: str = ""
    """``first``: the other bars are compared with this one; ``quoted``: the value was measured elsewhere."""


def bars(title: str, given: Sequence[Bar], write: Callable[[float], str], unit: str = "") -> Markup:
    """Draw horizontal bars from zero, with each bar's name at the left and value at the right.

    There is at least one bar, and values are zero or more. ``unit`` is ``bytes`` for round binary numbers on the axis.
    """
    left, right = _margins(given)
    highest = max(max(bar.value, bar.high or 0.0) for bar in given) or 1.0
    scale = Scale(0.0, highest, left, WIDTH - right)
    height = _STEP * len(given) + 26
    parts = axis(ticks(0.0, highest, 4, unit), scale, 2, height - 22, write)
    told = []
    for number, bar in enumerate(given):
        end = scale(max(bar.value, bar.high or 0.0))
        name, drawn, text = _bar(bar, number, left, (left, scale(bar.value)), end)
        parts += [name, drawn]
        said = f"{bar.name} {bar.text}"
        if bar.low is not None and bar.high is not None:
            a, b, y = rounded(scale(max(bar.low, 0.0))), rounded(scale(bar.high)), 13 + _STEP * number
            parts.append(element("path", d=f"M{a} {y - 4}v8M{a} {y}H{b}M{b} {y - 4}v8", class_="whisker"))
            said += f" ({write(bar.low)} to {write(bar.high)})"
        parts.append(text)
        told.append(said)
    return chart(title, "; ".join(told), WIDTH, height, parts)


def _margins(given: Sequence[Bar]) -> tuple[float, float]:
    """Return the room for names at the left and for values at the right, in pixels."""
    left = min(220.0, max(60.0, LETTER * max(len(bar.name) for bar in given) + 10))
    return left, LETTER * max(len(bar.text) for bar in given) + 12


def _bar(bar: Bar, number: int, left: float, ends: tuple[float, float], text_from: float) -> tuple[Markup, ...]:
    """Return the elements of a bar's name, of the bar itself, and of the bar's text."""
    y = 4 + _STEP * number
    start, end = ends
    size, kind = rounded(max(end - start, 0.5)), f"bar {bar.kind}".strip()
    return (
        element("text", shorten(bar.name, int((left - 8) / LETTER)), x=rounded(left - 8), y=y + 13, class_="end"),
        element("rect", x=rounded(start), y=y + 2, width=size, height=14, class_=kind),
        element("text", bar.text, x=rounded(text_from + 6), y=y + 13, class_="faint"),
    )


def axis(at: Sequence[float], scale: Scale, top: float, bottom: float, write: Callable[[float], str]) -> list[Markup]:
    """Draw vertical lines at some values, with the values below the lines."""
    grid = "".join(f"M{rounded(scale(value))} {rounded(top)}V{rounded(bottom)}" for value in at)
    labels = [
        element("text", write(value), x=rounded(scale(value)), y=rounded(bottom + 15), class_="faint middle")
        for value in at
    ]
    return [element("path", d=grid, class_="grid"), *labels] if at else []


def ratios(title: str, given: Sequence[Bar], write: Callable[[float], str], less: str, more: str) -> Markup:
    """Draw bars from the line of no change: to the right for ratios above 1, to the left for ratios below 1.

    The axis is logarithmic, so that twice and half are equally far from the line. There is at least one bar, and values
    are ratios above zero. ``less`` and ``more`` are the names of the two sides.
    """
    left, right = _margins(given)
    logs = [math.log(bar.value) for bar in given]
    low, high = min(0.0, *logs), max(0.0, *logs)
    scale = Scale(low, high if high > low else low + 1.0, left, WIDTH - right)
    bottom = _STEP * (len(given) + 1) + 6
    x = scale(0.0)
    parts = [
        *axis(_round_marks(scale), scale, _STEP, bottom, lambda log: write(math.exp(log))),
        element("path", d=f"M{rounded(x)} 0V{bottom}", class_="edge"),
        *([element("text", f"← {less}", x=rounded(x - 6), y=13, class_="faint end")] if low < 0 else []),
        *([element("text", f"{more} →", x=rounded(x + 6), y=13, class_="faint")] if high > 0 else []),
    ]
    for number, (bar, log) in enumerate(zip(given, logs, strict=True), 1):
        start, end = sorted((x, scale(log)))
        parts += _bar(bar, number, left, (start, end), end)
    return chart(title, "; ".join(f"{bar.name} {bar.text}" for bar in given), WIDTH, bottom + 20, parts)


def _round_marks(scale: Scale) -> list[float]:
    """Return logarithms of round ratios as marks of a scale: that of 1, then, from the farthest on, those with room."""
    room = _MARK * (scale.high - scale.low) / (scale.end - scale.start)
    found = [0.0]
    for log in sorted(map(math.log, (*_RISES, *_FALLS)), key=abs, reverse=True):
        if scale.low - 1e-9 <= log <= scale.high + 1e-9 and all(abs(log - other) >= room for other in found):
            found.append(log)
    return found


def steps(
    title: str, values: Sequence[float], write: Callable[[float], str], marks: Sequence[tuple[str, int]], unit: str = ""
) -> Markup:
    """Draw a level over time as steps from zero, with the highest step marked.

    Values are of stretches of equal length. ``marks`` are names with the number of the stretch at which each begins.
    ``unit`` is ``bytes`` for round binary numbers on the axis.
    """
    left, top, bottom = 76.0, 20.0, 150.0
    highest = max(values) or 1.0
    across, up = Scale(0, len(values), left, WIDTH - 4), Scale(0, highest * 1.05, bottom, top)
    levels = ticks(0, highest, 4, unit)
    grid = "".join(f"M{rounded(left)} {rounded(up(value))}H{WIDTH - 4}" for value in levels)
    parts = [element("path", d=grid, class_="grid")]
    parts += [element("text", write(one), x=left - 8, y=rounded(up(one) + 4), class_="faint end") for one in levels]
    line = "".join(f"V{rounded(up(value))}H{rounded(across(at + 1))}" for at, value in enumerate(values))
    parts.append(element("path", d=f"M{rounded(left)} {rounded(bottom)}{line}V{rounded(bottom)}Z", class_="area"))
    parts.append(element("path", d=f"M{rounded(left)} {rounded(up(values[0]))}{line}", class_="line"))
    at = max(range(len(values)), key=values.__getitem__)
    parts.append(element("circle", cx=rounded(across(at + 0.5)), cy=rounded(up(values[at])), r=3.5, class_="dot"))
    for name, start in marks:
        x = across(start)
        parts.append(element("path", d=f"M{rounded(x)} {rounded(top)}V{rounded(bottom)}", class_="edge"))
        parts.append(element("text", name, x=rounded(x + 4), y=12, class_="faint"))
    told = f"{write(values[0])} at first, {write(highest)} at most, {write(values[-1])} at last"
    begun = "".join(f"; {name} begins at {write(values[start])}" for name, start in marks)
    return chart(title, told + begun, WIDTH, bottom + 8, parts)


def stack(title: str, parts: Sequence[tuple[str, float]], write: Callable[[float], str]) -> Markup:
    """Draw the parts of a whole as one bar, with a piece for each part."""
    whole = sum(size for _, size in parts) or 1.0
    pieces, x = [], 0.0
    for number, (_, size) in enumerate(parts):
        width = WIDTH * size / whole
        pieces.append(
            element("rect", x=rounded(x), y=0, width=rounded(max(width - 1, 0.3)), height=18, class_=colour(number))
        )
        x += width
    told = ", ".join(f"{name} {write(size)}" for name, size in parts)
    return chart(title, told, WIDTH, 18, pieces)


def colour(number: int) -> str:
    """Return the CSS class of a stack's part, for the drawing and its legend."""
    return f"k{number % _COLOURS}"


@dataclass(frozen=True)
class Strand:
    """One row of a strip: values of one kind. ``kind``: ``tick``, ``dot``, ``old`` or ``ring``."""

    name: str
    kind: str
    values: Sequence[float]


def strip(
    title: str,
    strands: Sequence[Strand],
    write: Callable[[float], str],
    *,
    limit: float | None = None,
    interval: Interval | None = None,
    middle: float | None = None,
    description: str = "",
) -> Markup:
    """Draw readings along one axis: a row for each kind, the limit as a dashed line, an interval below the rows.

    ``middle`` is the value to which the interval belongs. ``description`` follows the numbers in the chart's text.
    """
    shown = [strand for strand in strands if strand.values]
    inner = [value for strand in shown for value in _inner(strand) if strand.kind != "ring"]
    far = _FAR * max(inner, default=math.inf)
    inner += [value for strand in shown if strand.kind == "ring" for value in strand.values if value < far]
    marks = [one for one in (limit, middle) if one is not None]
    ends = [one for one in interval or () if one is not None and one < far]
    scale = around([*inner, *marks, *ends], _LABEL, WIDTH - _RIGHT)
    beyond = [_beyond(strand, scale, write) for strand in shown]
    room = max((LETTER * len(text) + 10 for text in beyond if text), default=0)
    scale = replace(scale, end=scale.end - room)
    bottom = 6 + 20 * (len(shown) + (interval is not None))
    parts = axis(ticks(scale.low, scale.high, 4), scale, 2, bottom, write)
    for number, (strand, more) in enumerate(zip(shown, beyond, strict=True)):
        y = 16 + 20 * number
        parts.append(element("text", strand.name, x=_LABEL - 10, y=y + 4, class_="end"))
        places = [scale(value) for value in strand.values if value <= scale.high]
        if strand.kind == "tick":
            parts.append(element("path", d="".join(f"M{rounded(x)} {y - 6}v12" for x in places), class_="tick"))
        else:
            parts += [element("circle", cx=rounded(x), cy=y, r=4, class_=strand.kind) for x in places]
        if more:
            parts.append(element("text", more, x=WIDTH - 4, y=y + 4, class_="faint end"))
    if interval is not None:
        parts += _drawn(interval, middle, scale, 16 + 20 * len(shown))
    if limit is not None and scale.low <= limit <= scale.high:
        x = rounded(scale(limit))
        parts.append(element("path", d=f"M{x} 2V{bottom}", class_="limit"))
    told = [f"{strand.name}: {', '.join(map(write, strand.values))}" for strand in shown]
    if interval is not None:
        upper = f"to {write(interval[1])}" if interval[1] is not None else "and more"
        told.append(f"95 % interval {write(interval[0])} {upper}")
    told += [f"limit {write(limit)}"] if limit is not None else []
    return chart(title, ". ".join([*told, *([description] if description else [])]), WIDTH, bottom + 20, parts)


def _inner(strand: Strand) -> Sequence[float]:
    """Return the values that determine the axis, in ascending order.

    From a distribution (kind ``tick``), values far above its lower four fifths are left out: a few slow samples would
    squeeze all others.
    """
    ordered = sorted(strand.values)
    if strand.kind != "tick" or not ordered:
        return ordered
    most = ordered[math.ceil(0.8 * len(ordered)) - 1]
    reach = most + _FAR * max(most - ordered[0], _LEAST_WIDTH * most)
    return [value for value in ordered if value <= reach]


def _beyond(strand: Strand, scale: Scale, write: Callable[[float], str]) -> str:
    """Return a text on the values beyond the axis, which are not drawn; empty if there are none."""
    values = [value for value in strand.values if value > scale.high]
    if not values:
        return ""
    return f"{len(values)} beyond{', up to' if len(values) > 1 else ':'} {write(max(values))}"


def _drawn(interval: Interval, middle: float | None, scale: Scale, y: float) -> list[Markup]:
    """Draw the interval as a line, which ends in an arrow if the upper end is beyond the axis or unbounded."""
    low, high = interval
    parts = [element("text", "95 % interval", x=_LABEL - 10, y=y + 4, class_="end")]
    start = rounded(scale(min(max(low, scale.low), scale.high)))
    if high is not None and high <= scale.high:
        parts.append(element("path", d=f"M{start} {y}H{rounded(scale(high))}", class_="interval"))
    else:
        end = scale.end + 8
        tip = f"M{rounded(end - 6)} {y - 4}L{rounded(end)} {y}L{rounded(end - 6)} {y + 4}"
        parts.append(element("path", d=f"M{start} {y}H{rounded(end)}{tip}", class_="interval"))
    if middle is not None and scale.low <= middle <= scale.high:
        parts.append(element("circle", cx=rounded(scale(middle)), cy=y, r=3.5, class_="dot"))
    return parts
