"""Explains why one profile takes longer than another: what is called more often, and what takes longer. Pure.

What is called more or less often, or on other shapes, is a fact of the code: such parts come first, whatever the noise.
A row that is called as often as before is named only if its change stands out of its spread.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot
from statistics import median

from perflab.data import changed
from perflab.profiles.compact import like_compact, with_one_gap
from perflab.profiles.records import ANY_GAP, GAPS, UNNAMED, Explanation, Part, Profile, ProfileRow
from perflab.units import format_ns, format_signed

_SPREADS = 4.0
"""Standard deviations of a row, from call to call, that its change must exceed."""
_OWN_SHARE = 0.1
"""Share of its own time that it must exceed: so much do two processes differ by themselves."""
_WORTH = 0.2
"""Share of the whole change below which a part that is no fact of the code is not worth a word."""
_AGREE = 0.5
"""Share of the gate's change by which the profiles may differ from it and still say anything of times."""
_OWN_REST = 0.1
"""Share of it that may stay unexplained though the gate's interval is narrower: so much do two processes differ."""
_COMMON = 1.02
"""From which ratio on operators have become slower as a whole."""
_WHOLE = 0.02
"""How far a mean number of calls may be from a whole number: work that is not the same in each call has no such one."""
_FEW_CALLS = 4
"""Of fewer profiled calls a spread says nothing: what is no fact of the code is not named."""
_COMMON_OF = 5
"""Operators that must have become slower alike, each with a share of the time worth speaking of."""
_COMMON_SHARE = 0.01
_GAPS = (*GAPS, ANY_GAP)
_HALF = 0.5
"""Of a call: fewer more of an operator is none. Of the further calls: the share that a caller must make to be named."""
_SMALL = 0.05
"""Share of the change below which a fact of the code explains nothing of it."""


@dataclass
class _Total:
    """One operator in one module and phase."""

    instances: float = 0.0
    time_ns: float = 0.0
    spread_ns: float = 0.0
    category: str = ""
    shapes: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lines: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    within: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, row: ProfileRow) -> None:
        self.instances += row.instances
        self.time_ns += row.time_ns
        self.spread_ns = hypot(self.spread_ns, row.spread_ns)
        self.category = row.category
        self.shapes[row.shapes] += row.instances
        self.lines[row.line] += row.time_ns
        self.within[row.within] += row.instances

    @property
    def line(self) -> str:
        return max(self.lines, key=lambda one: self.lines[one], default="")


_Key = tuple[str, str, str]
"""Operator, module, phase."""


@dataclass(frozen=True)
class _Change:
    key: _Key
    more: float
    change_ns: float
    category: str
    line: str
    shapes: str = ""
    within: str = ""
    """The operator that calls it, where most of the change in number is within that one."""


def explain(
    base: Profile,
    head: Profile,
    against: str,
    change_ns: float | None,
    interval_ns: tuple[float, float] | None = None,
) -> Explanation:
    """What makes ``head`` slower than ``base``.

    Args:
        base, head: profiles of one case.
        against: the base, as people call it.
        change_ns: how much longer a call takes by the gate's own measurement; None: its time is not the matter.
        interval_ns: the interval of that change, from least to most; None: it has none.
    """
    if set(base.gaps_apart) != set(head.gaps_apart):
        base, head = with_one_gap(base), with_one_gap(head)
    if base.is_compact:
        head = like_compact(head, base)
    base, head = _of_one_device(base), _of_one_device(head)
    before, now = _totals(base.rows), _totals(head.rows)
    facts = [one for key in {**before, **now} if (one := _fact(key, before.get(key), now.get(key))) is not None]
    parts = _by_module(facts)
    seen_ns = head.explained_ns - base.explained_ns
    whole_ns = abs(change_ns if change_ns is not None else seen_ns)
    least_ns, most_ns = _interval(change_ns or 0.0, interval_ns)
    problem = None
    if change_ns is not None and _outside(seen_ns, least_ns, most_ns) and abs(seen_ns - change_ns) > _AGREE * whole_ns:
        problem = (
            f"the profiles differ by {format_signed(seen_ns, format_ns)}, and the gate found "
            f"{format_signed(change_ns, format_ns)}: they do not explain times"
        )
    elif change_ns is not None:
        common = _common_ratio(before, now)
        if min(base.calls, head.calls) >= _FEW_CALLS:
            parts += _slower(before, now, {one.key for one in facts}, whole_ns, common)
        parts.sort(key=lambda part: part.change_ns < _SMALL * whole_ns)  # true, and not what takes the time: last
        if not any(part.change_ns >= _SMALL * whole_ns for part in parts) and common > _COMMON:
            problem = (
                f"all operators take longer alike (about {100 * (common - 1):+.0f}%): the machine, its threads or "
                "clocks, or what is installed, and no operator by itself"
            )
    told_ns = sum(part.change_ns for part in parts)
    rest_ns = round((change_ns if change_ns is not None else seen_ns) - told_ns, 1)
    if change_ns is not None and problem is None and _outside(told_ns, least_ns, most_ns):
        if abs(rest_ns) > _AGREE * whole_ns:
            problem = "most of the change is spread, or within the noise of single operators"
        else:
            problem = "these parts are not all of the change: what is left is more than its interval leaves open"
    return Explanation(
        base=against,
        before_ns=base.timer_ns,
        now_ns=head.timer_ns,
        parts=parts,
        rest_ns=rest_ns,
        problem=problem,
    )


