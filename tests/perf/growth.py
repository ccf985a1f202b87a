"""How attention's memory grows with length: bytes = a N² + b N + c, fitted, and told in 80 columns. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from perflab import Result

STUDY = "attention memory"
NOTED = {"step_peak_bytes": "peak", "saved_bytes": "saved"}
"""What its cases note, and what that is called in the findings."""


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


def growth_findings(results: Sequence[Result]) -> list[str]:
    """The curves of each variant that four cases or more have measured: its peak, and what it saves."""
    records = [one.record for one in results if one.record is not None and one.record.summary is not None]
    lines = []
    for impl in dict.fromkeys(str(record.parameters["impl"]) for record in records):
        own = [record for record in records if record.parameters["impl"] == impl]
        for noted, title in NOTED.items():
            points = [(record.parameters["seq_len"], record.facts.get(noted)) for record in own]
            known = [(n, size) for n, size in points if isinstance(n, int) and isinstance(size, int) and size > 0]
            if len(known) >= 4:
                lines.append(f"{impl:<7}{title:<6}{curve(fit(known))}")
    return lines


def curve(found: Growth) -> str:
    """``25.00 B/token²  +1024 B/token  +8 B  within 0.0%``, in columns."""
    return (
        f"{round(found.quadratic, 2) + 0.0:9.2f} B/token² {round(found.linear) + 0:+9d} B/token"
        f" {round(found.constant) + 0:+10d} B   within {100 * found.worst:.1f}%"
    )
