"""Judges a measured case: a record, its baseline and a policy in, a judgement out. Pure.

Exact quantities are compared if the environment makes the code the same program, times only if they are this machine's.
Without such times, memory and counts are judged alone, and the judgement says so (``no_times``).

A slowdown is distinguished from a disturbance of the machine in these steps:

1. The case is *suspect* if its median lies past the limit (the larger of the threshold and the differences between
   the baseline's own replicates), and the difference is larger than an absolute floor.
2. A suspect is re-measured by the caller in fresh processes, and judged by those alone: the reading that raised the
   suspicion was selected for being high, so it is biased.
3. The case regressed if all of these conditions hold: the baseline has several replicates, so that its noise is known;
   the whole interval of the ratio lies past the threshold; every fresh process was slower than all of the baseline's;
   even the fastest sample of the fresh processes is past the threshold, since a busy machine delays most samples but
   not all; fixed pieces of work, timed between the samples, do not show that the machine itself became slower by as
   much; and no disturbance that the baseline did not have could be the cause (``doubts.py``).
   If the case looks worse and one of these conditions fails, it is ``inconclusive``, with the reason. Against a
   machine's own history of fewer than ``ENOUGH_RUNS``, the report says so once for all such cases (``few_runs``), and
   memory and counts decide the verdict, unless everything but the baseline's number of processes indicates a slowdown.

4. An improvement of time is examined and doubted in the same way, with the two groups exchanged. A case without a
   difference is inconclusive too if the same evidence indicates a hidden one (``doubts.py``).
5. A case that stored numbers cannot decide is *unsettled*: improved, inconclusive, or ok by a median that a busy
   baseline let pass although even the fastest calls are slower. The caller may then measure the case interleaved with
   the code that the baseline was saved from (``record.paired``; ``record.paired_to_anchor`` for the anchor's code), and
   the result of that interleaved run decides.

``judging/exact.py`` judges memory and counts.

Time and memory are each compared with the baseline and with the baseline's older anchor, if it has one, by the same
rules; the worse of the two verdicts counts. Accepted steps too small to see therefore cannot add up unseen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from perflab.base.data import changed
from perflab.judging.counts import CALLGRIND, exactly_worse, verdict_on
from perflab.judging.doubts import (
    TOO_NOISY,
    Sides,
    difference_doubts,
    disturbances,
    disturbances_by_kind,
    evidence_against,
    hidden,
    is_witnessed,
    single_process,
)
from perflab.judging.exact import Comparable, comparable, judge_exact, needed_more, unless_calls_differ
from perflab.judging.finding import NOT_COMPARED, Finding, after_turns, is_unsettled, worse_of_two, worst_of
from perflab.judging.memory_texts import out_of_memory_texts
from perflab.judging.statistics import compare, robust_spread
from perflab.results.environment import differing, stands_for_itself
from perflab.results.measured import Baseline, Entry
from perflab.results.measurement import Record, Replicate
from perflab.results.records import ENOUGH_RUNS, Change, Drift, Judgement, Policy, Uncompared, Verdict
from perflab.units import format_bytes, format_change, format_percent

NOISE_FACTOR = 3.0
"""A reading is suspect if it lies more than this many spreads of the baseline's replicates above the baseline."""
MISSED_SELDOM = 2.0
"""Spreads by which a reading may lie below the case's true time: it lies lower in one of forty cases."""
LEAST_NOISE = 0.003
"""The least relative noise that is assumed: processes on one machine differ by about as much, and replicates that
agree better do so by luck."""
_RAN_OUT = "it ran out of memory"
_FITS_AGAIN = "ran out of memory in the baseline, and fits now"


def judge(record: Record, baseline: Baseline, policy: Policy) -> Judgement:
    """Compare a case with its baseline.

    Args:
        record: the case; ``record.fresh`` holds the readings of fresh processes once it was suspect, ``record.paired``
            the result of interleaving with the baseline's commit once it was unsettled.
        baseline: the stored numbers. Exact quantities and times are each compared if they exist and are comparable.
        policy: thresholds.

    Returns:
        The verdict. With ``suspect`` set it is provisional: re-measure in fresh processes and judge again. With
        ``unsettled`` it is as good as stored numbers allow, and an interleaved run may improve it.
    """
    judgement = _judge(record, baseline, policy)
    measurement = record.measurement
    off = {**measurement.off} if measurement is not None else {}
    if measurement is not None and measurement.not_counted is not None:
        off[CALLGRIND] = measurement.not_counted
    missed = [Uncompared(name, why) for name, why in off.items() if name.startswith("memory") or policy.gate_counts]
    if missed:
        known = [one for one in judgement.not_compared if one.quantity not in off and "counts" not in off]
        judgement = changed(judgement, not_compared=[*known, *missed])
    if record.paired is not None or record.paired_to_anchor is not None:
        return judgement  # the interleaved run itself reports its disturbances
    shown = record.fresh or ([record.summary] if record.summary is not None else [])
    return changed(judgement, beside=disturbances(shown, [], record.environment))


