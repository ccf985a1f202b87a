"""Compares a new environment's exact quantities with those stored of the same case in other environments. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from perflab.judging.exact import DECIDES, saved_elsewhere
from perflab.results.environment import differing
from perflab.results.measured import Exact
from perflab.results.records import Change
from perflab.units import format_bytes, format_change, format_count

_MOST = 8
"""Lines of one list, the largest changes first. The file that was written has all of them."""


def beside_others(saved: Mapping[str, tuple[Exact, Exact]]) -> list[str]:
    """Return lines on quantities that differ: a headline for each pair of environments, then a line a case.

    Args:
        saved: a case's name -> the quantities stored for the closest other environment, and those saved here.
    """
    lists: dict[str, list[tuple[float, str]]] = {}
    for name, (there, here) in saved.items():
        fields = differing(there.environment, here.environment)
        changes = _changes(there, here)
        if not changes or not fields or fields.keys() & set(DECIDES):  # nothing is comparable across programs
            continue
        said = ", ".join(_said(quantity, change) for quantity, change in changes.items())
        farthest = max(max(change.ratio, 1.0 / max(change.ratio, 1e-9)) for change in changes.values())
        head = saved_elsewhere(fields, there.environment, here.environment)
        lists.setdefault(head, []).append((farthest, f"  {name}: {said}"))
    lines = []
    for head, cases in lists.items():
        lines.append(f"memory and counts saved for this environment differ from those {head}:")
        cases.sort(key=lambda case: -case[0])
        lines += [line for _, line in cases[:_MOST]]
        lines += [f"  and {format_count(len(cases) - _MOST, 'more case')}"] if len(cases) > _MOST else []
    return lines


def _changes(there: Exact, here: Exact) -> dict[str, Change]:
    pairs = {name: (value, here.counts[name]) for name, value in there.counts.items() if name in here.counts}
    if there.peak_bytes and here.peak_bytes:
        pairs = {"memory": (max(there.peak_bytes), max(here.peak_bytes)), **pairs}
    return {
        name: Change(before=old, now=new, ratio=new / old if old else 1.0 + new)
        for name, (old, new) in pairs.items()
        if old != new
    }


def _said(quantity: str, change: Change) -> str:
    old, new = int(change.before), int(change.now)
    values = (format_bytes(old), format_bytes(new)) if quantity == "memory" else (str(old), str(new))
    return f"{quantity.replace('_', ' ')} {values[0]} there, {values[1]} here ({format_change(change.ratio)})"
