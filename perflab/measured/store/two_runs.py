"""Judges a result of one run against the result of another run, as if that were the case's baseline. Pure."""

from __future__ import annotations

from perflab.base.data import changed
from perflab.judging.judge import judge
from perflab.measured.store.exact import split
from perflab.results.measured import Baseline, Entry
from perflab.results.measurement import Record, Replicate
from perflab.results.records import Judgement, Policy
from perflab.results.result import Result


def judge_runs(before: Result, now: Result, policy: Policy) -> Judgement | None:
    """Return the judgement of ``now`` against ``before``; None if one has no record, or ``before`` no times.

    A run that measured in one process does not know its noise. It is believed if all other evidence agrees, like a
    machine's own history of few runs.
    """
    base, head = before.record, now.record
    if base is None or head is None or base.summary is None:
        return None
    replicates = _judged(base, base.summary)
    if head.summary is not None:
        own = _judged(head, head.summary)
        middle = sorted(own, key=lambda one: one.median_ns)[len(own) // 2]
        fresh = own if len(own) > 1 and len(replicates) > 1 else []
        head = changed(head, summary=middle, fresh=fresh, paired=None, paired_to_anchor=None)
    entry = Entry(environment=base.environment, recorded="", replicates=replicates)
    parts = split(entry)
    return judge(head, Baseline(exact=parts.exact, times=parts.times, times_are_own=True), policy)


def _judged(record: Record, summary: Replicate) -> list[Replicate]:
    """Return the replicates on which the run's own verdict rests."""
    return record.fresh or [summary]
