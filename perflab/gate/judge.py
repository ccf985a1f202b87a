"""The judge: a record, its baseline and a policy in, a verdict out. A pure function, and the same for everyone.

How a slowdown is told from a bad moment of the machine:

1. The case is *suspect* if its median lies past the limit, the larger of the threshold and what the baseline's
   own replicates are seen to differ by, and the difference is larger than an absolute floor.
2. A suspect is measured again, in fresh processes (the caller's work), and judged by those alone: the reading
   that raised the suspicion was picked for being high, so it is no fair witness.
3. It regressed if the baseline has replicates to know its noise from; if the whole interval of the ratio lies past
   the threshold; if every fresh process was slower than all of the baseline's; if even the fastest sample of the
   fresh processes is past the threshold, since a busy machine delays most samples but not all; and if fixed pieces
   of work, timed between the samples, do not tell that the machine itself became slower by as much.
   If it looks worse and one of these does not hold, nobody can tell: ``inconclusive``, with the reason.

Memory is exact. Only the allocator's rounding is slack, and an explicit threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perflab.environment import differences
from perflab.gate.robust import Ratio, compare, robust_spread
from perflab.records import Change, Entry, Judgement, Record, Replicate, Verdict
from perflab.units import format_bytes, format_change, format_ns, format_percent

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


@dataclass(frozen=True)
class Policy:
    """What counts as worse."""

    threshold: float = 0.05
    memory_threshold: float = 0.0
    floor_ns: float = 2_000.0


def judge(record: Record, entry: Entry | None, policy: Policy) -> Judgement:
    """Compare a case with its baseline.

    Args:
        record: the case; ``record.fresh`` holds what fresh processes measured once it was suspect.
        entry: its baseline, or None.
        policy: thresholds.

    Returns:
        The verdict. With ``suspect`` set it is provisional: measure again in fresh processes and judge again.
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
    memory, memory_verdict = _judge_memory(now, entry, policy)
    latency, latency_verdict, reasons = _judge_latency(record, here, entry, policy)
    worst = _worse_of(latency_verdict, memory_verdict)
    verdicts = {"latency": latency_verdict, "memory": memory_verdict}
    return Judgement(
        verdict=worst,
        latency=latency,
        memory=memory,
        phases=_phases(now, entry),
        worse=[name for name, verdict in verdicts.items() if verdict is Verdict.REGRESSED],
        reasons=reasons,
        suspect=worst is Verdict.REGRESSED and not record.fresh,
    )


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


def _worse_of(latency: Verdict, memory: Verdict) -> Verdict:
    order = [Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.OK]
    return min(latency, memory, key=order.index)


def _judge_memory(now: Sequence[Replicate], entry: Entry, policy: Policy) -> tuple[Change | None, Verdict]:
    """Exact: the least that was needed now against the most that was needed before."""
    before_bytes = [r.memory.peak_bytes for r in entry.replicates if r.memory is not None]
    now_bytes = [r.memory.peak_bytes for r in now if r.memory is not None]
    if not before_bytes or not now_bytes:
        return None, Verdict.OK
    before, after = max(before_bytes), min(now_bytes)
    slack = CUDA_ROUNDING_BYTES if entry.environment.device == "cuda" else 0
    allowed = before * (1.0 + policy.memory_threshold) + slack
    ratio = after / before if before else 1.0 + after
    change = Change(before=before, now=after, ratio=ratio, limit=1.0 + policy.memory_threshold)
    if after > allowed:
        return change, Verdict.REGRESSED
    if max(now_bytes) < min(before_bytes) - slack:
        return change, Verdict.IMPROVED
    return change, Verdict.OK