def _interval(change_ns: float, given_ns: tuple[float, float] | None) -> tuple[float, float]:
    """Between which changes parts explain this one."""
    own_ns = _OWN_REST * abs(change_ns)
    least_ns, most_ns = given_ns or (change_ns, change_ns)
    return min(least_ns, change_ns - own_ns), max(most_ns, change_ns + own_ns)


def _outside(value_ns: float, least_ns: float, most_ns: float) -> bool:
    return not least_ns <= value_ns <= most_ns


def _of_one_device(profile: Profile) -> Profile:
    """The mean of its devices: all of them together have several times the time of a call."""
    if profile.devices == 1:
        return profile
    rows = [
        changed(row, time_ns=row.time_ns / profile.devices, spread_ns=row.spread_ns / profile.devices)
        for row in profile.rows
    ]
    return changed(profile, rows=rows, devices=1)


def _totals(rows: Iterable[ProfileRow]) -> dict[_Key, _Total]:
    found: dict[_Key, _Total] = {}
    for row in rows:
        name = row.category if row.category in UNNAMED and not row.operator else row.operator
        found.setdefault((name, row.module, row.phase), _Total()).add(row)
    return found


def _fact(key: _Key, before: _Total | None, now: _Total | None) -> _Change | None:
    """What the code does otherwise: an operator more or less often, or on other shapes."""
    if key[0] in UNNAMED:
        return None
    old, new = before or _Total(), now or _Total()
    more = new.instances - old.instances
    if any(abs(one.instances - round(one.instances)) > _WHOLE for one in (old, new)):
        return None  # not the same in each call: logging every few steps, say
    if abs(more) > _HALF:
        if not old.instances or not new.instances:
            change_ns = new.time_ns - old.time_ns
        else:  # the others take as long as they took: what noise adds to them is no part of this
            one = new if more > 0 else old
            change_ns = more * one.time_ns / one.instances
        shown = now or old
        callers = {one: new.within.get(one, 0.0) - old.within.get(one, 0.0) for one in {**old.within, **new.within}}
        caller = max(callers, key=lambda one: callers[one] / more)
        within = caller if callers[caller] / more > _HALF else ""
        return _Change(key, round(more, 2), round(change_ns, 1), shown.category, shown.line, within=within)
    gone, come = (_more_shapes(old, new), _more_shapes(new, old))
    if gone and come:
        said = f"{min(gone)} -> {min(come)}"
        return _Change(key, 0.0, round(new.time_ns - old.time_ns, 1), new.category, new.line, said)
    return None


def _more_shapes(one: _Total, other: _Total) -> set[str]:
    """Shapes on which one is called more often than the other in each call: where they vary, the mean is not whole."""
    both = {shapes: (one.shapes[shapes], other.shapes.get(shapes, 0.0)) for shapes in one.shapes if shapes}
    return {
        shapes
        for shapes, (often, before) in both.items()
        if often - before > _HALF and all(abs(count - round(count)) <= _WHOLE for count in (often, before))
    }


