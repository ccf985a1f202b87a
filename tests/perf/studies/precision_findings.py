"""What the precision study's numbers come to, in sentences; pure functions of the facts that its cases noted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from perflab import Result
from perflab.units import format_percent

STUDY = "precision: "
OFFSETS = (0, 1, 10, 100, 1000)
WIDTHS = (64, 256, 1024, 4096, 8192)
LIMIT = 0.01
"""An error that shows."""
SATURATED = 0.2
"""From here on an error grows no more like a power: it cannot be much larger than the output."""
SMOOTH = 2.5
"""The steepest power that is read between two points; what is steeper is a cliff, such as a square that overflows."""

Facts = Mapping[str, Any]
Errors = Mapping[int, float]
"""Error, as a share of the largest output, by offset or width."""


def offset_fact(offset: int) -> str:
    """The fact that holds the error at an offset."""
    return f"at_{offset}_share"


def width_fact(width: int) -> str:
    """The fact that holds the error at a width."""
    return f"d_{width}_share"


def precision_findings(study: str, results: Sequence[Result]) -> list[str] | None:
    """Findings of a study of precision, from the facts of those of its cases that ran; None of any other study."""
    if not study.startswith(STUDY):
        return None
    facts = [result.record.facts for result in results if result.record is not None and result.record.facts]
    title = study.removeprefix(STUDY)
    if title == "sums":
        return sum_findings(facts)
    if title == "autocast":
        return autocast_findings(facts)
    if title == "norms, by offset":
        return norm_findings(facts, "offset", {offset: offset_fact(offset) for offset in OFFSETS})
    if title == "norms, by width":
        return norm_findings(facts, "width", {width: width_fact(width) for width in WIDTHS})
    return None


def sum_findings(cases: Sequence[Facts]) -> list[str]:
    """Which part of a sum's error is the addend's own rounding, and which the accumulator's."""
    found = []
    for case in cases:
        if case["cast"]:
            uncast = [
                other["sum"]
                for other in cases
                if not other["cast"]
                and (other["accumulator"], other["addend"]) == (case["accumulator"], case["addend"])
            ]
            same = "changes nothing" if uncast == [case["sum"]] else f"changes {' '.join(uncast)} to {case['sum']}"
            if uncast:
                found.append(f"casting {case['addend']} addends to {case['accumulator']} first {same}")
            continue
        addend, whole = case["addend_error_share"], case["error_share"]
        line = (
            f"{case['accumulator']} sum of {case['addend']} addends: {_signed(whole)}, of which {_signed(addend)} is "
            f"the addend's rounding and {_signed(whole - addend)} the sum's"
        )
        if case["stalled"]:
            line += f"; it stalls at {case['sum']}, where one addend more changes nothing"
        found.append(line)
    return found


def autocast_findings(cases: Sequence[Facts]) -> list[str]:
    """Which tensors autocast makes low, which it leaves, and which differ from case to case."""
    if not cases:
        return []
    names = [name for name in cases[0] if name != "autocast"]
    low = [name for name in names if all(case[name] == case["autocast"] for case in cases)]
    high = [name for name in names if all(case[name] == "fp32" for case in cases)]
    found = []
    if low:
        found.append(f"in autocast's dtype: {_spelled(low)}")
    if high:
        found.append(f"fp32 in spite of it: {_spelled(high)}")
    mixed = [name for name in names if name not in (*low, *high)]
    return [*found, *([f"it depends: {_spelled(mixed)}"] if mixed else [])]


def norm_findings(cases: Sequence[Facts], axis: str, columns: Mapping[int, str]) -> list[str]:
    """For each norm and format: how large the error gets, from where on it shows, and by which power it grows."""
    found: dict[str, list[str]] = {}
    for case in cases:
        errors = {place: float(case[name]) for place, name in columns.items() if name in case}
        if errors:
            found.setdefault(f"{case['norm']} in {case['format']}", []).append(f"{case['how']} {tell(errors, axis)}")
    return [f"{subject}: {'; '.join(parts)}" for subject, parts in found.items()]


def tell(errors: Errors, axis: str) -> str:
    """``at most 0.32%``, or from where on the error is above ``LIMIT`` and how it grows."""
    places = sorted(errors)
    worst = max(errors.values())
    if worst <= LIMIT:
        return f"at most {format_percent(worst)}"
    power = growth(errors)
    growing = "" if power is None else f", growing like {axis}^{power:.2f}"
    lost = [place for place in places if math.isinf(errors[place])]
    ending = f", not finite from {lost[0]} on" if lost else ""
    return f"over {format_percent(LIMIT)} {passes(errors, axis)}{growing}{ending}"


def passes(errors: Errors, axis: str) -> str:
    """Where the error passes ``LIMIT``: ``from an offset of about 12``."""
    places = sorted(errors)
    last = next(place for place in reversed(places) if errors[place] > LIMIT)
    below = [place for place in places if errors[place] <= LIMIT and place < last]
    if not below:
        return f"at every {axis}"
    low = below[-1]
    high = places[places.index(low) + 1]
    article = "an" if axis[0] in "aeiou" else "a"
    if low == 0 or errors[low] == 0 or math.isinf(errors[high]):
        return f"between {axis} {low} and {high}"
    power = math.log(errors[high] / errors[low]) / math.log(high / low)
    if power > SMOOTH:
        return f"between {axis} {low} and {high}"
    where = low * (LIMIT / errors[low]) ** (1 / power)
    return f"from {article} {axis} of about {float(f'{where:.2g}'):g}"


def growth(errors: Errors) -> float | None:
    """The power of the place that the error grows with, by least squares of logarithms.

    Of places where it is above twice that at 0, and below ``SATURATED``; None if those are fewer than two, or if the
    error jumps in between.
    """
    floor = 2 * errors.get(0, 0.0)
    points = [(math.log(p), math.log(e)) for p, e in sorted(errors.items()) if p > 0 and floor < e <= SATURATED]
    if len(points) < 2:
        return None
    slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in itertools.pairwise(points)]
    if max(slopes) > SMOOTH:
        return None
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def _signed(share: float) -> str:
    if abs(share) < 1e-12:  # float64's own rounding of the difference
        return "none"
    return f"{'-' if share < 0 else '+'}{format_percent(abs(share))}"


def _spelled(names: Sequence[str]) -> str:
    return ", ".join(name.replace("_", " ") for name in names)
