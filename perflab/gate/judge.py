"""The judge: a record, its baseline and a policy in, a verdict out. A pure function, and the same for everyone.

How a slowdown is told from a bad moment of the machine:

1. The case is *suspect* if its median lies past the limit, the larger of the threshold and what the baseline's
   own replicates are seen to differ by, and the difference is larger than an absolute floor.
2. A suspect is measured again, in fresh processes (the caller's work), and judged by those alone: the reading
   that raised the suspicion was picked for being high, so it is no fair witness.
3. It regressed if the baseline has replicates to know its noise from; if the whole interval of the ratio lies past
   the threshold; if every fresh process was slower than all of the baseline's; if even the fastest sample of the
   fresh processes is past the threshold, since a busy machine delays most samples but not all; if fixed pieces
   of work, timed between the samples, do not tell that the machine itself became slower by as much; and if nothing
   disturbed them that could be the cause and was not there when the baseline was taken (``gate/disturbance.py``).
   If it looks worse and one of these does not hold, nobody can tell: ``inconclusive``, with the reason.

4. What stored numbers cannot tell is *unsettled*: inconclusive, or ok by a median that a busy baseline let pass while
   even the fastest calls are slower. The caller may then measure the case in turns with the code that the baseline
   was saved from (``record.paired``; ``record.paired_to_anchor`` for the anchor's), and what the turns say counts.

Memory is exact. Only the allocator's rounding is slack, and an explicit threshold. Counts are ``gate/counts.py``'s.

Time and memory are each compared with the baseline and, where that has one, with its older anchor, by the same
rules; the worse of the two verdicts counts. So accepted steps too small to be seen cannot add up unseen.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

import msgspec

from perflab.environment import differences
from perflab.gate.counts import exactly_worse, judge_counts
from perflab.gate.disturbance import disturbances, is_witnessed
from perflab.gate.finding import Finding, worse_of_two, worst_of
from perflab.gate.robust import compare, robust_spread
from perflab.gate.unsettled import after_turns, is_unsettled
from perflab.records import Change, Entry, Judgement, Policy, Record, Replicate, Verdict
from perflab.units import format_bytes, format_change, format_interval, format_ns, format_percent

NOISE_FACTOR = 3.0
"""How many spreads of the baseline's replicates a reading must lie above it to be suspect."""
LEAST_NOISE = 0.003
"""Replicates that agree better than this do so by luck: processes on one machine differ by about as much."""
CUDA_ROUNDING_BYTES = 512
"""The CUDA caching allocator hands out multiples of this."""
MACHINE_SLACK = 1.02
"""A yardstick reading up to this much above the baseline's is its own noise."""
SEVERAL_CORES = 1.2
"""A case that keeps more cores busy than this works in several threads, and waits when one of them has to."""
SHARING_AT_MOST = 4.0
"""Work in one thread that keeps its core shares caches, memory and clock with neighbours, and is not slowed more."""
KEPT_CORE = 0.9
"""A thread that gets this share of the CPU time that it got in the baseline was not pushed aside."""

TOO_NOISY = "these readings are too noisy for an interval to say anything"


