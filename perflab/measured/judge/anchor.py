"""Decides what happens to a baseline's anchor and history when it is saved again. Pure.

A baseline follows every ``--perf-update``, so steps that are each too small to count would add up to anything. Its
anchor does not follow: it keeps the replicates of an older save, and the judge compares with both. An anchor moves
to the new replicates only where somebody saw the change, or where nothing can hide in it:

- the step from the last baseline is itself past the limit, in either direction;
- a reason was given;
- the new replicates are better than the anchor by more than the limit.

Time and memory have an anchor each: a change of one that everybody saw must not hide what the other has gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.data import changed
from perflab.environment import differences
from perflab.measured.judge.exact import judge_memory
from perflab.measured.judge.judge import latency_change
from perflab.measured.records import Accepted, Anchor, Entry, Exact, MemoryAnchor
from perflab.records import Change, Policy, Verdict

ACCEPTED_KEPT = 10
"""Accepted changes that an entry remembers."""


def times_successor(old: Entry | None, new: Entry, policy: Policy, reason: str | None) -> Entry:
    """What is stored when ``new`` takes the place of ``old``.

    Args:
        old: what the file holds now, or None.
        new: what was measured, with all replicates; it brings no anchor and no history.
        policy: what counts as worse for this case.
        reason: what ``--perf-reason`` says, or None.

    Returns:
        ``new`` with its anchor and the accepted changes. Without an anchor its own replicates are the anchor.
    """
    told = Accepted(date=new.recorded, reason=reason, commit=new.commit)
    if old is None:
        return changed(new, accepted=_history([], told if reason else None))
    foreign = bool(differences(old.environment, new.environment))
    if foreign or not old.replicates or not new.replicates:
        # Nothing to compare by number. Memory that ran out, or does no more, is a change that everybody sees.
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
    """The same for what is exact, of which peak memory has an anchor: a threshold lets it grow unseen."""
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
    """Whether an entry's own replicates are slower than its anchor, past the limit."""
    if entry.anchor is None or not entry.replicates:
        return False
    return _direction(latency_change(entry.anchor.replicates, entry.replicates, policy), policy) > 0


def is_past_memory_anchor(exact: Exact, policy: Policy) -> bool:
    """Whether peak memory is past its anchor by more than is allowed."""
    if exact.memory_anchor is None:
        return False
    before, device = [exact.memory_anchor.peak_bytes], exact.environment.device
    return judge_memory(before, exact.peak_bytes, device, policy).verdict is Verdict.REGRESSED


def _history(accepted: Sequence[Accepted], change: Accepted | None) -> list[Accepted]:
    history = [*accepted, change] if change is not None else [*accepted]
    return history[-ACCEPTED_KEPT:]


def _direction(change: Change, policy: Policy) -> int:
    """1 if slower past the limit, -1 if faster, 0 for everything between."""
    assert change.limit is not None
    if change.is_vague or abs(change.now - change.before) <= policy.floor_ns:
        return 0
    return (change.ratio > change.limit) - (change.ratio < 1.0 / change.limit)


def _moves(peaks: Change | None, verdict: Verdict, policy: Policy) -> bool:
    """Whether a step of the peak is past the limit, either way. Less by a byte is an improvement, and no such step."""
    if verdict is not Verdict.IMPROVED or peaks is None:
        return verdict is Verdict.REGRESSED
    return peaks.now * (1.0 + policy.memory_threshold) < peaks.before


def _kept_anchor(old: Entry, new: Entry, policy: Policy) -> Anchor | None:
    """The old anchor, one step older; None if the new replicates are better than it."""
    anchor = old.anchor or Anchor(recorded=old.recorded, replicates=old.replicates, steps=0, commit=old.commit)
    if _direction(latency_change(anchor.replicates, new.replicates, policy), policy) < 0:
        return None
    return changed(anchor, steps=anchor.steps + 1)


def _kept_memory_anchor(old: Exact, new: Exact, policy: Policy) -> MemoryAnchor | None:
    """The same for memory; None too where nothing differs, or where one of the two was not measured."""
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
