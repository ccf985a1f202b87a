"""Finds breaks: runs where a series ends and another begins, since its environment or its case's name changed. Pure.

A new environment is another PyTorch, driver or machine. The levels on the two sides of a break are not compared, so
nothing is judged there, but the break is reported. A case counts as renamed if its series ends as a series begins whose
environment, module and parameters are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from perflab.base.identity import file_of, name_in_file, test_of
from perflab.history.contents import BreakMember, BreakRow, SeriesRow

_FIRST = ("latency", "peak")
"""Quantities that are shown before all others."""


def breaks_in(series: Sequence[SeriesRow], environments: Sequence[str]) -> list[BreakRow]:
    """Return the runs from which on a case's quantity is only measured in another environment or under another name.

    The oldest run is first. ``environments`` has the text of each environment: what its numbers share.
    """
    same: dict[tuple[str, str, str], list[int]] = {}
    for at, one in enumerate(series):
        same.setdefault((one.case, one.variant, one.quantity), []).append(at)
    found: dict[tuple[int, str, str], list[BreakMember]] = {}
    for ones in same.values():
        for new in ones if len(ones) > 1 else ():
            ended = [old for old in ones if series[old].runs[-1] < series[new].runs[0]]
            if not ended:
                continue
            old = max(ended, key=lambda at: series[at].runs[-1])
            before, now = _differing(*(environments[series[at].environment] for at in (old, new)))
            found.setdefault((series[new].runs[0], before, now), []).append(_member(series, old, new))
    for old, new in _renamed(series):
        before, now = (_parts(series[at].case)[1] for at in (old, new))
        found.setdefault((series[new].runs[0], before, now), []).append(_member(series, old, new))
    return [
        BreakRow(run=run, before=before, now=now, members=sorted(members, key=lambda one: _rank(series[one.before])))
        for (run, before, now), members in sorted(found.items())
    ]


def _member(series: Sequence[SeriesRow], old: int, new: int) -> BreakMember:
    return BreakMember(before=old, after=new, old=series[old].levels[-1].value, new=series[new].levels[0].value)


def _renamed(series: Sequence[SeriesRow]) -> Iterator[tuple[int, int]]:
    """Yield each series that ends, with the series that begins in its place in the next run of the case's module."""
    runs: dict[tuple[int, str], set[int]] = {}
    alike: dict[tuple[int, str, str, str, str], list[int]] = {}
    for at, one in enumerate(series):
        module, _, parameters = _parts(one.case)
        runs.setdefault((one.environment, module), set()).update(one.runs)
        alike.setdefault((one.environment, module, parameters, one.variant, one.quantity), []).append(at)
    for (environment, module, *_), ones in alike.items():
        for last, first in pairwise(sorted(runs[environment, module]) if len(ones) > 1 else ()):
            ended = [at for at in ones if series[at].runs[-1] == last]
            begun = [at for at in ones if series[at].runs[0] == first]
            if len(ended) == len(begun) == 1:  # several cannot be matched
                yield ended[0], begun[0]


def _parts(case: str) -> tuple[str, str, str]:
    """Split a node id into the module, the name within the module, and the parameters."""
    test = test_of(case)
    return file_of(test), name_in_file(test), case[len(test) :]


def _differing(before: str, now: str) -> tuple[str, str]:
    """Return the parts in which two environments differ: ``torch 2.13.0``, ``torch 2.14.0``."""
    old, new = (text.split(" · ") for text in (before, now))
    return " · ".join(one for one in old if one not in new), " · ".join(one for one in new if one not in old)


def _rank(row: SeriesRow) -> int:
    return _FIRST.index(row.quantity) if row.quantity in _FIRST else len(_FIRST)
