"""Where series end and begin anew because their environment changed: another PyTorch, driver or machine. Pure.

What lies on both sides is not compared, so nothing there is judged; but it must not be silent.
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.history.contents import BreakMember, BreakRow, SeriesRow

_FIRST = ("latency", "peak")
"""Quantities that are shown before others."""


def breaks_in(series: Sequence[SeriesRow], environments: Sequence[str]) -> list[BreakRow]:
    """The runs from which on a case's quantity is only measured elsewhere, oldest first.

    Args:
        series: all of them.
        environments: what numbers of each environment share, as text.
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
            member = BreakMember(
                before=old, after=new, old=series[old].levels[-1].value, new=series[new].levels[0].value
            )
            found.setdefault((series[new].runs[0], before, now), []).append(member)
    return [
        BreakRow(run=run, before=before, now=now, members=sorted(members, key=lambda one: _rank(series[one.before])))
        for (run, before, now), members in sorted(found.items())
    ]


def _differing(before: str, now: str) -> tuple[str, str]:
    """What two environments do not share: ``torch 2.13.0``, ``torch 2.14.0``."""
    old, new = (text.split(" · ") for text in (before, now))
    return " · ".join(one for one in old if one not in new), " · ".join(one for one in new if one not in old)


def _rank(row: SeriesRow) -> int:
    return _FIRST.index(row.quantity) if row.quantity in _FIRST else len(_FIRST)
