"""Exact quantities (peak memory, counts): what they depend on, and which can be compared. Pure.

Their dependencies were found by experiment (docs/measuring.md, "What exact quantities depend on"): all depend on the
PyTorch build and the kind of device. Some depend on more fields; across a difference in those, such a quantity is
compared only as far as it is equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perflab.base.data import changed
from perflab.devices.kinds import block_bytes_on
from perflab.judging.counts import CALLGRIND, CALLS_DIFFER, SLACK, judge_counts, values_of, with_parts
from perflab.judging.finding import NOT_COMPARED, Finding, worse_of_two
from perflab.results.environment import differing, exact_environment
from perflab.results.measured import Entry, Exact
from perflab.results.measurement import Record, Replicate
from perflab.results.records import Change, Drift, Environment, ExactEnvironment, Judgement, Policy, Uncompared, Verdict
from perflab.units import format_bytes, format_names

DECIDES = ("device", "device_name", "system", "torch", "cuda")
"""Environment fields whose value determines the program: nothing is compared if one of them differs."""
_COMPILED = frozenset(("graph_breaks", "recompiles"))
"""Counts that depend on how Dynamo compiles Python's bytecode."""


@dataclass(frozen=True)
class Comparable:
    """Exact quantities of a baseline that are comparable in the environment in which a case runs."""

    exact: Exact
    doubtful: Mapping[str, str]
    """Quantities that may differ because the two environments do: name -> how the environments differ."""


def comparable(exact: Exact, here: Environment) -> Comparable | list[str]:
    """Return the quantities of ``exact`` that may be compared here; a list of the decisive differences if none may."""
    now = exact_environment(here)
    fields = differing(exact.environment, now)
    decisive = [text for field, text in fields.items() if field in DECIDES]
    if decisive:
        return decisive
    doubtful = {}
    for quantity in ("memory", *exact.counts):
        # The fields that the quantity may depend on beside ``DECIDES``: if they differ, its change proves nothing.
        matter = ("python",) if quantity in _COMPILED else ("threads", "isa", "features", "triton")
        differ = [field for field in fields if field in matter and quantity != "operators"]
        if differ:
            doubtful[quantity] = saved_elsewhere(differ, exact.environment, now)
    return Comparable(exact, doubtful)


def saved_elsewhere(fields: Iterable[str], there: ExactEnvironment, here: ExactEnvironment) -> str:
    """Format a difference of environments: ``saved with 2 threads and AVX512, here 1 and AVX2``."""
    pairs = [_in_words(field, getattr(there, field), getattr(here, field)) for field in fields]
    return f"saved with {' and '.join(old for old, _ in pairs)}, here {' and '.join(new for _, new in pairs)}"


def _in_words(field: str, there: object, here: object) -> tuple[str, str]:
    old, new = str(there or "none"), str(here or "none")
    if field == "threads":
        return f"{old} thread{'s' * (old != '1')}", new
    if field == "features":  # instructions, a comma, cache sizes: name the part that differs
        (old, _, old_caches), (new, _, new_caches) = old.partition(", "), new.partition(", ")
        return (old, new) if old != new else (f"caches of {old_caches or 'unknown size'}", new_caches or "unknown")
    return (old, new) if field == "isa" else (f"{field.capitalize()} {old}", new)


def peaks_of(replicates: Sequence[Replicate]) -> list[int]:
    """Return the peak memory, in bytes, of each replicate that has an exact one."""
    return [r.memory.peak_bytes for r in replicates if r.memory is not None and r.memory.exact_bytes is not None]


def judge_memory(before_bytes: Sequence[int], now_bytes: Sequence[int], device: str, policy: Policy) -> Finding:
    """Judge peak memory: the smallest peak now against the largest before, both in bytes."""
    if not before_bytes or not now_bytes:
        return NOT_COMPARED
    before, after = max(before_bytes), min(now_bytes)
    rounding = block_bytes_on(device)
    slack = rounding if rounding > 1 else 0
    allowed = before * (1.0 + policy.memory_threshold) + slack
    change = Change.exact(before, after, 1.0 + policy.memory_threshold)
    if after > allowed:
        return Finding(change, Verdict.REGRESSED)
    if max(now_bytes) < min(before_bytes) - slack:
        return Finding(change, Verdict.IMPROVED)
    return Finding(change, Verdict.OK)


def judge_peaks(
    before_bytes: Sequence[int], now: Sequence[Replicate], device: str, policy: Policy
) -> tuple[Finding, list[Uncompared]]:
    """Judge the peaks of ``now`` against those before. Return the finding, and what was not compared.

    If calls differ, the memory held after warm-up stands for the peak: it regressed if it exceeds the peaks before, and
    is not compared otherwise.
    """
    needed = [r.memory.least.get("memory", r.memory.peak_bytes) for r in now if r.memory is not None]
    found = judge_memory(before_bytes, needed, device, policy)
    if found.change is None or len(peaks_of(now)) == len(needed):
        return found, []
    if found.verdict is not Verdict.REGRESSED:
        return NOT_COMPARED, [Uncompared("memory", CALLS_DIFFER, calls_differ=True)]
    held = format_bytes(int(found.change.now))
    return replace(found, reasons=[f"calls differ, and {held} held after warm-up is more than the whole peak was"]), []


