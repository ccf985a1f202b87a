"""How memory grows with length: bytes = a N² + b N, fitted, and told in 80 columns. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perflab.units import format_bytes

Point = tuple[int, int | None, int | None]
"""Tokens, peak bytes, saved bytes; None where memory ran out."""


@dataclass(frozen=True)
class Growth:
    """bytes = quadratic N² + linear N."""

    quadratic: float
    linear: float
    worst: float
    """The largest distance of a point from the curve, as a share of the point."""


def fit(points: Sequence[tuple[int, int]]) -> Growth:
    """The curve through (tokens, bytes) that is off by the least share in the mean square; two points at least."""
    # Each equation is divided by its bytes: a long length must not drown the others.
    rows = [(tokens**2 / size, tokens / size) for tokens, size in points]
    xx, xy, yy = (sum(a * b for a, b in pairs) for pairs in (
        [(x, x) for x, _ in rows], [(x, y) for x, y in rows], [(y, y) for _, y in rows],
    ))  # fmt: skip
    x1, y1 = sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = xx * yy - xy * xy
    quadratic, linear = (yy * x1 - xy * y1) / determinant, (xx * y1 - xy * x1) / determinant
    worst = max(abs(quadratic * x + linear * y - 1) for x, y in rows)
    return Growth(quadratic, linear, worst)


def growth_lines(study: dict[str, list[Point]]) -> list[str]:
    """The table of the study, by variant, each with its two fits below."""
    lines = [f"{'attention memory':<20}{'tokens':>8}{'peak':>12}{'saved':>12}"]
    for name, points in study.items():
        for tokens, peak, saved in sorted(points):
            cells = (
                f"{'out of memory':>24}"
                if peak is None or saved is None
                else f"{format_bytes(peak):>12}{format_bytes(saved):>12}"
            )
            lines.append(f"{name:<20}{tokens:>8}{cells}")
        known = [(tokens, peak, saved) for tokens, peak, saved in points if peak and saved]
        if len(known) < 3:
            continue
        for title, chosen in (("peak", [(n, p) for n, p, _ in known]), ("saved", [(n, s) for n, _, s in known])):
            found = fit(chosen)
            lines.append(
                f"  {title:<6} {found.quadratic:8.2f} B/token² {found.linear:+10.0f} B/token   "
                f"within {100 * found.worst:.1f}%"
            )
    return lines
