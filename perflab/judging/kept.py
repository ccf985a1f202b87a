"""Decides what a store keeps of new replicates: as a baseline, or in a machine's own history of a case. Pure.

*Fitness*: replicates that are disturbed, or differ too much, are reported before they become a baseline.

*Anchors*: every ``--perf-update`` replaces a baseline, so steps that are each too small to count could add up without
bound. The baseline's anchor is not replaced: it keeps the replicates of an older save, and the judge compares with
both. An anchor moves to the new replicates only if somebody saw the change, or if the change cannot hide a slowdown:

- the step from the last baseline is itself past the limit, in either direction;
- a reason was given;
- the new replicates are better than the anchor by more than the limit.

Time and memory have separate anchors: a visible change of one must not hide the accumulated drift of the other.

*A machine's own history*: later runs are compared with it, so it holds readings of only one state of the code and the
machine. A new reading joins a history that it agrees with, replaces the history, or is left out. Readings of two states
never mix.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perflab.base.data import changed
from perflab.judging.doubts import SEEN_AT_LEAST, disturbances
from perflab.judging.exact import judge_memory
from perflab.judging.judge import judge, latency_change
from perflab.results.environment import differing
from perflab.results.measured import Accepted, Anchor, Baseline, Entry, Exact, MeasuredCase, MemoryAnchor
from perflab.results.measurement import Replicate
from perflab.results.records import ENOUGH_RUNS, Change, Environment, Policy, Verdict
from perflab.units import format_ns, format_percent

KEPT_REPLICATES = 5
"""The largest number of runs in a history. Later runs with unchanged times add no information."""
FAR = 1.5
"""Readings of the same code whose ratio is at least this come from two states of the machine; the report says so."""
ACCEPTED_KEPT = 10
"""Largest number of accepted changes that a stored baseline keeps."""


@dataclass(frozen=True)
class Reading:
    """A run's measurement of a case."""

    entry: Entry
    policy: Policy
    """The policy that judges the case."""
    is_worse: bool = False
    """Whether the case regressed, so that later runs must not be compared with its times."""


@dataclass(frozen=True)
class Step:
    """The effect of a run on a case's history."""

    entry: Entry
    """The history after the run."""
    is_begun: bool = False
    """Whether the case had no comparable history before."""
    begun_anew: str | None = None
    """Why the reading replaced a history that times were compared with; None if it replaced no such history."""
    left_out: str | None = None
    """The typical times before and now, if the reading was left out although the code is the same and the times are
    ``FAR`` apart; None otherwise."""


def next_step(old: Entry | None, new: Entry, policy: Policy) -> Step:
    """Return the step of a history ``old`` once a run has measured ``new``.

    A reading that the judge finds unchanged joins the history. So does a reading of the same code that is not ``FAR``
    off, while the history has too few runs to know their noise. A faster reading replaces a history of other code, or a
    single reading of the same code: a disturbance makes a reading slower. Any other reading is left out, else later
    runs would be compared with a slowdown.
    """
    if old is None or old.environment != new.environment or not old.replicates:
        return Step(new, is_begun=True)
    before, now = _typical_ns(old), _typical_ns(new)
    is_short = len(old.replicates) < ENOUGH_RUNS
    joined = changed(old, replicates=[*old.replicates, *new.replicates][:KEPT_REPLICATES])
    if _is_mixed(old, policy):
        return Step(new, begun_anew=f"two kinds of times before, {format_ns(now)} now")
    if _agrees(old, new, policy) or (is_short and _is_same_code(old, new) and not _is_mixed(joined, policy)):
        return Step(joined)
    if now < before and (len(old.replicates) == 1 or not _is_same_code(old, new)):
        return Step(new, begun_anew=None if is_short else f"faster code: {_beside(before, now)}")
    return Step(old, left_out=unexplained(old, new))


def unexplained(old: Entry, new: Entry) -> str | None:
    """Format times ``FAR`` apart that no change of code explains (``1 ms before, 2 ms now``); None if none are."""
    if old.environment != new.environment or not _is_same_code(old, new) or not (old.replicates and new.replicates):
        return None
    before, now = _typical_ns(old), _typical_ns(new)
    return _beside(before, now) if max(before / now, now / before) >= FAR else None


