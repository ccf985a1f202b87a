"""Explains changes in plain Python by the line that was edited, whichever lines run longer because of the edit. Pure.

If a function takes longer because it is called more often, the line that calls the function is the reason. The search
goes on upwards to a line that has itself changed: it is new, runs more often in each call of its function, or takes
longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from math import hypot, inf

from perflab.profiles.facts import HALF, parsed
from perflab.results.profile import CALLED_FIRST, PYTHON, OnLine, Part, ProfileRow

SPREADS = 4.0
"""How many standard deviations of a row, from call to call, the row's change must exceed."""
OWN_SHARE = 0.1
"""Share of a row's time before that the row's change must exceed: two processes differ by as much without a cause."""
WORTH = 0.2
"""Share of the whole change that a part which is no fact of the code must exceed to be named."""
_DEPTH = 50
"""The greatest number of callers through which a change is handed up: functions may call each other in a cycle."""
_FACT = 0.05
"""Share of the whole change below which a certain change of Python explains nothing of it and is left out."""


@dataclass
class _Line:
    """A line of plain Python in one profile."""

    line: str = ""
    often: float = 0.0
    time_ns: float = 0.0
    spread_ns: float = 0.0
    code: str = ""
    calls: dict[str, float] = field(default_factory=lambda: defaultdict(float))


_Lines = dict[str, _Line]


@dataclass
class _Pair:
    """A line before and now, and how much of the change the line causes itself."""

    before: _Line
    now: _Line
    is_edited: bool = False
    further: float = 0.0
    """How many more times the line runs than follows from further calls of its function."""
    further_calls: dict[str, float] = field(default_factory=dict)
    """How many more calls of each function the line makes than follow from further calls of the line's own function."""
    own_ns: float = 0.0
    called: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The part of ``own_ns`` that is spent in functions which the line calls more often, by function."""

    @property
    def spread_ns(self) -> float:
        """The spread of the line's time before and now, combined."""
        return hypot(self.before.spread_ns, self.now.spread_ns)


def python_parts(
    before: Iterable[ProfileRow], now: Iterable[ProfileRow], whole_ns: float
) -> Iterator[tuple[Part, bool]]:
    """Yield parts for each function in which something changed, and whether the change is certain.

    A change is certain if numbers of runs and calls show it, or if the function was edited, even if all lines run as
    often as before. Other changes are beyond the noise.

    ``whole_ns`` is the size of the whole change, by which parts that are too small are left out.
    """
    old, new = _by_function(before), _by_function(now)
    calls_before, calls_now = _calls_of(old), _calls_of(new)
    ratios = {name: _ratio(calls_before.get(name), calls_now.get(name)) for name in {**old, **new}}
    pairs = {name: _paired(old.get(name, {}), new.get(name, {})) for name in {**new, **old} if name != CALLED_FIRST}
    handed: dict[str, float] = {}
    for name, lines in pairs.items():
        handed[name] = 0.0
        for one in lines:
            is_new = ratios[name] == inf
            one.own_ns = 0.0 if is_new else one.now.time_ns - ratios[name] * one.before.time_ns
            handed[name] += one.now.time_ns - one.before.time_ns - one.own_ns
            if not is_new and _is_known(one):
                one.further = one.now.often - ratios[name] * one.before.often
            if not is_new:
                one.further_calls = _further_calls(one, ratios[name])
    for _ in range(_DEPTH):
        handed = _handed_up(handed, pairs, ratios)
    for name, lines in pairs.items():
        yield from _parts(name, lines, whole_ns)


def _by_function(rows: Iterable[ProfileRow]) -> dict[str, _Lines]:
    found: dict[str, _Lines] = defaultdict(dict)
    for row in rows:
        line = found[row.within or row.operator].setdefault(row.line, _Line(row.line, code=row.code))
        if row.within:
            line.calls[row.operator] += row.instances
        else:
            line.often += row.instances
            line.time_ns += row.time_ns
            line.spread_ns += row.spread_ns
    return found


def _calls_of(functions: dict[str, _Lines]) -> dict[str, float]:
    """Return how often each function is called by others; 0: not known, or different from call to call."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, lines in functions.items():
        for line in lines.values():
            for called, often in line.calls.items():
                if called != name:
                    found[called].append(often)
    return {name: sum(often) if all(often) else 0.0 for name, often in found.items()}


def _ratio(before: float | None, now: float | None) -> float:
    """Return the ratio of a function's calls: 0.0 if it is no longer called, ``inf`` if it is new, 1.0 if not known."""
    if before is None or now is None:
        return 1.0 if before is now else inf if before is None else 0.0
    return now / before if before and now else 1.0


def _is_known(pair: _Pair) -> bool:
    return all(one.often or not one.time_ns for one in (pair.before, pair.now))


def _further_calls(pair: _Pair, ratio: float) -> dict[str, float]:
    """Return how many more calls of each function a line makes than follow from further calls of its own function."""
    found = {}
    for called in {**pair.before.calls, **pair.now.calls}:
        both = [side.calls.get(called) for side in (pair.before, pair.now)]
        if 0.0 not in both:  # else the number differs from call to call
            was, is_now = (often or 0.0 for often in both)
            found[called] = is_now - ratio * was
    return {called: more for called, more in found.items() if abs(more) > HALF}