def _judge_latency(record: Record, here: Replicate, entry: Entry, policy: Policy) -> tuple[Change, Verdict, list[str]]:
    before = entry.replicates
    now = record.fresh or [here]
    # A median that rests on few samples of a noisy run may be off by its own interval.
    noise = max(LEAST_NOISE, *(median(r.noise for r in group) / 2.0 for group in (before, now)))
    between = robust_spread([r.median_ns / median(x.median_ns for x in before) for r in before])
    limit = 1.0 + max(policy.threshold, NOISE_FACTOR * max(between, noise))
    ratio = compare([r.median_ns for r in before], [r.median_ns for r in now], noise)
    change = _as_change(ratio, limit)
    cleared: list[str] = []
    first = here.median_ns / ratio.before
    if record.fresh and first > limit and here.median_ns - ratio.before > policy.floor_ns:
        cleared = [f"a first reading of {format_change(first)} was not confirmed in fresh processes"]
    if abs(ratio.now - ratio.before) <= policy.floor_ns:
        return change, Verdict.OK, cleared
    if ratio.value < 1.0 / limit:
        return change, Verdict.IMPROVED, []
    if ratio.value <= 1.0 + policy.threshold:
        return change, Verdict.OK, cleared
    if ratio.value <= limit:
        return (
            change,
            Verdict.INCONCLUSIVE,
            [
                f"{format_change(ratio.value)} is past the threshold, but within what this baseline's replicates "
                f"differ by ({format_percent(limit - 1.0)})"
            ],
        )
    if not record.fresh:
        return change, Verdict.REGRESSED, []
    doubts = _doubts(now, before, ratio, policy)
    return change, (Verdict.INCONCLUSIVE if doubts else Verdict.REGRESSED), doubts


def _doubts(now: Sequence[Replicate], before: Sequence[Replicate], ratio: Ratio, policy: Policy) -> list[str]:
    """Why a slowdown that fresh processes show may still not be the code's."""
    doubts = []
    bound = 1.0 + policy.threshold
    if len(before) < 2:
        doubts.append("the baseline is a single process, and does not know its noise; save it again (--perf-update)")
    if ratio.low <= bound:
        doubts.append(
            f"{format_change(ratio.value)}, but the 95 % interval ({format_change(ratio.low)} to "
            f"{format_change(ratio.high)}) reaches below the threshold of {format_percent(policy.threshold)}"
        )
    lowest, highest = min(r.median_ns for r in now), max(r.median_ns for r in before)
    if lowest <= highest:
        doubts.append(
            f"the fastest of the fresh processes ({format_ns(lowest)}) was no slower than the slowest of the "
            f"baseline's ({format_ns(highest)}): this case differs that much from process to process"
        )
    fastest = min(r.fastest_ns for r in now) / min(r.fastest_ns for r in before)
    if fastest <= bound:
        doubts.append(
            f"typical calls took {format_change(ratio.value)}, but the fastest ones {format_change(fastest)}: "
            "a busy machine looks like that"
        )
    name, machine = _machine(now, before)
    if machine > MACHINE_SLACK and ratio.value / machine <= bound:
        doubts.append(f"the machine itself ran a fixed piece of work ({name}) at {format_change(machine)}")
    return doubts


def _machine(now: Sequence[Replicate], before: Sequence[Replicate]) -> tuple[str, float]:
    """By how much the machine became slower at what this case needs of it, and which yardstick says so."""
    several = any(r.cores_busy is not None and r.cores_busy > SEVERAL_CORES for r in (*now, *before))
    ratios = {"": 1.0}
    for name in ("interpreter", "memory", "threads") if several else ("interpreter", "memory"):
        old = [r.yardsticks_ns[name] for r in before if name in r.yardsticks_ns]
        new = [r.yardsticks_ns[name] for r in now if name in r.yardsticks_ns]
        if old and new:
            ratios[name] = median(new) / median(old)
    return max(ratios.items(), key=lambda item: item[1])


def _as_change(ratio: Ratio, limit: float) -> Change:
    return Change(before=ratio.before, now=ratio.now, ratio=ratio.value, low=ratio.low, high=ratio.high, limit=limit)


def _phases(now: Sequence[Replicate], entry: Entry) -> dict[str, Change]:
    changes = {}
    for name in now[0].phases_ns:
        before = [r.phases_ns[name] for r in entry.replicates if r.phases_ns.get(name)]
        after = [r.phases_ns[name] for r in now if r.phases_ns.get(name)]
        if before and after:
            changes[name] = Change(before=median(before), now=median(after), ratio=median(after) / median(before))
    return changes
