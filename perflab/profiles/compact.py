"""A profile small enough for a baseline, and another one seen in the same way, so that the two can be compared. Pure.

What takes most time keeps its rows. Of the rest there is one row an operator, without its places: so it is still known
how often each operator is called, and no call is taken for a new one because it was left out. PyTorch's own work, which
is no cause of anything, is one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

from perflab.data import changed
from perflab.profiles.parts import launches_and_waits
from perflab.profiles.records import (
    ANY_GAP,
    BACKWARD,
    DISPATCH,
    GAPS,
    OTHER,
    OTHER_THREAD,
    PYTHON,
    Profile,
    ProfileRow,
    merged_with,
)

MOST_ROWS = 24
"""Rows that keep their places."""
MOST_PLAIN = 60
"""Rows of plain Python that keep theirs."""
_WAITS = (*GAPS, OTHER_THREAD)
_DIGITS = 3
"""Of times: what is beyond them differs from save to save."""

_Key = tuple[str, str, str]


def compact(profile: Profile) -> Profile:
    """What a baseline keeps: no FLOPs, which shapes tell, short numbers, and the calls of CUDA that are counted."""
    plain = [row for row in profile.rows if row.is_plain]
    profile = _without_python_s_lines(profile)
    by_key: dict[_Key, list[ProfileRow]] = {}
    for row in profile.rows:
        if row.category != DISPATCH:
            by_key.setdefault(_key(row), []).append(row)
    kept: set[_Key] = set()
    left = MOST_ROWS
    for key, rows in sorted(by_key.items(), key=lambda item: -sum(row.time_ns for row in item[1])):
        if len(rows) <= left:
            kept.add(key)
            left -= len(rows)
    seen = _seen(profile, kept, {_name(row) for row in profile.rows if _key(row) not in kept})
    return changed(seen, rows=[*seen.rows, *_compact_plain(plain)])


def like_compact(profile: Profile, other: Profile) -> Profile:
    """A profile as ``other`` is seen, which is compact: with places where that one has them, and where all is new."""
    kept = {_key(row) for row in other.rows if _has_place(row)}
    pooled = {_name(row) for row in other.rows if not _has_place(row)}
    seen = _seen(_without_python_s_lines(profile), kept, pooled)
    return changed(seen, rows=[*seen.rows, *(row for row in profile.rows if row.is_plain)])


def _compact_plain(rows: Sequence[ProfileRow]) -> list[ProfileRow]:
    """Of plain Python: functions that take most time with all their lines, others as one row; and the calls of both."""
    by_function: dict[str, list[ProfileRow]] = {}
    for row in rows:
        by_function.setdefault(row.within or row.operator, []).append(row)
    found: list[ProfileRow] = []
    left = MOST_PLAIN
    for some in sorted(by_function.values(), key=lambda some: -sum(row.time_ns for row in some)):
        if len(some) <= left:
            left -= len(some)
            found += some
            continue
        merged: dict[tuple[str, str], ProfileRow] = {}
        for row in some:
            one, at = changed(row, line="", code="", phase="", module=""), (row.operator, row.within)
            merged[at] = merged_with(merged[at], one) if at in merged else one
        found += merged.values()
    return [changed(row, time_ns=_short(row.time_ns), spread_ns=_short(row.spread_ns)) for row in found]


def without_plain_python(profile: Profile) -> Profile:
    """A profile whose lines of plain Python are in ``python`` again, as it was stored before they had rows."""
    rows = [changed(row, operator="", line="", code="") if row.is_plain else row for row in profile.rows]
    rows = [row for row in rows if row.category != PYTHON or not row.within]
    return changed(profile, rows=rows, has_plain=False)


def _without_python_s_lines(profile: Profile) -> Profile:
    """Its gaps by module and phase alone: it has about as many lines as all operators together."""
    merged: dict[_Key, ProfileRow] = {}
    for row in profile.rows:
        if row.category == PYTHON and not row.is_plain:
            key = _key(row)
            merged[key] = merged_with(merged[key], row) if key in merged else changed(row, line="")
    return changed(profile, rows=[*(row for row in profile.rows if row.category != PYTHON), *merged.values()])


def with_one_gap(profile: Profile) -> Profile:
    """A profile whose gaps are one row without a place, to be compared with one that divides them differently.

    Before the work of another thread had rows of its own, its kernels were among those that no operator launched: these
    are part of the one row.
    """
    gaps = [row for row in profile.rows if _is_gap(row)]
    one = ProfileRow(
        category=ANY_GAP,
        instances=round(sum(row.instances for row in gaps), 3),
        time_ns=sum(row.time_ns for row in gaps),
        spread_ns=hypot(*(row.spread_ns for row in gaps)),
    )
    return changed(profile, rows=[*(row for row in profile.rows if not _is_gap(row)), one], gaps_apart=[])


def without_dispatch(profile: Profile) -> Profile:
    """A profile on a GPU without the operators that launch nothing, as it was stored before they had rows."""
    return changed(profile, rows=[row for row in profile.rows if row.category != DISPATCH])


def as_counted_before(profile: Profile, head: Profile, *, has_phases: bool) -> Profile:
    """A profile with what one knows that was stored when calls that are recorded twice were counted twice.

    Such operators are left out, and so are phases that the case does not have itself. ``head`` is the newer one.
    """
    left = (row for row in profile.rows if row.operator not in (head.counted_once or ()))
    rows = [row if has_phases or row.phase == BACKWARD else changed(row, phase="") for row in left]
    return changed(profile, rows=rows)


def _seen(profile: Profile, kept: set[_Key], pooled: set[str]) -> Profile:
    """With the rows of some keys as they are, and the others of some operators without places."""
    rows: list[ProfileRow] = []
    pools: dict[str, ProfileRow] = {}
    for row in profile.rows:
        name = _name(row)
        if row.category != DISPATCH and (_key(row) in kept or name not in pooled):
            rows.append(row)
            continue
        so_far = pools.get(name) or ProfileRow(category=row.category, operator=row.operator if name != DISPATCH else "")
        pools[name] = changed(
            so_far,
            instances=round(so_far.instances + row.instances, 3),
            time_ns=so_far.time_ns + row.time_ns,
            spread_ns=hypot(so_far.spread_ns, row.spread_ns),
        )
    calls = [changed(one, time_ns=_short(one.time_ns)) for one in launches_and_waits(profile.cuda_calls)]
    together = sorted([*rows, *pools.values()], key=lambda row: -row.time_ns)
    rounded = [changed(row, time_ns=_short(row.time_ns), spread_ns=_short(row.spread_ns), flops=0) for row in together]
    return changed(profile, rows=rounded, is_compact=True, cuda_calls=calls, called={})


def _is_gap(row: ProfileRow) -> bool:
    return row.category in _WAITS or (row.category == OTHER and not row.operator)


def _name(row: ProfileRow) -> str:
    return row.category if row.category == DISPATCH else row.operator or row.category


def _key(row: ProfileRow) -> _Key:
    return _name(row), row.module, row.phase


def _has_place(row: ProfileRow) -> bool:
    return bool(row.module or row.phase or row.line or row.shapes or row.kernel)


def _short(time_ns: float) -> float:
    return float(f"{time_ns:.{_DIGITS}g}")
