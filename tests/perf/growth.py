"""How memory grows with length: bytes = a N² + b N + c, fitted, and told in 80 columns. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perflab.units import format_bytes

Point = tuple[int, int | None, int | None]
"""Tokens, peak bytes, saved bytes; None where memory ran out."""


@dataclass(frozen=True)
class Growth:
    """bytes = quadratic N² + linear N + constant."""

    quadratic: float
    linear: float
    constant: float
    worst: float
    """The largest distance of a point from the curve, as a share of the point."""


def fit(points: Sequence[tuple[int, int]]) -> Growth:
    """The curve through (tokens, bytes) that is off by the least share in the mean square; three points at least."""
    # Each equation is divided by its bytes: a long length must not drown the others. N in thousands, for the solver.
    rows = torch.tensor([[(n / 1e3) ** 2, n / 1e3, 1.0] for n, _ in points], dtype=torch.float64)
    sizes = torch.tensor([[float(size)] for _, size in points], dtype=torch.float64)
    found = torch.linalg.lstsq(rows / sizes, torch.ones_like(sizes)).solution
    worst = (rows @ found / sizes - 1).abs().max().item()
    quadratic, linear, constant = found.flatten().tolist()
    return Growth(quadratic / 1e6, linear / 1e3, constant, worst)


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
        if len(known) < 4:
            continue
        for title, chosen in (("peak", [(n, p) for n, p, _ in known]), ("saved", [(n, s) for n, _, s in known])):
            found = fit(chosen)
            lines.append(
                f"  {title:<6}{round(found.quadratic, 2) + 0.0:9.2f} B/token² {round(found.linear) + 0:+9d} B/token"
                f" {round(found.constant) + 0:+10d} B"
                f"   within {100 * found.worst:.1f}%"
            )
    return lines
