"""What a report says beside numbers: what was not compared, how ranks differ, whether the device waits. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perflab.base.data import changed
from perflab.base.grouping import groups_of
from perflab.results.measurement import RankFigures, Record
from perflab.results.records import Change, Judgement
from perflab.results.result import Result
from perflab.tables.contents import Table, first_rows
from perflab.tables.lines import in_words
from perflab.units import format_bytes, format_change, format_count, format_ns

_SKEW_FROM = 0.02
"""The least difference between the ranks' times that the line mentions, as a share of the fastest rank's."""
WAITS = 0.9
"""If launching a call takes the host this share of the call's time, launching determines it: the device waits."""
_MOST_OF_IT = 0.5
"""Share of a call's change for which launching must account to be named as the cause."""


def what_was_compared(results: Sequence[Result]) -> list[str]:
    """Return a line for each reason why time, memory or counts of cases were not compared."""
    compared: dict[str, Counter[str]] = {}
    for result in results:
        one = result.judgement
        if one.time_not_judged is not None and not (result.saved and one.few_runs):  # the next run has enough
            compared.setdefault(one.time_not_judged, Counter())[_exact_of(one)] += 1
    lines = []
    for reason, counter in compared.items():  # "of 4 cases only memory and counts, of 2 only operators were compared"
        said = [f"of {format_count(many, 'case')} {f'only {it}' if it else 'nothing'}" for it, many in counter.items()]
        plural = len(counter) > 1 or next(iter(counter)) not in ("memory", "")
        lines.append(f"{reason}: {', '.join(said)} {'were' if plural else 'was'} compared")
    return lines + _without_quantities(results)


def _exact_of(one: Judgement) -> str:
    """Return the exact quantities on which a case's verdict rests, in words."""
    counts = [in_words(name) for name, change in one.counts.items() if change.limit is not None]
    if not any(missed.quantity != "memory" for missed in one.not_compared) and counts:
        counts = ["counts"]  # all counts were compared
    return listed(["memory"] * (one.memory is not None) + counts)


def _without_quantities(results: Sequence[Result]) -> list[str]:
    many = Counter(
        changed(missed, can_be_saved=False) if result.saved else missed
        for result in results
        for missed in result.judgement.not_compared
    )
    lines = []
    for reason, here in groups_of(many, lambda missed: missed.reason).items():
        said = ", ".join(
            f"{listed([in_words(missed.quantity) for missed in some])} of {format_count(count, 'case')}"
            for count, some in groups_of(here, lambda missed: many[missed]).items()
        )
        save = "save here too" if any(missed.elsewhere for missed in here) else "save"
        remedy = f" ({save}: --perf-update-new)" if any(missed.can_be_saved for missed in here) else ""
        lines.append(f"{said} not compared: {reason}{remedy}")
    return lines


def reasons_of(judgement: Judgement) -> list[tuple[str, list[str]]]:
    """Return the reasons why exact quantities of a case were not compared, each with the quantities."""
    reasons = groups_of(judgement.not_compared, lambda missed: missed.reason)
    return [(why, [one.quantity for one in some]) for why, some in reasons.items()]


def listed(names: Sequence[str]) -> str:
    """Join names into a list in words: ``memory, allocations and operators``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def ranks_facts(record: Record) -> list[str]:
    """Return the differences between the ranks, each as a short text; nothing for a case in one process."""
    ranks = record.measurement.ranks if record.measurement is not None else []
    if not ranks:
        return []
    told = []
    fastest, slowest = min(one.median_ns for one in ranks), max(one.median_ns for one in ranks)
    if slowest >= (1.0 + _SKEW_FROM) * fastest:
        told.append(f"ranks {format_ns(fastest)} to {format_ns(slowest)} (skew {slowest / fastest - 1.0:.0%})")
    peaks = [one.peak_bytes for one in ranks if one.peak_bytes is not None]
    if len(set(peaks)) > 1:
        told.append(f"peak of a rank {format_bytes(min(peaks))} to {format_bytes(max(peaks))}")
    for name in ranks[0].counts:
        values = [one.counts[name] for one in ranks]
        told.append(f"{name.replace('_', ' ')} of a rank {min(values):,} to {max(values):,}")
    if record.lacks_cores:
        told.append(f"{record.num_ranks} ranks on {format_count(record.environment.cores, 'core')}: time is not judged")
    return told


def ranks_table(record: Record) -> list[Table]:
    """Return the figures of each rank as a table; nothing for a case in one process."""
    ranks = record.measurement.ranks if record.measurement is not None else []
    if not ranks:
        return []
    names = list(ranks[0].counts)
    columns = [("rank", "count"), ("median", "ns"), ("peak", "bytes"), *((name, "count") for name in names)]
    return [first_rows("ranks", "Each rank by itself", columns, list(map(_row, range(len(ranks)), ranks)), len(ranks))]


def _row(rank: int, one: RankFigures) -> list[str | float | int | None]:
    return [rank, one.median_ns, one.peak_bytes, *one.counts.values()]


def waits_for_host(call_ns: float, launch_ns: float) -> bool:
    """Whether launching determines the call's time, so that kernels do not."""
    return launch_ns >= WAITS * call_ns


def launching_fact(call_ns: float, launch_ns: float | None) -> list[str]:
    """Return a fact for a row whose time the host determines; an empty list for any other."""
    if launch_ns is None or not waits_for_host(call_ns, launch_ns):
        return []
    return [f"launching takes the host {format_ns(launch_ns)} a call, and the device waits for it"]


def launching_text(call: Change, launching: Change) -> str:
    """Describe the time to launch a call before and now, and whether launching caused the call's change."""
    took = f"{format_ns(launching.before)} -> {format_ns(launching.now)} ({format_change(launching.ratio)})"
    more_ns, launching_more_ns = call.now - call.before, launching.now - launching.before
    waits, waited = waits_for_host(call.now, launching.now), waits_for_host(call.before, launching.before)
    if not waits:
        return f"the device's work, and not launching it: that takes the host {took}, less than the call"
    if not waited:
        return f"the device waits for the host now, and did not before: launching takes {took}"
    if launching_more_ns >= _MOST_OF_IT * more_ns:
        return f"launching, and not kernels: the device waits for the host, which takes {took}"
    return f"kernels or gaps between them, though the device waits for the host, which takes {took}"