def _by_module(facts: Sequence[_Change]) -> list[Part]:
    """One part a module: what changed there by one edit is one cause."""
    groups: dict[str, list[_Change]] = defaultdict(list)
    for one in facts:
        groups[one.key[1]].append(one)
    parts = [_part(changes) for changes in groups.values()]
    # Views alone are no cause: they follow from what is done with them.
    return sorted(parts, key=lambda part: (part.category == "dispatch", -part.change_ns, part.module))


def _part(changes: Sequence[_Change]) -> Part:
    work = [one for one in changes if one.category != "dispatch"] or list(changes)
    counted = [one for one in work if one.more] or work
    total = sum(one.change_ns for one in changes)
    added = [one for one in counted if one.more > 0 or one.change_ns > 0] or counted  # of two, what is new is the cause
    lead = max(added, key=lambda one: (abs(one.change_ns), abs(one.more)))
    # An operator that only calls others takes little time, and is what the code asks for.
    callers = [one for one in added if lead.within and one.key[0] == lead.within and one.more * lead.more > 0]
    lead = max(callers, key=lambda one: abs(one.more), default=lead)
    same = [one for one in changes if one.key[0] == lead.key[0]]
    others = dict.fromkeys(
        one.key[0] for one in sorted(counted, key=lambda one: -abs(one.change_ns)) if one.key[0] != lead.key[0]
    )
    more = sum(one.more for one in same)
    moved_from: list[str] = []
    if lead.more and abs(more) <= _HALF:  # as many as before, in another phase
        moved_from = sorted({one.key[2] for one in same if one.more * lead.more < 0 and one.key[2]})
        same = [one for one in same if one.more * lead.more > 0]
        more = sum(one.more for one in same)
    return Part(
        change_ns=round(total, 1),
        operator=lead.key[0],
        module=lead.key[1],
        line=lead.line,
        phases=sorted({one.key[2] for one in same if one.key[2]}),
        more=round(more, 2),
        moved_from=moved_from,
        others=list(others)[:3],
        category=lead.category,
        shapes=lead.shapes,
        within=lead.within,
    )


def _slower(
    before: Mapping[_Key, _Total], now: Mapping[_Key, _Total], known: set[_Key], whole_ns: float, common: float
) -> list[Part]:
    """Operators that are called as before and take longer than the others do, far beyond their spread."""
    found = []
    for key in (before.keys() | now.keys()) - known:
        if key[0] not in _GAPS and not (key in before and key in now):
            continue
        old, new = before.get(key, _Total()), now.get(key, _Total())
        change_ns = new.time_ns - old.time_ns * common
        noise_ns = max(_SPREADS * hypot(old.spread_ns, new.spread_ns), _OWN_SHARE * old.time_ns)
        if abs(change_ns) > max(noise_ns, _WORTH * whole_ns):
            shown = new if key in now else old
            found.append(_Change(key, 0.0, round(change_ns, 1), shown.category, shown.line))
    parts = (
        Part(
            change_ns=one.change_ns,
            operator=one.key[0],
            module=one.key[1],
            line=one.line,
            phases=[one.key[2]] if one.key[2] else [],
            category=one.category,
        )
        for one in found
    )
    return sorted(parts, key=lambda part: (-part.change_ns, part.module))


def _common_ratio(before: Mapping[_Key, _Total], now: Mapping[_Key, _Total]) -> float:
    """By how much operators have become slower as a whole: the median of their ratios; 1.0 where they are few.

    Each counts once, whatever its share of the time: one that takes most of it must not be the measure of itself.
    """
    least_ns = _COMMON_SHARE * sum(one.time_ns for one in before.values())
    ratios = [
        now[key].time_ns / one.time_ns
        for key, one in before.items()
        if key in now and key[0] not in _GAPS and one.time_ns > least_ns
    ]
    return max(1.0, median(ratios)) if len(ratios) >= _COMMON_OF else 1.0
