"""Counts as text: those that changed."""

from __future__ import annotations

from collections.abc import Mapping

from perflab.records import Change
from perflab.units import format_change, format_interval, format_percent

_NOTICED = 0.01
"""Instructions differ a little in every run; a difference below this is none to show."""


def changed(counts: Mapping[str, Change]) -> dict[str, Change]:
    """The counts that are not what they were."""
    return {
        name: change
        for name, change in counts.items()
        if change.now != change.before and (not _wobbles(name) or abs(change.ratio - 1.0) > _NOTICED)
    }


def count_fact(name: str, change: Change) -> str:
    """``operators 112 -> 118``."""
    return f"{_shown(name)} {int(change.before):,} -> {int(change.now):,}"


def count_row(name: str, change: Change) -> tuple[str, ...]:
    """Cells of the failure's table: name, before, now, change, interval, limit."""
    before, now = int(change.before), int(change.now)
    if change.limit is None:
        limit = "none"
    else:
        limit = f"+{format_percent(change.limit - 1.0)}" if change.limit > 1.0 else "exact"
    if _wobbles(name):
        return (_shown(name), f"{before:,}", f"{now:,}", format_change(change.ratio), "–", limit)
    between = "exact" if change.low is None or change.high is None else format_interval(change.low, change.high)
    return (_shown(name), f"{before:,}", f"{now:,}", f"{now - before:+,}", between, limit)


def _wobbles(name: str) -> bool:
    return name.endswith("instructions")


def _shown(name: str) -> str:
    return name.replace("_", " ")