def judge(record: Record, entry: Entry | None, policy: Policy) -> Judgement:
    """Compare a case with its baseline.

    Args:
        record: the case; ``record.fresh`` holds what fresh processes measured once it was suspect, ``record.paired``
            what turns with the baseline's commit said once it was unsettled.
        entry: its baseline, or None.
        policy: thresholds.

    Returns:
        The verdict. With ``suspect`` set it is provisional: measure again in fresh processes and judge again. With
        ``unsettled`` it is as good as stored numbers allow, and turns may better it.
    """
    here = record.summary
    if here is None:
        return _judge_out_of_memory(record, entry)
    if entry is None or not (entry.replicates or entry.out_of_memory):
        return Judgement(verdict=Verdict.NEW, reasons=["no baseline yet"])
    foreign = differences(entry.environment, record.environment)
    if foreign:
        return Judgement(
            verdict=Verdict.INCOMPARABLE, reasons=[f"baseline from another environment: {d}" for d in foreign]
        )
    if not entry.replicates:
        return Judgement(verdict=Verdict.IMPROVED, reasons=["ran out of memory in the baseline, and fits now"])

    now = record.fresh or [here]
    unsettled: list[str] = []
    latency = _judge_latency(record, here, entry.replicates, policy, "baseline")
    if record.paired is not None:
        latency = after_turns(latency, record.paired, policy)
    elif is_unsettled(latency, now, entry.replicates, policy):
        unsettled.append("baseline")
    memory = judge_memory(peaks_of(entry.replicates), peaks_of(now), entry.environment.device, policy)
    before, drift = entry.replicates, {}
    if entry.anchor is not None:
        latency_anchor = entry.anchor
        older = _judge_latency(record, here, latency_anchor.replicates, policy, "anchor")
        if record.paired_to_anchor is not None:
            older = after_turns(older, record.paired_to_anchor, policy)
        elif is_unsettled(older, now, latency_anchor.replicates, policy):
            unsettled.append("anchor")
        latency, drift["latency"] = worse_of_two(latency, older, latency_anchor.recorded, latency_anchor.steps)
        if drift["latency"].decides:
            before = latency_anchor.replicates
    if entry.memory_anchor is not None:
        anchor = entry.memory_anchor
        older = judge_memory([anchor.peak_bytes], peaks_of(now), entry.environment.device, policy)
        if older.change is not None:
            memory, drift["memory"] = worse_of_two(memory, older, anchor.recorded, anchor.steps)
    counts, counts_verdict, notes = judge_counts(now, entry.replicates, gated=policy.gate_counts)
    verdicts = {"latency": latency.verdict, "memory": memory.verdict, "counts": counts_verdict}
    worst = worst_of(verdicts.values())
    in_turns = record.paired is not None or record.paired_to_anchor is not None
    disturbed = disturbances(now, before, record.environment) if not in_turns else []
    witnessed = not in_turns and is_witnessed(now, record.environment)
    judgement = Judgement(
        verdict=worst,
        latency=latency.change,
        memory=memory.change,
        phases=_phases(now, before),
        counts=counts,
        worse=[name for name, verdict in verdicts.items() if verdict is Verdict.REGRESSED],
        drift=drift,
        reasons=[*latency.reasons, *notes],
        disturbed=disturbed if disturbed or witnessed else None,
    )
    believed = exactly_worse(judgement) == ["counts"] == judgement.worse
    suspect = worst is Verdict.REGRESSED and not (record.fresh or in_turns or believed)
    return msgspec.structs.replace(judgement, suspect=suspect, unsettled=[] if suspect else unsettled)


def _judge_out_of_memory(record: Record, entry: Entry | None) -> Judgement:
    asked = record.out_of_memory.asked_bytes if record.out_of_memory else None
    reasons = [f"out of memory: {format_bytes(asked)} asked for" if asked is not None else "out of memory"]
    comparable = entry is not None and not differences(entry.environment, record.environment)
    if entry is not None and comparable and entry.replicates:
        held = [r.memory.peak_bytes for r in entry.replicates if r.memory is not None]
        if held:
            reasons.append(f"the baseline needed {format_bytes(max(held))}")
        return Judgement(verdict=Verdict.REGRESSED, reasons=reasons)
    return Judgement(verdict=Verdict.OOM, reasons=reasons)


def peaks_of(replicates: Sequence[Replicate]) -> list[int]:
    """Peak memory of the replicates that have it, in bytes."""
    return [r.memory.peak_bytes for r in replicates if r.memory is not None]


def judge_memory(before_bytes: Sequence[int], now_bytes: Sequence[int], device: str, policy: Policy) -> Finding:
    """Exact: the least that was needed now against the most that was needed before."""
    if not before_bytes or not now_bytes:
        return Finding(None, Verdict.OK)
    before, after = max(before_bytes), min(now_bytes)
    slack = CUDA_ROUNDING_BYTES if device == "cuda" else 0
    allowed = before * (1.0 + policy.memory_threshold) + slack
    ratio = after / before if before else 1.0 + after
    change = Change(before=before, now=after, ratio=ratio, limit=1.0 + policy.memory_threshold)
    if after > allowed:
        return Finding(change, Verdict.REGRESSED)
    if max(now_bytes) < min(before_bytes) - slack:
        return Finding(change, Verdict.IMPROVED)
    return Finding(change, Verdict.OK)


def latency_change(before: Sequence[Replicate], now: Sequence[Replicate], policy: Policy) -> Change:
    """The change of time with its interval, and the limit from which it counts."""
    # A median that rests on few samples of a noisy run may be off by its own interval.
    noise = max(LEAST_NOISE, *(median(r.noise for r in group) / 2.0 for group in (before, now)))
    between = robust_spread([r.median_ns / median(x.median_ns for x in before) for r in before])
    limit = 1.0 + max(policy.threshold, NOISE_FACTOR * max(between, noise))
    ratio = compare([r.median_ns for r in before], [r.median_ns for r in now], noise)
    return Change(before=ratio.before, now=ratio.now, ratio=ratio.value, low=ratio.low, high=ratio.high, limit=limit)


