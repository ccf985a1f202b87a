"""Judging counts: what a call did before and does now. Exact where they are exact, and silent where they are not.

A count is *exact* if all of the baseline's replicates agree on it, and those of now among each other; one that is
not exact is not compared. Exact counts need no second reading. Instructions are never exact: they have a slack, and
a baseline whose replicates differ by more than half of it is not compared.
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.records import Change, Judgement, Replicate, Verdict

SLACK = {"instructions": 0.01, "callgrind_instructions": 0.01}
"""Share by which a count may rise that is not the same from run to run, such as by threads that spin."""


def judge_counts(
    now: Sequence[Replicate], before: Sequence[Replicate], *, gated: bool
) -> tuple[dict[str, Change], Verdict, list[str]]:
    """Compare the counts that both sides know.

    Args:
        now: this session's reading, or those of fresh processes where there are some.
        before: the baseline's replicates.
        gated: whether one that rose is a regression; else everything is ``ok`` and no change has a limit.

    Returns:
        The changes by name, the verdict on all of them, and what is worth saying.
    """
    changes: dict[str, Change] = {}
    reasons: list[str] = []
    for name in before[0].counts if before else ():
        old, new = _values(name, before), _values(name, now)
        if old is None or not _agree(name, old) or (name in SLACK and len(old) < 2):
            continue
        if new is None:
            continue
        if not _agree(name, new):
            reasons.append(f"{name} differ from process to process now ({min(new)} to {max(new)}), and are not gated")
            continue
        change = Change(before=max(old), now=min(new), ratio=min(new) / max(old) if max(old) else 1.0 + min(new))
        if gated:
            change = Change(before=change.before, now=change.now, ratio=change.ratio, limit=1.0 + SLACK.get(name, 0.0))
        changes[name] = change
    if any(rose(change) for change in changes.values()):
        return changes, Verdict.REGRESSED, reasons
    if any(fell(change) for change in changes.values()):
        return changes, Verdict.IMPROVED, reasons
    return changes, Verdict.OK, reasons


def rose(change: Change) -> bool:
    """Whether a gated count is past its limit."""
    return change.limit is not None and change.now > change.before * change.limit


def fell(change: Change) -> bool:
    """Whether a gated count is lower by more than its slack."""
    return change.limit is not None and change.now * change.limit < change.before


def exactly_worse(judgement: Judgement) -> list[str]:
    """What of the judgement's ``worse`` needs no second reading: memory, and counts that are exact."""
    exact = [change for name, change in judgement.counts.items() if name not in SLACK]
    return [
        name
        for name in judgement.worse
        if name == "memory" or (name == "counts" and any(rose(change) for change in exact))
    ]


def _values(name: str, replicates: Sequence[Replicate]) -> list[int] | None:
    """The count of each replicate; None if one does not have it."""
    found = [r.counts[name] for r in replicates if name in r.counts]
    return found if found and len(found) == len(replicates) else None


def _agree(name: str, values: Sequence[int]) -> bool:
    return max(values) <= min(values) * (1.0 + SLACK.get(name, 0.0) / 2.0)
