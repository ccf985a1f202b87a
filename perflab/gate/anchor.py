"""What becomes of a baseline's anchors and of its history when it is saved again. Pure; decided at save time.

A baseline follows every ``--perf-update``, so steps that are each too small to count would add up to anything. Its
anchor does not follow: it keeps the replicates of an older save, and the judge compares with both. An anchor moves
to the new replicates only where somebody saw the change, or where nothing can hide in it:

- the step from the last baseline is itself past the limit, in either direction;
- a reason was given;
- the new replicates are better than the anchor by more than the limit.

Time and memory have an anchor each: a change of one that everybody saw must not hide what the other has gathered.
"""

from __future__ import annotations

import msgspec

from perflab.environment import differences
from perflab.gate.judge import judge_memory, latency_change, peaks_of
from perflab.records import Accepted, Anchor, Change, Entry, MemoryAnchor, Policy, Verdict

ACCEPTED_KEPT = 10
"""Accepted changes that an entry remembers."""


def successor(old: Entry | None, new: Entry, policy: Policy, reason: str | None) -> Entry:
    """What is stored when ``new`` takes the place of ``old``.

    Args:
        old: what the file holds now, or None.
        new: what was measured, with all replicates; it brings no anchor and no history.
        policy: what counts as worse for this case.
        reason: what ``--perf-reason`` says, or None.

    Returns:
        ``new`` with its anchors and the accepted changes. Without an anchor its own replicates are the anchor.
    """
    if old is None:
        return _with_history(new, [], Accepted(date=new.recorded, reason=reason, commit=new.commit) if reason else None)
    if differences(old.environment, new.environment) or not old.replicates or not new.replicates:
        # Nothing to compare by number. Memory that ran out, or does no more, is a change that everybody sees.
        seen = not differences(old.environment, new.environment) and bool(old.replicates) != bool(new.replicates)
        change = Accepted(date=new.recorded, reason=reason, commit=new.commit) if seen or reason else None
        return _with_history(new, old.accepted, change)

    step = latency_change(old.replicates, new.replicates, policy)
    memory = judge_memory(peaks_of(old.replicates), peaks_of(new.replicates), new.environment.device, policy)
    stepped = _direction(step, policy) != 0
    memory_stepped = memory.verdict is not Verdict.OK
    anchors = msgspec.structs.replace(
        new,
        anchor=None if stepped or reason else _kept_anchor(old, new, policy),
        memory_anchor=None if memory_stepped or reason else _kept_memory_anchor(old, new, policy),
    )
    if not (stepped or memory_stepped or reason):
        return _with_history(anchors, old.accepted, None)
    peaks = memory.change if memory.change is not None and memory.change.before != memory.change.now else None
    change = Accepted(
        date=new.recorded,
        latency_ratio=round(step.ratio, 4),
        peak_bytes_before=int(peaks.before) if peaks else None,
        peak_bytes_now=int(peaks.now) if peaks else None,
        reason=reason,
        commit=new.commit,
    )
    return _with_history(anchors, old.accepted, change)


def past_anchor(entry: Entry, policy: Policy) -> list[str]:
    """By which of ``latency`` and ``memory`` an entry's own replicates are worse than its anchors, past the limit."""
    past = []
    if entry.anchor is not None and entry.replicates:
        change = latency_change(entry.anchor.replicates, entry.replicates, policy)
        if _direction(change, policy) > 0:
            past.append("latency")
    if entry.memory_anchor is not None:
        peaks = peaks_of(entry.replicates)
        found = judge_memory([entry.memory_anchor.peak_bytes], peaks, entry.environment.device, policy)
        if found.verdict is Verdict.REGRESSED:
            past.append("memory")
    return past


def _with_history(entry: Entry, accepted: list[Accepted], change: Accepted | None) -> Entry:
    history = [*accepted, change] if change is not None else accepted
    return msgspec.structs.replace(entry, accepted=history[-ACCEPTED_KEPT:])


def _direction(change: Change, policy: Policy) -> int:
    """1 if slower past the limit, -1 if faster, 0 for everything between."""
    assert change.limit is not None
    if change.is_vague or abs(change.now - change.before) <= policy.floor_ns:
        return 0
    return (change.ratio > change.limit) - (change.ratio < 1.0 / change.limit)


def _kept_anchor(old: Entry, new: Entry, policy: Policy) -> Anchor | None:
    """The old anchor, one step older; None if the new replicates are better than it."""
    anchor = old.anchor or Anchor(recorded=old.recorded, replicates=old.replicates, steps=0, commit=old.commit)
    if _direction(latency_change(anchor.replicates, new.replicates, policy), policy) < 0:
        return None
    return msgspec.structs.replace(anchor, steps=anchor.steps + 1)


def _kept_memory_anchor(old: Entry, new: Entry, policy: Policy) -> MemoryAnchor | None:
    """The same for memory; None too where nothing differs, or where one of the two was not measured."""
    peaks, before = peaks_of(new.replicates), peaks_of(old.replicates)
    if not peaks or not before:
        return None
    anchor = old.memory_anchor or MemoryAnchor(
        recorded=old.recorded, peak_bytes=max(before), steps=0, commit=old.commit
    )
    unmoved = min(peaks) == max(peaks) == anchor.peak_bytes
    if unmoved or judge_memory([anchor.peak_bytes], peaks, new.environment.device, policy).verdict is Verdict.IMPROVED:
        return None
    return msgspec.structs.replace(anchor, steps=anchor.steps + 1)
