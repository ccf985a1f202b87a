"""Reads and writes numbers with units. Public; imports no other module of perflab.

Times are nanoseconds, memory is bytes, ratios are fractions (0.05 is 5 %).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TypeVar

NS_PER = {"ns": 1.0, "us": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9}
BYTES_PER = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_Amount = TypeVar("_Amount", int, float)
_QUANTITY = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*([%A-Za-z\u00b5\u03bc]*)\s*")


def _split(text: str, wanted: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not {wanted}")
    return float(match[1]), match[2]


def parse_fraction(text: str) -> float:
    """Read ``"5%"`` or ``"0.05"`` as the fraction 0.05.

    A bare number of 1 or more is refused: ``5`` may mean 5 % or five times.

    Raises:
        ValueError: the text is neither; the error names the expected form.
    """
    wanted = "a share such as 5% or 0.05"
    value, unit = _split(text, wanted)
    if unit == "%":
        return value / 100.0
    if unit or value >= 1.0:
        raise ValueError(f"{text!r} is not {wanted}")
    return value


def parse_duration_ns(text: str) -> float:
    """Read ``"2us"``, ``"1.5 ms"`` or ``"3s"`` as nanoseconds.

    Raises:
        ValueError: the text is no number with one of the units ns, us, ms, s, min, h (a bare 0 needs none).
    """
    wanted = "a duration such as 2us, 1.5ms or 3s"
    value, unit = _split(text, wanted)
    if value == 0.0 and not unit:
        return 0.0
    if unit not in NS_PER:
        raise ValueError(f"{text!r} is not {wanted}")
    return value * NS_PER[unit]


def parse_bytes(text: str) -> int:
    """Read ``"2GiB"``, ``"512 MiB"`` or ``"16GB"`` (decimal) as bytes.

    Raises:
        ValueError: the text is no positive number with one of the units B, KiB, MiB, GiB, TiB, kB, MB, GB, TB.
    """
    wanted = "a size such as 2GiB, 512MiB or 16GB"
    value, unit = _split(text, wanted)
    units = {**BYTES_PER, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    if unit not in units or value * units[unit] < 1:
        raise ValueError(f"{text!r} is not {wanted}")
    return round(value * units[unit])


def parse_seconds(text: str) -> float:
    """Read a positive number of seconds: ``"20"``, ``"20s"``, ``"500ms"``.

    Raises:
        ValueError: the text is no positive, finite number of seconds.
    """
    wanted = "a positive number of seconds such as 20 or 500ms"
    value, unit = _split(text, wanted)
    if unit and unit not in NS_PER:
        raise ValueError(f"{text!r} is not {wanted}")
    seconds = value * NS_PER[unit or "s"] / 1e9
    if not (0.0 < seconds < math.inf):
        raise ValueError(f"{text!r} is not {wanted}")
    return seconds


_LONG = 99_999.5
"""A number from this one on is written with a power of ten."""


def _three_digits(value: float) -> str:
    if value >= _LONG:
        return f"{value:.2e}"
    if value >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def format_ns(value_ns: float) -> str:
    """Format nanoseconds with three digits: ``812 ms``, ``2.71 s``, ``1.30 µs``; from two minutes on ``min``, ``h``."""
    if value_ns == 0:
        return "0 s"
    for unit, size in (("h", 3600e9), ("min", 60e9)):
        if value_ns >= 2 * size:
            return f"{_three_digits(value_ns / size)} {unit}"
    for unit in ("s", "ms", "µs"):
        if value_ns >= 0.9995 * NS_PER[unit]:
            return f"{_three_digits(value_ns / NS_PER[unit])} {unit}"
    return f"{_three_digits(value_ns)} ns"


def format_bytes(value_bytes: int) -> str:
    """Format bytes in binary units with three significant digits: ``2.60 GiB``, ``512 B``."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if value_bytes >= 0.9995 * BYTES_PER[unit]:
            return f"{_three_digits(value_bytes / BYTES_PER[unit])} {unit}"
    return f"{value_bytes} B"


def format_signed(difference: _Amount, written: Callable[[_Amount], str]) -> str:
    """Format a difference with its sign; ``written`` formats its amount: ``+64.0 MiB``, ``-3.10 ms``."""
    return f"{'-' if difference < 0 else '+'}{written(abs(difference))}"


def format_change(ratio: float) -> str:
    """Format a ratio as a change: 1.312 is ``+31.2%``; a ratio of ten or more is ``x12.3``."""
    if ratio >= 10.0:
        return f"x{_three_digits(ratio)}"
    change = 100.0 * (ratio - 1.0)
    return "0.0%" if abs(change) < 0.05 else f"{change:+.1f}%"


def format_interval(low: float, high: float) -> str:
    """Format a ratio's interval as changes: ``+24.1%…+38.9%``; with an infinite upper end ``+24.1% and more``."""
    return f"{format_change(low)} and more" if high == math.inf else f"{format_change(low)}…{format_change(high)}"


def format_ratio(ratio: float) -> str:
    """Format a ratio as a multiple: ``×0.81``, ``×1.42``, ``×12.3``, ``×0.0042``."""
    return f"×{ratio:.2g}" if ratio < 0.095 else f"×{_three_digits(ratio)}"


def format_between(low: float, high: float) -> str:
    """Format the interval of a ratio, to follow the ratio: ``(1.03…1.11)``."""
    return f"({format_ratio(low)[1:]}…{format_ratio(high)[1:]})"


def format_percent(fraction: float) -> str:
    """Format a fraction as a percentage without trailing zeros: 0.05 is ``5%``."""
    percent = 100.0 * fraction
    return f"{_three_digits(percent)}%" if percent >= 99.95 else f"{percent:.3g}%"


def format_noise(share: float) -> str:
    """Format half the width of a median's interval: 0.012 is ``±1.2%``; 1 or more is ``>±100%``."""
    return f"±{100 * share:.1f}%" if share < 1.0 else ">±100%"


def format_names(names: Sequence[str], most: int = 5) -> str:
    """Join names for a line of text: ``a, b, c, d, e and 7 more``."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def format_count(many: int, what: str) -> str:
    """Format a count with its noun: ``1 baseline``, ``2 baselines``, ``1,200 launches``."""
    return f"{many:,} {what}{('es' if what.endswith(('ch', 'ss')) else 's') * (many != 1)}"


def format_rate(per_second: float, unit: str) -> str:
    """Format a throughput with an SI prefix: ``631 tokens/s``, ``1.23 TFLOP/s``."""
    digits, prefix = _prefixed(per_second)
    joined = f"{prefix}{unit}" if unit.isupper() else f"{prefix} {unit}".lstrip()
    return f"{digits} {joined}/s"


def format_si(value: float) -> str:
    """Format a number with an SI prefix, for a table whose head names the unit: ``631``, ``1.23 T``."""
    return " ".join(_prefixed(value)).rstrip()


def format_flops(flops: int) -> str:
    """Format floating-point operations with an SI prefix: ``79.3 TFLOP``, ``12 FLOP``."""
    digits, prefix = _prefixed(flops)
    return f"{digits} {prefix}FLOP" if prefix else f"{flops} FLOP"


def _prefixed(value: float) -> tuple[str, str]:
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return _three_digits(value / size), prefix
    return _three_digits(value) if value >= 1.0 else f"{value:#.3g}", ""