def _is_same_code(old: Entry, new: Entry) -> bool:
    return new.commit is not None and old.commit == new.commit and not new.commit.endswith("+dirty")


def _typical_ns(entry: Entry) -> float:
    return median(one.median_ns for one in entry.replicates)


def _beside(before_ns: float, now_ns: float) -> str:
    return f"{format_ns(before_ns)} before, {format_ns(now_ns)} now"


def _is_mixed(history: Entry, policy: Policy) -> bool:
    """Whether a history mixes readings of two states, as earlier versions allowed: such a history hides slowdowns."""
    medians = [one.median_ns for one in history.replicates]
    return max(medians) >= FAR * min(medians) and max(medians) - min(medians) > policy.floor_ns


def _agrees(old: Entry, new: Entry, policy: Policy) -> bool:
    """Whether the judge finds the time unchanged. Only time is compared: missing exact quantities do not matter."""
    time_alone = changed(policy, gate_counts=False)
    replicates = new.replicates
    several = replicates if len(replicates) > 1 else []
    record = MeasuredCase(case="", environment=new.environment, summary=replicates[0], fresh=several)
    return judge(record, Baseline(times=old), time_alone).verdict is Verdict.OK


@dataclass(frozen=True)
class Fitness:
    """The quality of replicates, to know before they become a baseline."""

    disturbed: list[str]
    """Disturbances of the typical replicate, as sentences."""
    sees: float
    """The smallest slowdown that a comparison with these replicates reports, as a share."""
    is_blind: bool
    """Whether the comparison would miss a slowdown of twice the threshold."""
    is_alone: bool = False
    """Whether the replicates are one process, whose noise is unknown: no slowdown is proved against it."""

    @property
    def is_calm(self) -> bool:
        """Whether the replicates are undisturbed and precise enough."""
        return not (self.disturbed or self.is_blind)

    @property
    def marks(self) -> list[str]:
        """The problems of the replicates, as sentences; empty for a faultless baseline."""
        differ = f"its replicates differ so much that only slowdowns above {format_percent(self.sees)} count"
        return [*([differ] if self.is_blind else []), *self.disturbed]


def fitness(replicates: Sequence[Replicate], environment: Environment, policy: Policy) -> Fitness:
    """Return the fitness of replicates, at least one."""
    change = latency_change(replicates, replicates, policy)
    assert change.limit is not None
    sees = change.limit - 1.0
    counts = sees * median(r.median_ns for r in replicates) > policy.floor_ns
    is_blind = counts and sees > SEEN_AT_LEAST * policy.threshold
    return Fitness(disturbances(replicates, [], environment), sees, is_blind, is_alone=len(replicates) == 1)


def calmest(replicates: Sequence[Replicate], wanted: int, environment: Environment) -> list[Replicate]:
    """Return all undisturbed replicates; if they are fewer than ``wanted``, add the first disturbed ones."""
    disturbed = [bool(disturbances([one], [], environment)) for one in replicates]
    calm = [one for one, is_disturbed in zip(replicates, disturbed, strict=True) if not is_disturbed]
    others = [one for one, is_disturbed in zip(replicates, disturbed, strict=True) if is_disturbed]
    return [*calm, *others[: max(0, wanted - len(calm))]]


