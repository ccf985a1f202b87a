"""What differs between runs, as charts: ratios of the cases that they share, the largest difference first. Pure."""

from __future__ import annotations

import math

from perflab.page.charts import Bar, ratios
from perflab.page.pictures import Picture
from perflab.page.quantities import title_of
from perflab.report.beside_text import name_in
from perflab.report.contents import Contents
from perflab.units import format_change, format_count

MOST = 20
"""Cases in one chart; the table has all."""
_SHOWN = {"latency": "Time", "peak": "Peak memory"}


def differences(contents: Contents) -> list[Picture]:
    """A chart for each later run and quantity that differs in a case from the first run that has numbers of it."""
    found = [_picture(contents, number, name) for number in range(1, len(contents.runs)) for name in _SHOWN]
    return [one for one in found if one is not None]


def _picture(contents: Contents, number: int, name: str) -> Picture | None:
    shared = [
        (name_in(contents, one), ratio)
        for one in contents.compared
        if (ratio := one.ratios.get(name, [None] * len(contents.runs))[number]) is not None and ratio > 0
    ]
    other = sorted((one for one in shared if one[1] != 1.0), key=lambda one: -abs(math.log(one[1])))
    if not other:
        return None
    given = [Bar(case, ratio, format_change(ratio)) for case, ratio in other[:MOST]]
    title = f"{_SHOWN[name]} of run {number + 1}"
    told = [f"{title} against the first run that has numbers of a case, {_told(len(given), len(other), len(shared))}"]
    told += ["not judged: noise alone makes times differ"] if name == "latency" else []
    return Picture(ratios(f"{title}: {title_of(name)}", given), "; ".join(told) + ".")


def _told(drawn: int, other: int, shared: int) -> str:
    cases = format_count(shared, "case")
    if drawn < other:
        return f"the {drawn} that differ most of {cases}"
    return f"{other} of {cases} differ" if other < shared else cases
