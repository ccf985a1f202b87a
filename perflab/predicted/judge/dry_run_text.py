"""Describes what a dry run has more of than its baseline: kernels by name, and lines that wait or copy. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.predicted.records import TO_DEVICE, TO_HOST, WAIT, PredictedBaseline, Prediction, Traffic
from perflab.units import format_bytes, format_count

MOST = 5
"""Kernels, or lines, that are told."""
_WHAT = {"waits": WAIT, "to_device": TO_DEVICE, "to_host": TO_HOST}


def explain_dry_run(now: Prediction, baseline: PredictedBaseline, worse: Sequence[str]) -> list[str]:
    """Sentences for what grew. A baseline has no lines, which move with every edit: all that there are now are told.

    Args:
        now: the dry run.
        baseline: what it was.
        worse: of the quantities of ``Prediction.real``; others are not told here.
    """
    if now.dry_run is None:
        return []
    said = _kernels(now.dry_run.kernels, baseline.kernels) if "launches" in worse else []
    for name, what in _WHAT.items():
        if name in worse:
            found = [one for one in now.dry_run.traffic if one.what == what]
            said += [f"{one.line}: {_doing(one)}" for one in found[:MOST]] + _more(len(found))
    return said


def _kernels(now: dict[str, int], before: dict[str, int]) -> list[str]:
    more = [name for name, many in now.items() if many > before.get(name, 0)]
    more.sort(key=lambda name: before.get(name, 0) - now[name])
    told = [f"launches of {name}: {before.get(name, 0)} -> {now[name]}" for name in more[:MOST]]
    return told + _more(len(more))


def _more(found: int) -> list[str]:
    return [f"and {found - MOST} more"] if found > MOST else []


def _doing(one: Traffic) -> str:
    does = "the host waits for the device" if one.what == WAIT else f"{format_bytes(one.size_bytes)} {one.what}"
    return f"{does}, {format_count(one.calls, 'time')} ({one.function})"