def _judge_latency(record: Record, here: Replicate, before: Sequence[Replicate], policy: Policy, name: str) -> Finding:
    """``name`` says what ``before`` is: the baseline, or its anchor."""
    now = record.fresh or [here]
    change = latency_change(before, now, policy)
    assert change.limit is not None
    cleared: list[str] = []
    first = here.median_ns / change.before
    if record.fresh and first > change.limit and here.median_ns - change.before > policy.floor_ns:
        cleared = [f"a first reading of {format_change(first)} was not confirmed in fresh processes"]
    if abs(change.now - change.before) <= policy.floor_ns:
        return Finding(change, Verdict.OK, cleared)
    if change.ratio < 1.0 / change.limit:
        if change.is_vague:
            return Finding(change, Verdict.INCONCLUSIVE, [f"{format_change(change.ratio)}, but {TOO_NOISY}"])
        return Finding(change, Verdict.IMPROVED)
    if change.ratio <= 1.0 + policy.threshold:
        return Finding(change, Verdict.OK, cleared)
    if change.ratio <= change.limit:
        reason = (
            f"{format_change(change.ratio)} is past the threshold, but within what this {name}'s replicates "
            f"differ by ({format_percent(change.limit - 1.0)})"
        )
        return Finding(change, Verdict.INCONCLUSIVE, [reason])
    if not record.fresh:
        return Finding(change, Verdict.REGRESSED)
    doubts = _doubts(now, before, change, policy, name)
    if not (record.environment.device == "cpu" and _beyond_sharing(now, before, change)):
        doubts += disturbances(now, before, record.environment)
    return Finding(change, Verdict.INCONCLUSIVE if doubts else Verdict.REGRESSED, doubts)


def _doubts(
    now: Sequence[Replicate], before: Sequence[Replicate], change: Change, policy: Policy, name: str
) -> list[str]:
    """Why a slowdown that fresh processes show may still not be the code's."""
    assert change.low is not None
    assert change.high is not None
    doubts = []
    bound = 1.0 + policy.threshold
    if len(before) < 2:
        remedy = "--perf-update" if name == "baseline" else "--perf-update --perf-reason=TEXT"
        doubts.append(f"the {name} is a single process, and does not know its noise; save it again ({remedy})")
    if change.low <= bound:
        interval = format_interval(change.low, change.high)
        bounds = (
            TOO_NOISY
            if change.is_vague
            else f"the 95 % interval ({interval}) reaches below the threshold of {format_percent(policy.threshold)}"
        )
        doubts.append(f"{format_change(change.ratio)}, but {bounds}")
    lowest, highest = min(r.median_ns for r in now), max(r.median_ns for r in before)
    if lowest <= highest:
        doubts.append(
            f"the fastest of the fresh processes ({format_ns(lowest)}) was no slower than the slowest of the "
            f"{name}'s ({format_ns(highest)}): this case differs that much from process to process"
        )
    fastest = min(r.fastest_ns for r in now) / min(r.fastest_ns for r in before)
    if fastest <= bound:
        doubts.append(
            f"typical calls took {format_change(change.ratio)}, but the fastest ones {format_change(fastest)}: "
            "a busy machine looks like that"
        )
    name, machine = _machine(now, before)
    if machine > MACHINE_SLACK and change.ratio / machine <= bound:
        doubts.append(f"the machine itself ran a fixed piece of work ({name}) at {format_change(machine)}")
    return doubts


def _machine(now: Sequence[Replicate], before: Sequence[Replicate]) -> tuple[str, float]:
    """By how much the machine became slower at what this case needs of it, and which yardstick says so."""
    ratios = {"": 1.0}
    for name in ("interpreter", "memory", "threads") if _several(now, before) else ("interpreter", "memory"):
        old = [r.yardsticks_ns[name] for r in before if name in r.yardsticks_ns]
        new = [r.yardsticks_ns[name] for r in now if name in r.yardsticks_ns]
        if old and new:
            ratios[name] = median(new) / median(old)
    return max(ratios.items(), key=lambda item: item[1])


def _several(now: Sequence[Replicate], before: Sequence[Replicate]) -> bool:
    return any(r.cores_busy is not None and r.cores_busy > SEVERAL_CORES for r in (*now, *before))


def _beyond_sharing(now: Sequence[Replicate], before: Sequence[Replicate], change: Change) -> bool:
    """Whether no neighbour can have done this: without it, a busy machine would excuse any slowdown at all."""
    kept = [[r.cores_busy for r in group if r.cores_busy is not None] for group in (now, before)]
    if _several(now, before) or not all(kept) or change.low is None:
        return False
    return change.low > SHARING_AT_MOST and median(kept[0]) >= KEPT_CORE * median(kept[1])


def _phases(now: Sequence[Replicate], old: Sequence[Replicate]) -> dict[str, Change]:
    changes = {}
    for name in now[0].phases_ns:
        before = [r.phases_ns[name] for r in old if r.phases_ns.get(name)]
        after = [r.phases_ns[name] for r in now if r.phases_ns.get(name)]
        if before and after:
            changes[name] = Change(before=median(before), now=median(after), ratio=median(after) / median(before))
    return changes
