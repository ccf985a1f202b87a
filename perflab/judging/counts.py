"""Judges counts: exact counts must not rise; others are not judged. Pure.

A count is *exact* if all of the baseline's replicates agree on it, and all replicates of now agree on it. A count that
is not exact regressed if the smallest value now lies above the largest of the baseline by more than the range of the
baseline's values; otherwise it is not compared, and the judgement says so. A count that differs from call to call is
represented by the smallest value of its calls. Exact counts need no re-measurement. Instructions are never exact: they
have a slack and a floor, and a baseline whose replicates differ by more is not compared: two ways of warming Python up
are 0.6 % apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perflab.results.measurement import Replicate
from perflab.results.records import Change, Judgement, Uncompared, Verdict

CALLS_DIFFER = "not exact here, since calls differ"
"""Why a quantity that was exact before is not compared."""
FAILS_ALREADY = "it fails already by what is exact, so its time was not measured on"
"""Why a case's time is not judged."""
CALLGRIND = "callgrind_instructions"
"""Name of the count that Callgrind takes in a separate process, which may fail although the measurement did not."""
SLACK = {"instructions": 0.01, CALLGRIND: 0.01}
"""Share by which a count that varies from run to run may rise."""
_FLOOR = 10_000
"""Instructions by which a count in ``SLACK`` may rise: about 3 us. Unchanged Python code differs by up to 4,000 between
processes, whatever it does (hash seeds, addresses); measured in docs/log.md."""


def values_of(replicates: Sequence[Replicate]) -> dict[str, list[int]]:
    """Return the counts that all replicates have: name -> the value of each replicate."""
    names = replicates[0].counts if replicates else ()
    return {name: [r.counts[name] for r in replicates] for name in names if all(name in r.counts for r in replicates)}


def with_parts(known: Mapping[str, Sequence[int]], others: Mapping[str, Sequence[int]]) -> dict[str, Sequence[int]]:
    """Return ``known`` with zeros for the parts of its totals that only ``others`` has.

    ``collectives:broadcast:float32`` is a part of the total ``collectives``: a side that has the total and no such part
    has counted none.
    """
    totals = {name: name.partition(":")[0] for name in others if ":" in name and name not in known}
    return {**known, **{name: [0] * len(known[total]) for name, total in totals.items() if total in known}}


def judge_counts(
    now: Sequence[Replicate],
    before: Mapping[str, Sequence[int]],
    *,
    gated: bool,
    lacking: str | None = None,
) -> tuple[dict[str, Change], list[Uncompared]]:
    """Compare the counts that both sides know.

    Args:
        now: the readings of fresh processes if there are any, else this session's single reading.
        before: the baseline's values, as ``values_of`` gives them.
        gated: whether a count that rose is a regression; else everything is ``ok`` and no change has a limit.
        lacking: the reason to report for a count that ``before`` lacks. None reports nothing, since baselines keep
            exact counts alone.

    Returns:
        The changes by name; and the exact counts that are gated but could not be compared.
    """
    changes: dict[str, Change] = {}
    missed: list[Uncompared] = []
    here: Mapping[str, Sequence[int]] = values_of(now)
    before = with_parts(before, here)
    here = with_parts(here, before)
    if gated and lacking is not None:
        missed += [Uncompared(name, lacking) for name in here if name not in {*before, *SLACK}]
    for name, old in before.items():
        if name in SLACK and (len(old) < 2 or not _agree(name, old)):
            continue
        new = here.get(name) or [seen for one in now if (seen := _least(name, one)) is not None]
        if len(new) < len(now) or not new:
            missed += [Uncompared(name, "not counted here")] if gated and name not in SLACK else []
            continue
        change = _change(name, old, new, gated=gated)
        where, unlike = ("there", old) if not _agree(name, old) else ("now", new)
        vary = name not in here
        if (vary or not _agree(name, unlike)) and not (change.is_past_limit and min(new) > 2 * max(old) - min(old)):
            differ = f"different from process to process {where} ({min(unlike)} to {max(unlike)})"
            why = CALLS_DIFFER if vary else differ
            missed += [Uncompared(name, why, calls_differ=vary)] if gated and name not in SLACK else []
            continue
        changes[name] = change
    return changes, missed


def _least(name: str, replicate: Replicate) -> int | None:
    """Return the replicate's count of one call, the smallest if calls differ; None if it was not counted."""
    least = replicate.memory.least if replicate.memory is not None else {}
    return replicate.counts.get(name, least.get(name))


def _change(name: str, old: Sequence[int], new: Sequence[int], *, gated: bool) -> Change:
    """Return the change from the largest count before to the smallest now.

    If the processes of now differ, ``low`` and ``high`` are the ratios of the smallest and the largest of their counts.
    """
    before = max(old)
    ratio, most = ((value / before if before else 1.0 + value) for value in (min(new), max(new)))
    low, high = (None, None) if _agree(name, new) else (ratio, most)
    limit = 1.0 + _slack(name, before) if gated else None
    return Change(before=before, now=min(new), ratio=ratio, low=low, high=high, limit=limit)


def verdict_on(changes: Mapping[str, Change]) -> Verdict:
    """Return the verdict on all counts together."""
    if any(change.is_past_limit for change in changes.values()):
        return Verdict.REGRESSED
    return Verdict.IMPROVED if any(fell(change) for change in changes.values()) else Verdict.OK


def fell(change: Change) -> bool:
    """Whether a gated count is lower by more than its slack."""
    return change.limit is not None and change.now * change.limit < change.before


def exactly_worse(judgement: Judgement) -> list[str]:
    """Return the names in ``judgement.worse`` that need no re-measurement: memory, and counts if an exact one rose."""
    exact = [change for name, change in judgement.counts.items() if name not in SLACK]
    return [
        name
        for name in judgement.worse
        if name == "memory" or (name == "counts" and any(change.is_past_limit for change in exact))
    ]


def _agree(name: str, values: Sequence[int]) -> bool:
    return max(values) <= min(values) * (1.0 + _slack(name, min(values)))


def _slack(name: str, value: float) -> float:
    """Return the share of ``value`` by which the count ``name`` may rise; 0 for an exact one."""
    return max(SLACK[name], _FLOOR / max(value, 1.0)) if name in SLACK else 0.0
