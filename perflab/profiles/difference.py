"""Explains why one profile takes longer than another: which operators run more often, and which take longer. Pure.

A change in how often an operator is called, or on which shapes, is a fact of the code: such parts come first, whatever
the noise. A row that is called as often as before is named only if its change clearly exceeds its spread.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from math import hypot
from statistics import median

from perflab.base.data import changed
from perflab.profiles.facts import HALF, Calls, Key, Shifts, Total, facts_of, shifts_of, totals_of
from perflab.profiles.parts import first_told, host_parts, parts_of
from perflab.profiles.python_change import OWN_SHARE, SPREADS, WORTH, python_parts
from perflab.profiles.wholes import wholes
from perflab.results.profile import DISPATCH, GAPS, ON_HOST, OTHER_THREAD, PYTHON, UNNAMED, Explanation, Part, Profile
from perflab.units import format_count, format_ns, format_signed

_AGREE = 0.5
"""The greatest difference between the profiles' change and the gate's, as a share of the gate's change, at which the
profiles still explain times. If a greater share is left unexplained, most of the change is spread over many
operators."""
_OWN_REST = 0.1
"""Share of the gate's change that may stay unexplained even if the gate's interval is narrower: two processes differ
by as much."""
_COMMON = 1.02
"""The ratio of times above which operators have become slower as a whole."""
_FEW_CALLS = 4
"""The least number of profiled calls whose spread is meaningful. With fewer calls, only facts of the code are named."""
_SMALL = 0.05
"""Share of the change below which a part does not explain the change and is listed last."""


def explain(
    base: Profile, head: Profile, against: str, change_ns: float | None, interval_ns: tuple[float, float] | None = None
) -> Explanation:
    """Explain what makes ``head`` slower than ``base``.

    Args:
        base, head: profiles of one case.
        against: the name of the base in texts.
        change_ns: how much longer a call takes by the gate's own measurement; None: another metric than time is
            explained.
        interval_ns: the interval of ``change_ns``, from least to most; None: the change has no interval.
    """
    base, head = _seen_alike(base, head)
    problem = None
    if base.devices != head.devices and change_ns is not None:
        problem = f"now on {format_count(head.devices, 'GPU')}, before on {base.devices}: times are not compared"
    elif base.devices == head.devices:
        base, head = _of_one_device(base), _of_one_device(head)
    before, now = (totals_of(row for row in one.rows if not row.is_plain) for one in (base, head))
    plain_before, plain_now = ([row for row in one.rows if row.is_plain] for one in (base, head))
    facts = facts_of(before, now)
    known = {one.key for one in facts}
    called = {  # the cause is a line that the base lacks, if there is one
        name: next((line for line in reversed(lines) if line not in base.called.get(name, [])), lines[-1])
        for name, lines in head.called.items()
        if lines
    }
    parts = parts_of(facts, wholes(before, now, facts), now, called)
    parts = [_with_place(part, before, now, called) for part in parts]
    seen_ns = head.explained_ns - base.explained_ns
    whole_ns = abs(change_ns if change_ns is not None else seen_ns)
    # The least and the greatest sum of parts that explains the change.
    gate_ns = change_ns or 0.0
    least_ns, most_ns = interval_ns or (gate_ns, gate_ns)
    least_ns = min(least_ns, gate_ns - _OWN_REST * abs(gate_ns))
    most_ns = max(most_ns, gate_ns + _OWN_REST * abs(gate_ns))
    plain = list(python_parts(plain_before, plain_now, whole_ns)) if change_ns is not None else []
    parts = sorted([*parts, *(part for part, _ in plain if part.more)], key=first_told)
    if problem is not None:
        parts = [changed(part, change_ns=0.0) for part in parts]
    elif change_ns is not None and not least_ns <= seen_ns <= most_ns and abs(seen_ns - change_ns) > _AGREE * whole_ns:
        problem = (
            f"the profiles differ by {format_signed(seen_ns, format_ns)}, and the gate found "
            f"{format_signed(change_ns, format_ns)}: they do not explain times"
        )
        parts += [part for part, is_certain in plain if is_certain and not part.more and part.change_ns * change_ns > 0]
    elif change_ns is None:
        parts += varying(before, now, known)
    else:
        common = common_ratio(before, now, known)
        if min(base.calls, head.calls) >= _FEW_CALLS:
            longer = [*slower(before, now, known, whole_ns, common), *(part for part, _ in plain if not part.more)]
            parts += sorted(longer, key=lambda part: -part.change_ns)
        parts.sort(key=lambda part: part.change_ns < _SMALL * whole_ns)  # facts that do not take the time: last
        if not any(part.change_ns >= _SMALL * whole_ns for part in parts) and common > _COMMON:
            problem = (
                f"all operators take longer alike (about {100 * (common - 1):+.0f}%): the machine, its threads or "
                "clocks, or what is installed, and no operator by itself"
            )
    if base.device != "cpu":
        parts = [changed(part, category=ON_HOST) if part.category == DISPATCH else part for part in parts]
    parts += host_parts(base, head, with_launches=not facts)
    if change_ns is None and not parts:
        lacks = "; CUDA's calls are not known of both" if base.device != "cpu" and not base.cuda_calls else ""
        problem = f"no operator is called more often: a profile does not keep what this count counts{lacks}"
    told_ns = sum(part.change_ns for part in parts)
    rest_ns = round((change_ns if change_ns is not None else seen_ns) - told_ns, 1)
    if change_ns is not None and problem is None and not least_ns <= told_ns <= most_ns:
        if change_ns * rest_ns < 0:
            problem = (
                "these parts are more than the change: something became faster that is not among them, or they take "
                "longer under the profiler"
            )
        elif abs(rest_ns) > _AGREE * whole_ns:
            problem = "most of the change is spread, or within the noise of single operators"
        else:
            problem = "these parts are not all of the change: what is left is more than its interval leaves open"
    return Explanation(
        base=against, before_ns=base.timer_ns, now_ns=head.timer_ns, parts=parts, rest_ns=rest_ns, problem=problem
    )


def _with_place(part: Part, before: Mapping[Key, Total], now: Mapping[Key, Total], called: Mapping[str, str]) -> Part:
    """Return a part that lacks a line with the line that has more gaps of Python than before, or that calls its module.

    PyTorch's own small work has no lines, but each call of it from Python ends a gap that has one.
    """
    if part.line or part.called or part.more <= HALF:
        return part
    more: Counter[str] = Counter()
    shifts = shifts_of(before, now)
    for phase in part.phases or [""]:
        key = PYTHON, part.module, phase
        for line, (was, is_now) in _python_by_line(before.get(key, Total()), now.get(key, Total()), shifts).items():
            more[line] += round(is_now.instances - was.instances)
    line, often = more.most_common(1)[0] if more else ("", 0)
    if line and often > HALF and part.category == DISPATCH:
        return changed(part, line=line)
    return changed(part, called=called.get(part.module, "").partition(" < ")[0]) if part.module else part


def _seen_alike(base: Profile, head: Profile) -> tuple[Profile, Profile]:
    """Return both profiles without the rows that cannot be compared.

    Lines of plain Python are not named unless both profiles watched lines. On a GPU, operators that launch nothing
    follow from the work on the device, so the rows of such operators are dropped if operators that launch kernels
    changed.
    """
    if not (base.has_plain and head.has_plain):
        base, head = _with_plain_unnamed(base), _with_plain_unnamed(head)
    if base.device == "cpu":
        return base, head
    launch = [changed(one, rows=[row for row in one.rows if row.category != DISPATCH]) for one in (base, head)]
    return (launch[0], launch[1]) if facts_of(*(totals_of(one.rows) for one in launch)) else (base, head)


def _with_plain_unnamed(profile: Profile) -> Profile:
    """Return the profile with the time of plain Python lines under ``python``, and without rows of their calls."""
    rows = [changed(row, operator="", line="", code="") if row.is_plain else row for row in profile.rows]
    rows = [row for row in rows if row.category != PYTHON or not row.within]
    return changed(profile, rows=rows, has_plain=False)


def _of_one_device(profile: Profile) -> Profile:
    """Return the mean of a profile's devices, whose times together are several times the time of a call."""
    if profile.devices == 1:
        return profile
    rows = [
        changed(row, time_ns=row.time_ns / profile.devices, spread_ns=row.spread_ns / profile.devices)
        for row in profile.rows
    ]
    return changed(profile, rows=rows, devices=1)


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

    def stands_out(old: Calls, new: Calls) -> float:
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
            found[line if total is new else shifts.now(line)][side].add(one)
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