def _judge(record: Record, baseline: Baseline, policy: Policy) -> Judgement:
    here = record.summary
    stored = baseline.times if baseline.times and (baseline.times.replicates or baseline.times.out_of_memory) else None
    times, no_times = _comparable_times(stored, record)
    if here is None:
        return _judge_out_of_memory(record, baseline, times, policy)
    fits_again = times is not None and not times.replicates
    if fits_again:  # the baseline has no times; memory and counts of an older save are still compared
        times, no_times = None, f"this machine's times say: {_RAN_OUT}"
        if baseline.exact is None:
            return Judgement(verdict=Verdict.IMPROVED, reasons=[_FITS_AGAIN])
    exact = comparable(baseline.exact, record.environment) if baseline.exact is not None else []
    if times is None and not isinstance(exact, Comparable):
        if fits_again:
            elsewhere = f"memory and counts were not compared: baseline {', '.join(exact)}"
            return Judgement(verdict=Verdict.IMPROVED, reasons=[_FITS_AGAIN, elsewhere])
        foreign = differing(stored.environment, record.environment) if stored else {}
        return _without_baseline(exact or [*foreign.values()])

    now = record.fresh or [here]
    latency = _Times() if times is None else _judge_times(record, here, now, times, policy)
    needs = judge_exact(record, now, exact, times, policy)
    if times is None and needs.not_compared and not needs.is_compared:
        missed = dict.fromkeys(one.reason for one in needs.not_compared)
        return Judgement(verdict=Verdict.INCOMPARABLE, reasons=[f"baseline {reason}" for reason in missed])
    in_turns = record.paired is not None or record.paired_to_anchor is not None
    # A machine's own history of few runs is too small to interpret a difference.
    kept = len(latency.before) if baseline.times_are_own and latency.before else ENOUGH_RUNS
    is_doubtful = latency.finding.verdict is not Verdict.OK and not latency.finding.is_plain
    few_runs = kept if is_doubtful and kept < ENOUGH_RUNS and not in_turns else None
    if few_runs is not None and latency.finding.verdict is not Verdict.REGRESSED:  # a regression is re-measured
        latency = replace(latency, finding=Finding(latency.finding.change, Verdict.OK))
    verdicts = {"latency": latency.finding.verdict, "memory": needs.memory.verdict, "counts": verdict_on(needs.counts)}
    worst = worst_of(verdicts.values())
    if fits_again and worst is Verdict.OK:
        worst = Verdict.IMPROVED
    # A regressed exact quantity needs no reason; the reasons why time is inconclusive do not belong to such a failure.
    is_exact = worst is Verdict.REGRESSED is not latency.finding.verdict
    of_time = [_FITS_AGAIN] if fits_again else [] if is_exact else latency.finding.reasons
    disturbed = disturbances_by_kind(now, latency.before, record.environment) if not in_turns else {}
    beside = disturbances_by_kind(now, [], record.environment)
    witnessed = not in_turns and is_witnessed(now, record.environment)
    judgement = Judgement(
        verdict=worst,
        latency=latency.finding.change,
        memory=needs.memory.change,
        before_ns=[one.median_ns for one in latency.before],
        phases=_phases(now, latency.before) if latency.before else {},
        launching=launching(now, latency.before),
        counts=needs.counts,
        worse=[name for name, verdict in verdicts.items() if verdict is Verdict.REGRESSED],
        drift=latency.drift | needs.drift,
        reasons=[*of_time, *needs.memory.reasons],
        disturbed=[*disturbed.values()] if disturbed or witnessed else None,
        beside_alone=[text for kind, text in beside.items() if kind not in disturbed] if not in_turns else None,
        no_times=no_times if times is None else None,
        few_runs=few_runs,
        not_compared=needs.not_compared,
    )
    if baseline.times_are_own and not isinstance(exact, Comparable) and worst in (Verdict.OK, Verdict.IMPROVED):
        unsaved = _without_baseline(exact)
        reasons = [*unsaved.reasons, *judgement.reasons]
        return changed(judgement, verdict=unsaved.verdict, reasons=reasons, not_compared=[])
    believed = exactly_worse(judgement) == ["counts"] == judgement.worse
    faster = worst is latency.finding.verdict is Verdict.IMPROVED
    suspect = (worst is Verdict.REGRESSED or faster) and not (record.fresh or in_turns or believed)
    judgement = changed(judgement, suspect=suspect, unsettled=[] if suspect else latency.unsettled)
    return unless_calls_differ(judgement, now)


