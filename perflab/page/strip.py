"""Draws a strip: readings of several kinds along one axis, with a limit and an interval. Pure.

Readings beyond the axis are counted in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from perflab.page.charts import LETTER, WIDTH, axis
from perflab.page.svg import Scale, around, chart, element, rounded, ticks

_LABEL = 124
"""The room for names at the left, in pixels."""
_RIGHT = 16
_FAR = 3.0
"""A reading or an end of an interval that is this many times farther off than the others is left out."""
_LEAST_WIDTH = 0.02
"""The least width that is assumed for a distribution, as a share of its values: smaller differences are noise."""
Interval = tuple[float, float | None]
"""The lower and the upper end of an interval; the upper end is None if unbounded."""


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
    scale = _scale(shown, limit, interval, middle)
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
    told += [f"95 % interval {_written(interval, write)}"] if interval is not None else []
    told += [f"limit {write(limit)}"] if limit is not None else []
    return chart(title, ". ".join([*told, *([description] if description else [])]), WIDTH, bottom + 20, parts)


def _scale(shown: Sequence[Strand], limit: float | None, interval: Interval | None, middle: float | None) -> Scale:
    inner = [value for strand in shown for value in _inner(strand) if strand.kind != "ring"]
    far = _FAR * max(inner, default=math.inf)
    inner += [value for strand in shown if strand.kind == "ring" for value in strand.values if value < far]
    marks = [one for one in (limit, middle) if one is not None]
    ends = [one for one in interval or () if one is not None and one < far]
    return around([*inner, *marks, *ends], _LABEL, WIDTH - _RIGHT)


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


def _written(interval: Interval, write: Callable[[float], str]) -> str:
    low, high = interval
    return f"{write(low)} to {write(high)}" if high is not None else f"{write(low)} and more"
