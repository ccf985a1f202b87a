"""The text of a failing measured case: numbers before and now, place, certainty, and the command to accept. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from statistics import median

from perflab.base.user_lines import CALLERS
from perflab.measured.report.facts import launching_text, listed, reasons_of
from perflab.profiles.text import MOST, Row, explanation_rows, peak_rows
from perflab.results.measurement import Paired, Record
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.results.result import Result
from perflab.tables.escaping import result_for_reading
from perflab.tables.failing import (
    IMPROVED,
    WIDTH,
    Quantity,
    changed,
    count_row,
    failing_table,
    headline,
    kernel_code_text,
    wrapped,
)
from perflab.tables.lines import in_words, name_of
from perflab.units import (
    format_bytes,
    format_change,
    format_count,
    format_interval,
    format_ns,
    format_percent,
    format_signed,
)

NO_TELLING = "can't tell"
"""Text in place of an interval if readings are too few, or differ too much."""
_CAUSE_LINES = 12
UNCHANGED = 0.02
"""A phase whose ratio differs from 1 by no more than this is called unchanged."""


def explain(result: Result, accept: str | None) -> str:
    """Return the text of a failure. ``accept`` is the command that saves the numbers as the new baseline, if any."""
    result = result_for_reading(result)
    judgement, record = result.judgement, result.record
    drifted = any(drift.decides for drift in judgement.drift.values())
    is_long = drifted or judgement.verdict in (Verdict.IMPROVED, Verdict.FAILED)
    lines = wrapped(_headline(result), indent="  ") if is_long else [_headline(result)]
    counts = changed(judgement.counts)
    if judgement.latency is not None or judgement.memory is not None or counts:
        lines += _numbers(judgement, counts, (result.policy or Policy()).memory_threshold)
    lines += _evidence(record, judgement)
    phases = judgement.phases if "latency" in judgement.worse else {}
    moved = {name: change for name, change in phases.items() if abs(change.ratio - 1.0) > UNCHANGED}
    if len(phases) > 1 and moved:
        told = [f"{name} {format_ns(one.before)} -> {format_ns(one.now)}" for name, one in moved.items()]
        still = [name for name in phases if name not in moved]
        lines.append(f"where: {', '.join(told)}" + (f" ({listed(still)} unchanged)" if still else ""))
    if "latency" in judgement.worse and judgement.latency is not None and judgement.launching is not None:
        lines += wrapped(f"what: {launching_text(judgement.latency, judgement.launching)}", indent="      ")
    if record is not None:
        lines += _causes(record, timed="latency" in judgement.worse)
        if record.paired is not None and record.paired.kernels is not None and "latency" in judgement.worse:
            lines += wrapped(f"kernels: {kernel_code_text(record.paired.kernels)}", indent="         ")
    for reason in judgement.reasons[judgement.verdict is Verdict.FAILED :]:
        lines += wrapped(f"why: {reason}", indent="     ")
    if accept is not None:
        lines.append(f"if intended: {accept}")
    return "\n".join(lines)


def _causes(record: Record, *, timed: bool) -> list[str]:
    """Return a few lines on what the code does differently from before; the results file has all of it."""
    explained, peak = record.explained, record.explained_peak
    most = _CAUSE_LINES // 2 if explained is not None else _CAUSE_LINES
    ways = ((many, callers) for many in range(MOST, 0, -1) for callers in (CALLERS, 0))
    rows = (peak_rows(peak, most=many, callers=callers) for many, callers in ways) if peak is not None else ()
    at_peak = _fitting("at the peak", rows, most) if peak is not None else []
    if explained is None:
        return at_peak
    # Shorter and shorter forms of the explanation; each has the unexplained part and its reason.
    forms = (
        explanation_rows(explained, timed=timed, most=most, brief=brief)
        for most in range(MOST, -1, -1)
        for brief in ((False, True) if most else (True,))
    )
    return [*_fitting("cause", forms, _CAUSE_LINES - len(at_peak)), *at_peak]


def _fitting(title: str, ways: Iterable[Sequence[Row]], most: int) -> list[str]:
    """Return the first of ``ways`` that fits into ``most`` lines; if none fits, the last one cut to that length.

    The first row has a line of its own, and the other rows are a table below it.
    """
    indent = " " * (len(title) + 2)
    lines: list[str] = []
    for first, *others in ways:
        lines = wrapped(f"{title}: {first.amount} {first.text}".replace("  ", " "), indent=indent)
        width = max((len(row.amount) for row in others), default=0)
        for row in others:
            amount = f"{row.amount:>{width}}  " if width else ""
            within = indent + " " * len(amount)
            lines += [indent + amount + line.strip() for line in wrapped(within + row.text, indent=within)[:1]]
            lines += wrapped(within + row.text, indent=within)[1:]
        if len(lines) <= most:
            return lines
    return [*lines[: most - 1], f"{indent}…"]


def _headline(result: Result) -> str:
    name, judgement = name_of(result), result.judgement
    if judgement.verdict is Verdict.FAILED:
        return f"{name}: {judgement.reasons[0]}"
    if judgement.verdict is Verdict.IMPROVED and (result.policy or Policy()).fail_improved:
        return f"{name} {IMPROVED}"
    if judgement.verdict in (Verdict.OK, Verdict.IMPROVED):
        missed = {"time": judgement.time_not_judged} if judgement.time_not_judged is not None else {}
        missed |= {listed([*map(in_words, quantities)]): reason for reason, quantities in reasons_of(judgement)}
        said = ", ".join(f"its {what} could not be judged ({reason})" for what, reason in missed.items())
        return f"{name}: {said}, and --perf-check fails such cases"
    if judgement.verdict is not Verdict.REGRESSED:
        return f"{name} could not be judged ({judgement.verdict}), and --perf-check fails such cases"
    if result.record is not None and result.record.out_of_memory is not None:
        return f"{name} ran out of memory, and its baseline did not"
    if not judgement.worse and judgement.reasons:
        return f"{name}: {judgement.reasons[0]}"
    paired = _paired(result.record, judgement)
    return f"{name} {headline(judgement, 'its baseline' if paired is None else f'in {paired.against}')}"


def _numbers(judgement: Judgement, counts: dict[str, Change], memory_threshold: float) -> list[str]:
    latency, memory = judgement.latency, judgement.memory
    # Names of the quantities that are compared with the anchor instead of the baseline.
    to_anchor = [name for name, drift in judgement.drift.items() if drift.decides]
    rows: list[Quantity] = []
    if latency is not None:
        interval = NO_TELLING
        if latency.low is not None and latency.high is not None and not latency.is_vague:
            interval = format_interval(latency.low, latency.high)
        limit = f"+{format_percent(latency.limit - 1)}" if latency.limit is not None else "–"
        label = "latency, to anchor" if "latency" in to_anchor else "latency"
        times = (format_ns(latency.before), format_ns(latency.now), format_change(latency.ratio))
        rows.append(Quantity((label, *times, interval, limit), failed="latency" in judgement.worse))
    if memory is not None:
        before, now = int(memory.before), int(memory.now)
        grown = format_signed(now - before, format_bytes) if now != before else "same"
        limit = f"+{format_percent(memory_threshold)}" if memory_threshold else "exact"
        label = "peak, to anchor" if "memory" in to_anchor else "peak"
        sizes = (format_bytes(before), format_bytes(now), grown)
        cells = (*sizes, "exact", limit) if before or now else ("–", "–", "no tensor memory", "–", "–")
        rows.append(Quantity((label, *cells), failed="memory" in judgement.worse))
    counted = "counts" in judgement.worse
    rows += [Quantity(count_row(*item), failed=counted and item[1].is_past_limit) for item in counts.items()]
    return failing_table(("", "before", "now", "change", "95 % interval", "limit"), rows)


def _evidence(record: Record | None, judgement: Judgement) -> list[str]:
    """Return lines on how the case was re-measured, and on disturbances that the verdict's reasons do not mention."""
    paired = _paired(record, judgement)
    beside = ["nothing disturbed it"] if judgement.disturbed == [] else []
    beside += [text for text in judgement.disturbed or () if text not in judgement.reasons]
    if paired is not None:
        pairs = format_count(len(paired.screen) + len(paired.confirm), "interleaved pair")
        control = [f"base against base: {format_change(median(paired.control))}"] if paired.control else []
        said = [f"{pairs} of fresh processes", *filter(None, [paired.calls]), *control, *beside]
    elif record is not None and record.fresh:
        times = "once" if len(record.fresh) == 1 else f"{len(record.fresh)} times"
        said = [f"measured again {times} in fresh processes", *beside]
        evidence = record.measurement.evidence if record.measurement else None
        if judgement.disturbed is None and evidence is not None and evidence.load_average is not None:
            said.append(f"machine load {evidence.load_average:.1f} on {format_count(record.environment.cores, 'core')}")
        aside = len(record.set_aside)
        said += [f"{aside} disturbed {'ones were' if aside > 1 else 'one was'} set aside"] if aside else []
    else:
        return []
    return textwrap.wrap("; ".join(said), WIDTH, break_long_words=False)


def _paired(record: Record | None, judgement: Judgement) -> Paired | None:
    """Return the interleaved run on which the verdict on time rests; None if it rests on none."""
    if record is None:
        return None
    by_anchor = "latency" in judgement.drift and judgement.drift["latency"].decides
    return record.paired_to_anchor if by_anchor else record.paired
