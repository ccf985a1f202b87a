"""Gives lines of plain Python rows of their own, out of the time in which no operator runs. Pure functions.

Watched calls show how a gap's time divides among lines, and how often each line runs; profiled calls show how long the
gap is. A line on which operators run gets no row: its Python stays in the gaps of these operators.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perflab.base.data import changed
from perflab.profiles.events import Call
from perflab.profiles.host import Known, gaps_of
from perflab.profiles.lines_run import LinesRun, RunLine
from perflab.profiles.placed import Phase
from perflab.results.profile import CALLED_FIRST, PYTHON, Profile, ProfileRow, merged_with

MOST_LINES = 300
"""The greatest number of rows for lines, the longest, and of rows for calls, the most frequent. The time of further
lines stays in the gaps."""
_EVENT = 40
"""The cost of noting an event, in units of what watching adds to one instruction of the interpreter: 600 ns against
15 ns here. The cost of a unit is chosen so that a watched gap is as long as an unwatched one."""
_Gap = tuple[str, str, str]
"""The phase, module and line of a gap's row."""


@dataclass
class _Share:
    """The time that a line took of a gap in one watched call."""

    time_ns: float = 0.0
    units: float = 0.0
    """The cost of watching the line, in units as for ``_EVENT``."""


@dataclass
class PlainPython:
    """The data of watched calls: lines' shares of gaps, and how often lines run and call functions."""

    shares: dict[_Gap, dict[RunLine, list[_Share]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """The share of each line in each gap, for each watched call that has the line there."""
    often: list[dict[RunLine, int]] = field(default_factory=list)
    """How often each line runs, for each watched call."""
    calls: list[dict[tuple[RunLine | None, str], int]] = field(default_factory=list)
    """How often each line calls each function, for each watched call; the line None stands for code that is not the
    user's."""
    working: set[RunLine] = field(default_factory=set)
    """The lines on which operators run."""

    def add(self, root: Call, known: Mapping[int, Known], phases: Sequence[Phase], run: LinesRun) -> None:
        """Add a watched call; ``known`` is by ``id`` of a call."""
        gaps = sorted(gaps_of(root, known, phases), key=lambda gap: gap.start_ns)
        starts = [gap.start_ns for gap in gaps]
        lines: dict[int, RunLine] = {}
        shares: dict[tuple[_Gap, RunLine], _Share] = defaultdict(_Share)
        often: dict[RunLine, int] = defaultdict(int)
        times_ns, numbers = run.times_ns, run.lines
        for at, start_ns in enumerate(times_ns):
            number = max(numbers[at], ~numbers[at])
            end_ns = times_ns[at + 1] if at + 1 < len(times_ns) else start_ns
            if not number:
                continue
            line = lines.get(number) or lines.setdefault(number, run.named(number))
            often[line] += numbers[at] >= 0
            first, seen_ns = max(0, bisect_right(starts, start_ns) - 1), 0
            for gap in gaps[first : bisect_right(starts, end_ns)]:
                within_ns = min(end_ns, gap.end_ns) - max(start_ns, gap.start_ns)
                if within_ns > 0:
                    share = shares[(gap.key.phase, gap.key.module, gap.key.line), line]
                    share.time_ns += within_ns
                    share.units += (_EVENT + line.instructions * (numbers[at] >= 0)) if not seen_ns else 0
                    seen_ns += within_ns
            if seen_ns < end_ns - start_ns:
                self.working.add(line)
        for (place, line), share in shares.items():
            self.shares[place][line].append(share)
        self.often.append(often)
        named = {number: lines.get(number) or run.named(number) for number, _ in run.calls if number}
        self.calls.append({(named.get(line), name): many for (line, name), many in run.calls.items()})

    def within(self, profile: Profile) -> Profile:
        """Return the profile with a row for each of these lines, and for the function calls on them."""
        gaps, plain = list[ProfileRow](), dict[tuple[RunLine, str, str], ProfileRow]()
        for row in profile.rows:
            shares = self.shares.get((row.phase, row.module, row.line), {}) if row.category == PYTHON else {}
            left = 1.0
            for line, share in _divided(shares, row.time_ns).items():
                if line in self.working:
                    continue
                place = line, row.phase, row.module
                own = ProfileRow(
                    category=PYTHON,
                    operator=line.function,
                    phase=row.phase,
                    module=row.module,
                    line=line.line,
                    time_ns=row.time_ns * share,
                    spread_ns=row.spread_ns * share,
                    code=line.code,
                )
                plain[place] = merged_with(plain[place], own) if place in plain else own
                left -= share
            gaps.append(changed(row, time_ns=row.time_ns * left, spread_ns=row.spread_ns * left))
        longest = sorted(plain.items(), key=lambda item: -item[1].time_ns)
        left_over = [changed(row, operator="", line="", code="") for _, row in longest[MOST_LINES:]]
        counted: set[RunLine] = set()
        rows = [*gaps, *left_over]
        for (line, *_), row in longest[:MOST_LINES]:
            often = 0 if line in counted else _in_each([call[line] for call in self.often])
            rows.append(changed(row, instances=often))
            counted.add(line)
        rows = [changed(row, time_ns=round(row.time_ns, 1), spread_ns=round(row.spread_ns, 1)) for row in rows]
        rows = [*sorted(rows, key=lambda row: -row.time_ns), *self._calls(counted)]
        return changed(profile, rows=rows, has_plain=True)

    def _calls(self, kept: set[RunLine]) -> list[ProfileRow]:
        """Return a row for each function that a line calls, if the line or the function has rows of its own."""
        functions = {line.function for line in kept}
        often: dict[tuple[RunLine | None, str], list[int]] = defaultdict(list)
        for call in self.calls:
            for place, many in call.items():
                often[place].append(many)
        rows = [
            ProfileRow(
                category=PYTHON,
                operator=name,
                line=line.line if line is not None else "",
                within=line.function if line is not None else CALLED_FIRST,
                code=line.code if line is not None else "",
                instances=_in_each(many) if len(many) == len(self.calls) else 0,
            )
            for (line, name), many in often.items()
            if line in kept or name in functions
        ]
        return sorted(rows, key=lambda row: -row.instances)[:MOST_LINES]


def _divided(shares: Mapping[RunLine, Sequence[_Share]], time_ns: float) -> dict[RunLine, float]:
    """Return each line's share of a gap that takes ``time_ns`` in an unwatched call.

    Each line counts with the watched call in which it was quickest: the others were disturbed, for example by another
    process.
    """
    quickest = {line: min(some, key=lambda one: one.time_ns) for line, some in shares.items()}
    seen_ns = sum(one.time_ns for one in quickest.values())
    units = sum(one.units for one in quickest.values())
    cost_ns = max(0.0, seen_ns - time_ns) / units if units else 0.0
    own_ns = {line: max(0.0, one.time_ns - cost_ns * one.units) for line, one in quickest.items()}
    whole_ns = sum(own_ns.values())
    return {line: took_ns / whole_ns if whole_ns else 0.0 for line, took_ns in own_ns.items()}


def _in_each(often: Sequence[int]) -> int:
    """Return the number in each call; 0 if it differs from call to call."""
    return often[0] if len(set(often)) == 1 else 0
