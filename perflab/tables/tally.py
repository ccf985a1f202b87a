"""The last line of a run: the number of cases with each verdict. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from perflab.results.records import Verdict
from perflab.results.result import Result, name_of, names

ACCEPTED = "accepted"
"""The word for a change that was saved as the new baseline: it was not examined further, and fails no run."""
LOOK_FIRST = (Verdict.REGRESSED, Verdict.FAILED, Verdict.OOM, Verdict.INCONCLUSIVE)
"""The verdicts that need a look, in this order."""
_CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)


def outcome(result: Result) -> str:
    """Return the word for a case: its verdict, or ``accepted`` if its change was saved."""
    return said_of(result.judgement.verdict, saved=result.saved)


def said_of(verdict: str, *, saved: bool) -> str:
    """Return the word for a verdict: the verdict itself, or ``accepted`` if it is a change and the case was saved."""
    return ACCEPTED if saved and verdict in _CHANGED else verdict


def way_of(result: Result) -> str:
    """Return the tier of a case's outcome: ``measured``, ``predicted``; ``""`` if there is no outcome."""
    return name_of(result.outcome) if result.outcome is not None else ""


def counted(results: Sequence[Result]) -> list[str]:
    """Return the number of cases with each verdict, in words: ``11 ok``, ``1 regressed``.

    The words name the tiers if there are several: ``7 measured ok``, ``24 predicted ok``, ``3 skipped``. A run that
    predicted cases and measured none also has ``0 measured``. A run that only compiled names no tier.
    """
    ways = {way_of(result) for result in results}
    stand_in = any(result.outcome is not None and result.outcome.stands_in for result in results)
    if len(ways - {""}) <= 1 and not stand_in:
        return _said("", results)
    said = [part for way in names() for part in _said(f"{way} ", [one for one in results if way_of(one) == way])]
    none = [f"0 {names()[0]}"] if stand_in and names()[0] not in ways else []
    return [*said, *none, *_said("", [one for one in results if not way_of(one)])]


def tally(results: Sequence[Result]) -> str:
    """Return the number of cases with each verdict in one line."""
    return " · ".join(counted(results))


def _said(way: str, results: Sequence[Result]) -> list[str]:
    counts = Counter(outcome(result) for result in results)
    return [f"{counts[word]} {way}{word}" for word in (*Verdict, ACCEPTED) if counts[word]]
