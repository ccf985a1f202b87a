"""Parts that are no facts: operators called as before that take longer, and numbers of calls that vary. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from math import hypot
from statistics import median

from perflab.base.data import changed
from perflab.profiles.facts import HALF, Calls, Key, Shifts, Total, shifts_of
from perflab.results.profile import GAPS, OTHER_THREAD, PYTHON, UNNAMED, Part

SPREADS = 4.0
"""How many standard deviations of a row, from call to call, the row's change must exceed."""
OWN_SHARE = 0.1
"""Share of a row's time before that the row's change must exceed: two processes differ by as much without a cause."""
WORTH = 0.2
"""Share of the whole change that a part which is no fact of the code must exceed to be named."""
_COMMON_OF = 5
"""The least number of operators that show a common ratio, each with more than ``_COMMON_SHARE`` of the time."""
_COMMON_SHARE = 0.01
_GAPS = (*GAPS, OTHER_THREAD)


def slower(
    before: Mapping[Key, Total], now: Mapping[Key, Total], known: set[Key], whole_ns: float, common: float
) -> list[Part]:
    """Return parts for gaps, and for operators called as before as far as can be told, whose time clearly changed.

    The change is measured relative to the ``common`` ratio, in either direction, and is far beyond the spread. The
    greatest increase comes first.
    """

    def stands_out(old: Total | Calls, new: Total | Calls) -> float:
        change_ns = new.time_ns - old.time_ns * common
        noise_ns = max(SPREADS * hypot(old.spread_ns, new.spread_ns), OWN_SHARE * old.time_ns)
        return change_ns if abs(change_ns) > max(noise_ns, WORTH * whole_ns) else 0.0

    found, shifts = [], shifts_of(before, now)
    for key in (before.keys() | now.keys()) - known:
        old, new = before.get(key, Total()), now.get(key, Total())
        varies = key[0] not in UNNAMED and abs(new.instances - old.instances) > HALF
        if key[0] not in _GAPS and not varies and not (key in before and key in now):
            continue
        by_line = _python_by_line(old, new, shifts) if key[0] == PYTHON else {}
        of_lines = [
            (line, change_ns) for line, (was, is_now) in by_line.items() if (change_ns := stands_out(was, is_now))
        ]
        found += [changed(_longer(key, old, new, change_ns), line=line) for line, change_ns in of_lines]
        if not of_lines and (change_ns := stands_out(old, new)):
            found.append(_longer(key, old, new, change_ns))
    return sorted(found, key=lambda part: (-part.change_ns, part.module))


def _python_by_line(old: Total, new: Total, shifts: Shifts) -> dict[str, tuple[Calls, Calls]]:
    """Return ``python`` time before and now by the current place of the line whose operator ends the gap."""
    found: dict[str, tuple[Calls, Calls]] = defaultdict(lambda: (Calls(), Calls()))
    for side, total in enumerate((old, new)):
        for (_, line), one in total.calls.items():
            there = found[line if total is new else shifts.now(line)][side]
            there.time_ns += one.time_ns
            there.spread_ns = hypot(there.spread_ns, one.spread_ns)
    return found


def _longer(key: Key, old: Total, new: Total, change_ns: float) -> Part:
    """Return the part for an operator or gap whose time changed and that is called as before as far as can be told."""
    shown, more = new if new.category else old, new.instances - old.instances
    is_operator = key[0] not in UNNAMED
    return Part(
        change_ns=round(change_ns, 1),
        operator=key[0],
        module=key[1],
        line=shown.line if key[0] != PYTHON else "",
        phases=[key[2]] if key[2] else [],
        more=round(more, 2) if is_operator and abs(more) > HALF else 0.0,
        inputs=new.inputs_of(old) if is_operator else "",
        category=shown.category,
    )


def varying(before: Mapping[Key, Total], now: Mapping[Key, Total], known: set[Key]) -> list[Part]:
    """Return parts for operators whose number of calls changed but varies from call to call, so that it is no fact."""
    keys = [key for key in (before.keys() | now.keys()) - known if key[0] not in UNNAMED]
    found = (_longer(key, before.get(key, Total()), now.get(key, Total()), 0.0) for key in keys)
    return sorted((part for part in found if part.more), key=lambda part: (-abs(part.more), part.operator, part.module))


def common_ratio(before: Mapping[Key, Total], now: Mapping[Key, Total], known: set[Key]) -> float:
    """Return the ratio by which operators became slower as a whole; 1.0 if operators are few.

    The ratio is the median of the operators' ratios of time, and at least 1.0. Operators in ``known``, which are called
    otherwise than before, are left out. Each operator counts once, whatever its share of the time: an operator that
    takes most of the time must not be its own measure.
    """
    least_ns = _COMMON_SHARE * sum(one.time_ns for one in before.values())
    ratios = [
        now[key].time_ns / one.time_ns
        for key, one in before.items()
        if key in now and key not in known and key[0] not in _GAPS and one.time_ns > least_ns
    ]
    return max(1.0, median(ratios)) if len(ratios) >= _COMMON_OF else 1.0
