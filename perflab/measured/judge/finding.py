"""The verdict on one quantity, and the worst of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perflab.records import Change, Drift, Verdict

_ORDER = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.OK)
"""What is told first, of two verdicts on one case."""
BAD = (Verdict.REGRESSED, Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class Finding:
    """One quantity against one baseline or anchor."""

    change: Change | None
    verdict: Verdict
    reasons: Sequence[str] = ()
    is_plain: bool = False
    """Whether it is slower, and all that there is to doubt it is how many processes the baseline has."""


NOT_COMPARED = Finding(None, Verdict.OK)
"""A quantity of which there is nothing to compare."""


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Of what is said of a case's quantities, what is said of the case."""
    return min(verdicts, key=_ORDER.index)


def worse_of_two(newer: Finding, older: Finding, recorded: str, steps: int) -> tuple[Finding, Drift]:
    """Of a finding against the baseline and one against its anchor, what counts. An anchor only makes it worse."""
    assert older.change is not None
    decides = older.verdict in BAD and _ORDER.index(older.verdict) < _ORDER.index(newer.verdict)
    drift = Drift(recorded=recorded, steps=steps, change=older.change, decides=decides)
    if decides or (older.verdict is newer.verdict is Verdict.OK and not newer.reasons):
        said = [f"against its anchor of {recorded}: {reason}" for reason in older.reasons]
        return Finding(older.change if decides else newer.change, older.verdict, said), drift
    return newer, drift
