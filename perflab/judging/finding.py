"""The verdict on one quantity, and the worst of several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perflab.results.records import Change, Drift, Verdict

_ORDER = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.OK)
"""Verdicts in the order of precedence: the first one found decides for the case."""
BAD = (Verdict.REGRESSED, Verdict.INCONCLUSIVE)


@dataclass(frozen=True)
class Finding:
    """The verdict on one quantity, compared with one baseline or anchor."""

    change: Change | None
    verdict: Verdict
    reasons: Sequence[str] = ()
    is_plain: bool = False
    """Whether the case is slower, and the only possible doubt is the baseline's number of processes."""


NOT_COMPARED = Finding(None, Verdict.OK)
"""The finding on a quantity without values to compare."""


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a case from the verdicts on its quantities."""
    return min(verdicts, key=_ORDER.index)


def worse_of_two(newer: Finding, older: Finding, recorded: str, steps: int) -> tuple[Finding, Drift]:
    """Choose between a finding against the baseline and one against its anchor; return the finding and the drift.

    The anchor can only make the verdict worse.
    """
    assert older.change is not None
    decides = older.verdict in BAD and _ORDER.index(older.verdict) < _ORDER.index(newer.verdict)
    drift = Drift(recorded=recorded, steps=steps, change=older.change, decides=decides)
    if decides or (older.verdict is newer.verdict is Verdict.OK and not newer.reasons):
        said = [f"against its anchor of {recorded}: {reason}" for reason in older.reasons]
        return Finding(older.change if decides else newer.change, older.verdict, said), drift
    return newer, drift