def unconfirmed(judgement: Judgement, without_times: Callable[[], Judgement], reason: str) -> Judgement:
    """Return the final judgement of a suspect that is not re-measured, for the ``reason`` given.

    Memory and counts are exact and need no re-measurement. Time does, whether it is shorter or longer. Against a
    machine's own history of few runs time says nothing, so the verdict is that of ``without_times``.
    """
    exact = exactly_worse(judgement)
    if judgement.few_runs is not None and not exact:
        alone = without_times()
        verdict, reasons, missed = alone.verdict, alone.reasons, alone.not_compared
    else:
        verdict, missed = Verdict.REGRESSED if exact else Verdict.INCONCLUSIVE, judgement.not_compared
        reasons = [*judgement.reasons, reason]
    return changed(
        judgement, verdict=verdict, worse=exact, reasons=reasons, not_compared=missed, suspect=False, unsettled=[]
    )


def _without_baseline(foreign: Sequence[str]) -> Judgement:
    """Return the judgement of a case with no comparable baseline.

    ``foreign`` lists how the stored environment differs; it is empty if nothing is stored.
    """
    if not foreign:
        return Judgement(verdict=Verdict.NEW, reasons=["no baseline yet"])
    reasons = [f"baseline from another environment: {text}" for text in foreign]
    return Judgement(verdict=Verdict.INCOMPARABLE, reasons=reasons)


def _comparable_times(times: Entry | None, record: Record) -> tuple[Entry | None, str]:
    """Return the times if they are comparable, else None, with the reason in words that many cases share."""
    if times is None or times.environment.machine != record.environment.machine:
        name = record.environment.machine
        return None, f"no times of {'this machine' if name is None or stands_for_itself(name) else name} yet"
    foreign = differing(times.environment, record.environment)
    if foreign:
        return None, f"this machine's times come from another environment: {', '.join(foreign.values())}"
    return times, ""


@dataclass(frozen=True)
class _Times:
    """The comparison of a case's time with its baseline and its anchor."""

    finding: Finding = NOT_COMPARED
    drift: dict[str, Drift] = field(default_factory=dict)
    unsettled: list[str] = field(default_factory=list)
    before: Sequence[Replicate] = ()
    """The replicates of the comparison that decided: the baseline's or the anchor's."""


def _judge_times(record: Record, here: Replicate, now: Sequence[Replicate], times: Entry, policy: Policy) -> _Times:
    unsettled: list[str] = []
    latency = _judge_latency(record, here, times.replicates, policy, "baseline")
    if record.paired is not None:
        latency = after_turns(latency, record.paired, policy)
    elif is_unsettled(latency, now, times.replicates, policy):
        unsettled.append("baseline")
    anchor = times.anchor
    if anchor is None:
        return _Times(latency, {}, unsettled, times.replicates)
    older = _judge_latency(record, here, anchor.replicates, policy, "anchor")
    if record.paired_to_anchor is not None:
        older = after_turns(older, record.paired_to_anchor, policy)
    elif is_unsettled(older, now, anchor.replicates, policy):
        unsettled.append("anchor")
    latency, drift = worse_of_two(latency, older, anchor.recorded, anchor.steps)
    return _Times(latency, {"latency": drift}, unsettled, anchor.replicates if drift.decides else times.replicates)


def _judge_out_of_memory(record: Record, baseline: Baseline, times: Entry | None, policy: Policy) -> Judgement:
    reasons = out_of_memory_texts(record.out_of_memory) if record.out_of_memory is not None else ["out of memory"]
    found = comparable(baseline.exact, record.environment) if baseline.exact is not None else None
    if isinstance(found, Comparable) and found.exact.peak_bytes:
        reasons.append(f"the baseline needed {format_bytes(max(found.exact.peak_bytes))}")
    # Without times of this machine it is unknown whether the case ever fitted: then the bytes asked for decide.
    fitted = times is not None and bool(times.replicates)
    grew = isinstance(found, Comparable) and needed_more(found, record, policy)
    return Judgement(verdict=Verdict.REGRESSED if fitted or grew else Verdict.OOM, reasons=reasons)