def _paired(before: _Lines, now: _Lines) -> list[_Pair]:
    """Pair lines with the same text, in order, and lines that stand in each other's place between them."""
    if "" in before or "" in now:  # without line numbers: all lines as one, at the longest
        return [_Pair(_together(before), _together(now))]
    old, new = ([lines[line] for line in sorted(lines, key=parsed)] for lines in (before, now))
    matcher = SequenceMatcher(None, [one.code for one in old], [one.code for one in new], autojunk=False)
    found = []
    for kind, at, end, other, other_end in matcher.get_opcodes():
        for step in range(max(end - at, other_end - other)):
            was = old[at + step] if at + step < end else _Line()
            is_now = new[other + step] if other + step < other_end else _Line()
            found.append(_Pair(was, is_now, is_edited=kind != "equal"))
    return found


def _together(lines: _Lines) -> _Line:
    """Return all lines of a function summed up as one, which stands at the line that takes most time."""
    some = lines.values()
    longest = max(some, key=lambda one: one.time_ns, default=_Line())
    is_known = all(one.often or not one.time_ns for one in some)
    found = _Line(longest.line, sum(one.often for one in some) if is_known else 0.0, sum(one.time_ns for one in some))
    found.spread_ns = sum(one.spread_ns for one in some)
    for one in some:
        for called, often in one.calls.items():
            found.calls[called] += often
    return found


def _handed_up(handed: dict[str, float], pairs: dict[str, list[_Pair]], ratios: dict[str, float]) -> dict[str, float]:
    """Hand the time that functions take longer because of more calls to the lines that call them more often.

    ``handed`` and the result are in nanoseconds by function. The result is the time that follows from further calls of
    the calling function, and goes further up.
    """
    left: dict[str, float] = defaultdict(float)
    callers: dict[str, list[tuple[str, _Pair]]] = defaultdict(list)
    for name, lines in pairs.items():
        for pair in lines:
            for called in {**pair.before.calls, **pair.now.calls}:
                if called != name and abs(handed.get(called, 0.0)) >= 1.0:
                    callers[called].append((name, pair))
    for called, lines_of in callers.items():
        more = sum(pair.now.calls.get(called, 0.0) - pair.before.calls.get(called, 0.0) for _, pair in lines_of)
        for name, pair in lines_of if abs(more) > HALF else ():
            was, is_now = pair.before.calls.get(called, 0.0), pair.now.calls.get(called, 0.0)
            change_ns = handed[called] * (is_now - was) / more
            if is_now == was:
                continue
            follows = 1.0 if ratios[name] == inf else min(1.0, max(0.0, (ratios[name] - 1) * was / (is_now - was)))
            pair.own_ns += change_ns * (1 - follows)
            pair.called[called] += change_ns * (1 - follows)
            left[name] += change_ns * follows
    return left


def _parts(name: str, lines: Sequence[_Pair], whole_ns: float) -> Iterator[tuple[Part, bool]]:
    """Yield the parts of a function's own change: what numbers of runs and calls show, then what only takes longer."""
    counted = [one for one in lines if abs(one.further) > HALF or one.called or one.further_calls]
    own_ns = sum(one.own_ns for one in counted)
    if counted and abs(own_ns) >= max(1.0, _FACT * whole_ns):
        yield _part(name, lines, counted, own_ns), True
    timed = [one for one in lines if one not in counted]
    edited = [one for one in timed if one.is_edited]
    # An edit may make other lines slower, so all are tried first; where these are too noisy, the edited lines alone.
    for some in (timed, edited):
        own_ns, before_ns = sum(one.own_ns for one in some), sum(one.before.time_ns for one in some)
        spread_ns = 0.0 if edited else SPREADS * hypot(*(one.spread_ns for one in some))
        worth = _FACT if edited else WORTH
        if some and abs(own_ns) > max(1.0, spread_ns, OWN_SHARE * before_ns, worth * whole_ns):
            yield _part(name, lines, some, own_ns), bool(edited)
            return


def _part(name: str, lines: Sequence[_Pair], changed: Sequence[_Pair], own_ns: float) -> Part:
    """Return the part for the changed lines of a function."""
    sign = 1 if own_ns > 0 else -1
    heavy = max(changed, key=lambda one: sign * one.own_ns)
    lead = heavy if heavy.is_edited or not heavy.further else _begin(lines, heavy)
    by_calls = lead.called or lead.further_calls
    called = max(by_calls, key=lambda one: sign * by_calls[one], default=PYTHON)
    was, is_now = (
        (side.calls.get(called, 0.0) if called != PYTHON else side.often) for side in (lead.before, lead.now)
    )
    is_counted = called != PYTHON or (bool(lead.further) and _is_known(lead))
    edited = [] if heavy.is_edited else [one for one in lines if one.is_edited and one.now.line]
    others = [heavy] if lead is not heavy else edited
    return Part(
        change_ns=round(own_ns, 1),
        operator=called,
        module=name,
        line=lead.now.line or lead.before.line,
        more=round(is_now - was, 2) if is_counted else 0.0,
        often=[was, is_now],
        other_lines=[
            OnLine(PYTHON, one.now.line or one.before.line, round(heavy.further, 2) if one is heavy else 0.0)
            for one in others
        ],
        category=PYTHON,
    )


def _begin(lines: Sequence[_Pair], heavy: _Pair) -> _Pair:
    """Return the line that makes another run more often: the nearest edited line before, or the loop's first line."""
    at = begin = lines.index(heavy)
    while begin and abs(lines[begin - 1].further) > HALF:
        begin -= 1
    edited = [one for one in lines[begin : at + 1] if one.is_edited and one.now.line]
    return edited[-1] if edited else lines[begin]
