"""What a failing case says: before and now, by how much, where, why it is believed, and how to accept it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from perflab.records import Change, Record, Result, Verdict
from perflab.report.table import short_name
from perflab.units import format_bytes, format_change, format_ns, format_percent

WIDTH = 80
_MEANINGLESS = 100.0
"""An interval that reaches to a hundred times the baseline says nothing."""
UNCHANGED = 0.02
"""A phase that moved less than this is called unchanged."""


def explain(result: Result, memory_threshold: float, accept: str) -> str:
    """The text of a failure. ``accept`` is the command that takes the numbers as the new baseline."""
    judgement, record = result.judgement, result.record
    lines = [_headline(result)]
    if judgement.latency is not None or judgement.memory is not None:
        lines += _numbers(judgement.latency, judgement.memory, memory_threshold)
    lines += _evidence(record)
    where = _where(judgement.phases)
    if where:
        lines.append(f"where: {where}")
    for reason in judgement.reasons:
        lines += textwrap.wrap(f"why: {reason}", WIDTH, subsequent_indent="     ", break_long_words=False)
    lines.append(f"if this is meant: {accept}")
    return "\n".join(lines)


def _headline(result: Result) -> str:
    name, judgement = short_name(result.case), result.judgement
    if judgement.verdict is not Verdict.REGRESSED:
        return f"{name} could not be judged ({judgement.verdict}), and --perf-check=strict wants it to be"
    if result.record is not None and result.record.out_of_memory is not None:
        return f"{name} ran out of memory, and its baseline did not"
    worse = " and ".join(_WORSE[name] for name in judgement.worse)
    return f"{name} {worse or 'is worse'} than its baseline"


_WORSE = {"latency": "is slower", "memory": "needs more memory"}


def _numbers(latency: Change | None, memory: Change | None, memory_threshold: float) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "before", "now", "change", "95 % interval", "limit")]
    if latency is not None:
        interval = "unknown"
        if latency.low is not None and latency.high is not None and latency.high < _MEANINGLESS:
            interval = f"{format_change(latency.low)}…{format_change(latency.high)}"
        limit = f"+{format_percent(latency.limit - 1)}" if latency.limit is not None else "–"
        row = (
            format_ns(latency.before),
            format_ns(latency.now),
            format_change(latency.ratio),
            interval,
            limit,
        )
        rows.append(("latency", *row))
    if memory is not None:
        before, now = int(memory.before), int(memory.now)
        grown = f"{'+' if now > before else '-'}{format_bytes(abs(now - before))}" if now != before else "same"
        limit = f"+{format_percent(memory_threshold)}" if memory_threshold else "exact"
        rows.append(("peak", format_bytes(before), format_bytes(now), grown, "exact", limit))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def _evidence(record: Record | None) -> list[str]:
    if record is None or not record.fresh:
        return []
    times = "once" if len(record.fresh) == 1 else f"{len(record.fresh)} times"
    load = record.measurement.load_average if record.measurement else None
    said = f"; machine load {load:.1f} on {record.environment.cores} cores" if load is not None else ""
    return [f"measured again {times} in fresh processes{said}"]


def _where(phases: dict[str, Change]) -> str:
    if len(phases) < 2:
        return ""
    moved = [name for name, change in phases.items() if abs(change.ratio - 1.0) > UNCHANGED]
    told = [f"{name} {format_ns(phases[name].before)} -> {format_ns(phases[name].now)}" for name in moved]
    still = [name for name in phases if name not in moved]
    if not moved:
        return ""
    return ", ".join(told) + (f" ({_listed(still)} unchanged)" if still else "")


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
