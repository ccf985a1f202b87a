"""Decides what happens to a baseline's anchor and history when it is saved again. Pure.

Every ``--perf-update`` replaces a baseline, so steps that are each too small to count could add up without bound. The
baseline's anchor is not replaced: it keeps the replicates of an older save, and the judge compares with both. An anchor
moves to the new replicates only if somebody saw the change, or if the change cannot hide a slowdown:

- the step from the last baseline is itself past the limit, in either direction;
- a reason was given;
- the new replicates are better than the anchor by more than the limit.

Time and memory have separate anchors: a visible change of one must not hide the accumulated drift of the other.
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.base.data import changed
from perflab.judging.exact import judge_memory
from perflab.judging.judge import latency_change
from perflab.results.environment import differences
from perflab.results.measured import Accepted, Anchor, Entry, Exact, MemoryAnchor
from perflab.results.records import Change, Policy, Verdict

ACCEPTED_KEPT = 10
"""Largest number of accepted changes that a stored baseline keeps."""


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
    foreign = bool(differences(old.environment, new.environment))
    if foreign or not old.replicates or not new.replicates:
        # There are no numbers to compare. That a case began or ceased to run out of memory is visible to everybody.
        seen = not foreign and bool(old.replicates) != bool(new.replicates)
        return changed(new, accepted=_history(old.accepted, told if seen or reason else None))
    step = latency_change(old.replicates, new.replicates, policy)
    moves = _direction(step, policy) != 0 or reason is not None
    return changed(
        new,
        anchor=None if moves else _kept_anchor(old, new, policy),
        accepted=_history(old.accepted, changed(told, latency_ratio=round(step.ratio, 4)) if moves else None),
    )


def exact_successor(old: Exact | None, new: Exact, policy: Policy, reason: str | None) -> Exact:
    """Return the exact quantities to store when ``new`` replaces ``old``.

    Only peak memory has an anchor, because its threshold would let it grow unseen.
    """
    told = Accepted(date=new.recorded, reason=reason, commit=new.commit)
    if old is None:
        return changed(new, accepted=_history([], told if reason else None))
    memory = judge_memory(old.peak_bytes, new.peak_bytes, new.environment.device, policy)
    moves = _moves(memory.change, memory.verdict, policy) or reason is not None
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


def _moves(peaks: Change | None, verdict: Verdict, policy: Policy) -> bool:
    """Whether a step of the peak is past the limit in either direction.

    A peak that is lower by less than the threshold is an improvement, but not such a step.
    """
    if verdict is not Verdict.IMPROVED or peaks is None:
        return verdict is Verdict.REGRESSED
    return peaks.now * (1.0 + policy.memory_threshold) < peaks.before


def _kept_anchor(old: Entry, new: Entry, policy: Policy) -> Anchor | None:
    """Return the old anchor with one step more; None if the new replicates are faster than the anchor."""
    anchor = old.anchor or Anchor(recorded=old.recorded, replicates=old.replicates, steps=0, commit=old.commit)
    if _direction(latency_change(anchor.replicates, new.replicates, policy), policy) < 0:
        return None
    return changed(anchor, steps=anchor.steps + 1)


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