def unless_calls_differ(judgement: Judgement, now: Sequence[Replicate]) -> Judgement:
    """Return the judgement, made inconclusive if later calls found nothing to do or differ in what was exact before.

    Only the verdicts ``ok`` and ``improved`` change.
    """
    used_up = any(r.memory is not None and r.memory.used_up for r in now)
    lost = [one.quantity.replace("_", " ") for one in judgement.not_compared if one.calls_differ]
    said = ["later calls found nothing to do, so this is not the time of the work"] if used_up else []
    said += [f"calls differ, so that nobody can tell whether these rose: {format_names(lost)}"] if lost else []
    if not said or judgement.verdict not in (Verdict.OK, Verdict.IMPROVED):
        return judgement
    reasons, left = [*judgement.reasons, *said], [] if used_up else judgement.unsettled
    return changed(judgement, verdict=Verdict.INCONCLUSIVE, reasons=reasons, suspect=False, unsettled=left)


def needed_more(found: Comparable, record: Record, policy: Policy) -> bool:
    """Whether the bytes that an out-of-memory case held and asked for certainly exceed its baseline's peak."""
    ran_out = record.out_of_memory
    if ran_out is None or not found.exact.peak_bytes or "memory" in found.doubtful:
        return False
    needed = (ran_out.asked_bytes or 0) + sum(part.size_bytes for part in ran_out.alive)
    device = record.environment.device
    return judge_memory(found.exact.peak_bytes, [needed], device, policy).verdict is Verdict.REGRESSED


@dataclass(frozen=True)
class Needs:
    """The comparison of a case's memory and counts with their baseline."""

    memory: Finding
    counts: dict[str, Change]
    drift: dict[str, Drift]
    not_compared: list[Uncompared]

    @property
    def is_compared(self) -> bool:
        """Whether memory or any count is compared, or would be if calls did not differ."""
        tells = any(change.limit is not None for change in self.counts.values())
        return self.memory.change is not None or tells or any(one.calls_differ for one in self.not_compared)


def judge_exact(
    record: Record, now: Sequence[Replicate], found: Comparable | Sequence[str], times: Entry | None, policy: Policy
) -> Needs:
    """Compare a case's memory and counts with the comparable part of its baseline.

    Args:
        record: the case.
        now: the readings that are judged.
        found: the comparable quantities; else the decisive differences, empty if nothing is stored.
        times: the baseline's times on this machine, which hold the counts that depend on its processor; or None.
        policy: thresholds.
    """
    counted = values_of(times.replicates) if times is not None else {}  # counts with a slack are stored with the times
    if not isinstance(found, Comparable):
        why = f"baseline from another environment: {', '.join(found)}" if found else "no baseline yet"
        counts, _ = judge_counts(now, counted, gated=policy.gate_counts)
        here = [name for name in values_of(now) if name not in SLACK and policy.gate_counts]
        missed = [Uncompared(name, why, can_be_saved=True) for name in ["memory"] * bool(peaks_of(now)) + here]
        return Needs(NOT_COMPARED, counts, {}, missed)
    exact = found.exact
    memory, drift, missed = _memory(found, now, record.environment.device, policy)
    before = with_parts({name: [value] for name, value in exact.counts.items()}, values_of(now))
    counts, uncounted = judge_counts(now, {**before, **counted}, gated=policy.gate_counts)
    missed += uncounted
    if exact.varying is not None and policy.gate_counts:
        unknown = [name for name in values_of(now) if name not in {*before, *exact.varying, *SLACK}]
        missed += [Uncompared(name, "not counted when its baseline was saved", can_be_saved=True) for name in unknown]
    in_some = any(CALLGRIND in one.counts for one in times.replicates) if times is not None else False
    if policy.gate_counts and in_some and CALLGRIND not in counted and CALLGRIND in values_of(now):
        missed.append(Uncompared(CALLGRIND, "not counted in each process when its baseline was saved"))
    for name, why in found.doubtful.items():
        if name in counts and counts[name].now != counts[name].before:
            del counts[name]
            missed += [Uncompared(name, why, can_be_saved=True, elsewhere=True)] if policy.gate_counts else []
    return Needs(memory, counts, drift, missed)


def _memory(
    found: Comparable, now: Sequence[Replicate], device: str, policy: Policy
) -> tuple[Finding, dict[str, Drift], list[Uncompared]]:
    exact, why = found.exact, found.doubtful.get("memory")
    memory, missed = judge_peaks(exact.peak_bytes, now, device, policy)
    if memory.change is None:
        where = "here" if exact.peak_bytes else "when its baseline was saved"
        is_one_sided = bool(exact.peak_bytes) != bool(peaks_of(now))
        return memory, {}, missed or [Uncompared("memory", f"not measured {where}")] * is_one_sided
    if why is not None and memory.change.now != memory.change.before:
        differ = bool(memory.reasons)
        return NOT_COMPARED, {}, [Uncompared("memory", why, can_be_saved=True, calls_differ=differ, elsewhere=True)]
    anchor = exact.memory_anchor
    if anchor is None or memory.reasons:
        return memory, {}, []
    older = judge_memory([anchor.peak_bytes], peaks_of(now), device, policy)
    memory, drift = worse_of_two(memory, older, anchor.recorded, anchor.steps)
    return memory, {"memory": drift}, []