def latency_change(before: Sequence[Replicate], now: Sequence[Replicate], policy: Policy) -> Change:
    """Return the change of time with its 95 % interval and the limit past which it counts."""
    noise = _noise(before, now)
    limit = 1.0 + max(policy.threshold, NOISE_FACTOR * _spread(before, now))
    return changed(compare([r.median_ns for r in before], [r.median_ns for r in now], noise), limit=limit)


def _spread(before: Sequence[Replicate], now: Sequence[Replicate]) -> float:
    """Return the relative error of a reading that noise explains, as a share.

    It is the larger of the spread between the replicates of ``before`` and the noise within the replicates.
    """
    return max(_between(before), _noise(before, now))


def _between(replicates: Sequence[Replicate]) -> float:
    middle = median(r.median_ns for r in replicates)
    return robust_spread([r.median_ns / middle for r in replicates])


def _noise(before: Sequence[Replicate], now: Sequence[Replicate]) -> float:
    # A median that rests on few samples of a noisy run may be off by its own interval.
    return max(LEAST_NOISE, *(median(r.noise for r in group) / 2.0 for group in (before, now)))


def _judge_latency(record: Record, here: Replicate, before: Sequence[Replicate], policy: Policy, name: str) -> Finding:
    """Judge a case's time against ``before``.

    ``name`` is ``baseline`` or ``anchor``, the origin of ``before``. An anchor can only make a verdict worse.
    """
    now = record.fresh or [here]
    change = latency_change(before, now, policy)
    assert change.limit is not None
    first = here.median_ns / change.before
    sides, reassures = Sides(now, before, change, record.environment, name, first), name == "baseline"
    cleared: list[str] = []
    if record.fresh and first > change.limit and here.median_ns - change.before > policy.floor_ns:
        cleared = [f"a first reading of {format_change(first)} was not confirmed in fresh processes"]
    small = abs(change.now - change.before) <= policy.floor_ns
    if not small and change.is_faster:
        found = Finding(change, Verdict.IMPROVED)
        if change.is_vague:
            found = Finding(change, Verdict.INCONCLUSIVE, [f"{format_change(change.ratio)}, but {TOO_NOISY}"])
        if not reassures or change.is_vague:
            return found
        # A single reading has no interval, but may be doubted too.
        against = difference_doubts(sides, policy) if record.fresh else evidence_against(sides, policy)
        doubts = [*single_process(sides), *against]
        return Finding(change, Verdict.INCONCLUSIVE, doubts) if doubts else found
    if small or change.ratio <= 1.0 + policy.threshold:
        noise = MISSED_SELDOM * max(_spread(before, now), _between(now))
        doubts = hidden(sides, noise, policy) if reassures else []
        return Finding(change, Verdict.INCONCLUSIVE if doubts else Verdict.OK, doubts or cleared)
    if change.ratio <= change.limit:
        reason = (
            f"{format_change(change.ratio)} is past the threshold, but within the differences between this {name}'s "
            f"replicates ({format_percent(change.limit - 1.0)})"
        )
        return Finding(change, Verdict.INCONCLUSIVE, [reason])
    against = difference_doubts(sides, policy) if record.fresh else evidence_against(sides, policy)
    doubts = [*single_process(sides), *against] if record.fresh else []
    verdict = Verdict.INCONCLUSIVE if doubts else Verdict.REGRESSED
    return Finding(change, verdict, doubts, is_plain=not against)


def launching(now: Sequence[Replicate], old: Sequence[Replicate]) -> Change | None:
    """Return the change of the host's time to launch a call, in ns; None if one side has no such time."""
    before, after = ([one.launch_ns for one in side if one.launch_ns is not None] for side in (old, now))
    if not before or not after:
        return None
    return Change(before=median(before), now=median(after), ratio=median(after) / median(before))


def _phases(now: Sequence[Replicate], old: Sequence[Replicate]) -> dict[str, Change]:
    changes = {}
    for name in now[0].phases_ns:
        before = [r.phases_ns[name] for r in old if r.phases_ns.get(name)]
        after = [r.phases_ns[name] for r in now if r.phases_ns.get(name)]
        if before and after:
            changes[name] = Change(before=median(before), now=median(after), ratio=median(after) / median(before))
    return changes