def times_successor(old: Entry | None, new: Entry, policy: Policy, reason: str | None) -> Entry:
    """Return the times to store when ``new`` replaces ``old``.

    Args:
        old: what the file holds now, or None.
        new: the measurement with all replicates, without an anchor or a history.
        policy: what counts as worse for this case.
        reason: what ``--perf-reason`` says, or None.

    Returns:
        ``new`` with its anchor and the accepted changes. If the anchor is None, its own replicates are the anchor.
    """
    told = Accepted(date=new.recorded, reason=reason, commit=new.commit)
    if old is None:
        return changed(new, accepted=_history([], told if reason else None))
    foreign = bool(differing(old.environment, new.environment))
    if foreign or not old.replicates or not new.replicates:
        # There are no numbers to compare. That a case began or ceased to run out of memory is visible to everybody.
        seen = not foreign and bool(old.replicates) != bool(new.replicates)
        return changed(new, accepted=_history(old.accepted, told if seen or reason else None))
    step = latency_change(old.replicates, new.replicates, policy)
    if _direction(step, policy) != 0 or reason is not None:
        return changed(new, accepted=_history(old.accepted, changed(told, latency_ratio=round(step.ratio, 4))))
    anchor = old.anchor or Anchor(recorded=old.recorded, replicates=old.replicates, steps=0, commit=old.commit)
    is_better = _direction(latency_change(anchor.replicates, new.replicates, policy), policy) < 0
    kept = None if is_better else changed(anchor, steps=anchor.steps + 1)
    return changed(new, anchor=kept, accepted=_history(old.accepted, None))


def exact_successor(old: Exact | None, new: Exact, policy: Policy, reason: str | None) -> Exact:
    """Return the exact quantities to store when ``new`` replaces ``old``.

    Only peak memory has an anchor, because its threshold would let it grow unseen.
    """
    told = Accepted(date=new.recorded, reason=reason, commit=new.commit)
    if old is None:
        return changed(new, accepted=_history([], told if reason else None))
    memory = judge_memory(old.peak_bytes, new.peak_bytes, new.environment.device, policy)
    moves = memory.verdict is Verdict.REGRESSED or reason is not None
    if memory.verdict is Verdict.IMPROVED and memory.change is not None:  # by less than the threshold it is no step
        moves = moves or memory.change.now * (1.0 + policy.memory_threshold) < memory.change.before
    peaks = memory.change if memory.change is not None and memory.change.before != memory.change.now else None
    if peaks is not None:
        told = changed(told, peak_bytes_before=int(peaks.before), peak_bytes_now=int(peaks.now))
    return changed(
        new,
        memory_anchor=None if moves else _kept_memory_anchor(old, new, policy),
        accepted=_history(old.accepted, told if moves else None),
    )


def is_past_anchor(entry: Entry, policy: Policy) -> bool:
    """Whether an entry's own replicates are slower than its anchor by more than the limit."""
    if entry.anchor is None or not entry.replicates:
        return False
    return _direction(latency_change(entry.anchor.replicates, entry.replicates, policy), policy) > 0


def is_past_memory_anchor(exact: Exact, policy: Policy) -> bool:
    """Whether peak memory exceeds its anchor by more than the policy allows."""
    if exact.memory_anchor is None:
        return False
    before, device = [exact.memory_anchor.peak_bytes], exact.environment.device
    return judge_memory(before, exact.peak_bytes, device, policy).verdict is Verdict.REGRESSED


def _history(accepted: Sequence[Accepted], change: Accepted | None) -> list[Accepted]:
    history = [*accepted, change] if change is not None else [*accepted]
    return history[-ACCEPTED_KEPT:]


def _direction(change: Change, policy: Policy) -> int:
    """Return 1 if slower past the limit, -1 if faster past it, 0 otherwise."""
    assert change.limit is not None
    if change.is_vague or abs(change.now - change.before) <= policy.floor_ns:
        return 0
    return (change.ratio > change.limit) - (change.ratio < 1.0 / change.limit)


def _kept_memory_anchor(old: Exact, new: Exact, policy: Policy) -> MemoryAnchor | None:
    """Return the old memory anchor with one step more.

    None if the new peak is better than the anchor or equal to it, or if either save has no peak.
    """
    peaks, before = new.peak_bytes, old.peak_bytes
    if not peaks or not before:
        return None
    anchor = old.memory_anchor or MemoryAnchor(
        recorded=old.recorded, peak_bytes=max(before), steps=0, commit=old.commit
    )
    unmoved = min(peaks) == max(peaks) == anchor.peak_bytes
    if unmoved or judge_memory([anchor.peak_bytes], peaks, new.environment.device, policy).verdict is Verdict.IMPROVED:
        return None
    return changed(anchor, steps=anchor.steps + 1)
