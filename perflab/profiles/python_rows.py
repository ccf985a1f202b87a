"""Gives lines of plain Python rows of their own, out of the time in which no operator runs. Pure functions.

Watched calls say how a gap's time divides among lines, and how often each runs; how long it is, the profiled calls say.
A line on which operators run is known by these, and its Python stays theirs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perflab.data import changed
from perflab.profiles.events import Call
from perflab.profiles.host import Known, gaps_of
from perflab.profiles.lines_run import LinesRun, RunLine
from perflab.profiles.placed import Phase
from perflab.profiles.records import CALLED_FIRST, PYTHON, Profile, ProfileRow, merged_with

MOST_LINES = 300
"""Rows of lines, and of calls, at most: the longest. What is left stays in the gaps."""
_EVENT = 40
"""Of the interpreter's instructions, what noting an event costs more than one that is only watched: that is 600 ns
against 15 here. The cost of one is what makes a watched call as long as the others."""
_Gap = tuple[str, str, str]
"""Phase, module and line, as a gap's row has them."""


@dataclass
class _Share:
    """What a line was seen to take of a gap."""

    time_ns: float = 0.0
    units: float = 0.0
    """Of the cost of watching it."""


@dataclass
class PlainPython:
    """What watched calls come to."""

    shares: dict[_Gap, dict[RunLine, list[_Share]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """Of each call that has it there."""
    often: list[dict[RunLine, int]] = field(default_factory=list)
    """Of each call, how often a line runs."""
    calls: list[dict[tuple[RunLine | None, str], int]] = field(default_factory=list)
    """Of each, how often it calls a function."""
    working: set[RunLine] = field(default_factory=set)
    """On which operators run."""

    def add(self, root: Call, known: Mapping[int, Known], phases: Sequence[Phase], run: LinesRun) -> None:
        """A watched call; ``known`` is by ``id`` of a call."""
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
        """The profile with a row for each of these lines, and for the calls there."""
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
        """A row for each function that a line calls, if either has rows of its own."""
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
    """Each line's share of a gap that takes so long in a call that nobody watches.

    Of each line the call counts in which it was quickest: others were disturbed, by another process for example.
    """
    quickest = {line: min(some, key=lambda one: one.time_ns) for line, some in shares.items()}
    seen_ns = sum(one.time_ns for one in quickest.values())
    units = sum(one.units for one in quickest.values())
    cost_ns = max(0.0, seen_ns - time_ns) / units if units else 0.0
    own_ns = {line: max(0.0, one.time_ns - cost_ns * one.units) for line, one in quickest.items()}
    whole_ns = sum(own_ns.values())
    return {line: took_ns / whole_ns if whole_ns else 0.0 for line, took_ns in own_ns.items()}


def _in_each(often: Sequence[int]) -> int:
    """How often in each call; 0: that differs from call to call."""
    return often[0] if len(set(often)) == 1 else 0
