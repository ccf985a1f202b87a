"""Writes SVG: elements whose text and attributes are escaped, axes with round numbers. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

from perflab.tables.escaping import one_line
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
