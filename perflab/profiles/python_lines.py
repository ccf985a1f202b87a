"""Plain Python by line: the lines that a call runs, and their rows, out of the time in which no operator runs.

Every event of Python's own tracing is noted, so counts are exact. Tracing makes a call several times as long. So lines
are watched in separate calls, which show how a gap's time divides among lines, and how often each line runs; profiled
calls show how long the gap is. A line on which operators run gets no row: its Python stays in the gaps of these
operators."""

from __future__ import annotations

import contextlib
import linecache
import sys
import time
import zlib
from array import array
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perflab.base.data import changed
from perflab.base.user_lines import shown_file
from perflab.profiles.divided import Known, gaps_of
from perflab.profiles.events import Call, Phase
from perflab.results.profile import CALLED_FIRST, PYTHON, Profile, ProfileRow, merged_with

MOST_EVENTS = 1_500_000
"""The greatest number of events that are noted in one call: more would take seconds, and memory."""
_LINES = 1 << 20
"""The greatest number of lines in a file. A line is numbered by the number of its code object times this, plus the
line number."""
_INSTRUCTION_BYTES = 2
_PARTS = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")
"""Names of code objects that are part of the function in which they stand."""
_Local = Callable[[FrameType, str, Any], Any]


class RunLine(NamedTuple):
    """A line of the user's code that ran."""

    function: str
    line: str
    code: str
    """A digest of the line's text; ``""``: the text is not known."""
    instructions: int
    """How many of the interpreter's instructions the line has, at least 1."""


class _Known(NamedTuple):
    """A code object that was called."""

    code: CodeType
    local: _Local | None
    """The trace function that watches the code's lines; None: the code is not the user's."""
    number: int
    name: str
    is_part: bool


@dataclass
class LinesRun:
    """The lines and function calls that were seen in one call."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    """The time of each event, by the clock of PyTorch's profiler."""
    lines: array[int] = field(default_factory=lambda: array("q"))
    """The number of the user's line that runs from each event on; ``~number`` if the line does not begin at the
    event."""
    calls: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    """How often each line calls each function, by the line's number and the function's name; 0: no line of the
    user's code."""
    is_over: bool = False
    """Whether there were more events than are kept, so that no data of this call may be used."""
    codes: list[CodeType] = field(default_factory=list)

    def named(self, number: int) -> RunLine:
        """Return the line that a number stands for."""
        code, line = self.codes[number // _LINES - 1], number % _LINES
        text = linecache.getline(code.co_filename, line).strip()
        instructions = sum((end - start) // _INSTRUCTION_BYTES for start, end, at in code.co_lines() if at == line)
        return RunLine(
            function_of(code),
            f"{shown_file(code.co_filename)}:{line}",
            f"{zlib.crc32(text.encode()):08x}" if text else "",
            max(1, instructions),
        )


def function_of(code: CodeType) -> str:
    """Return the function that a code object is or is part of: ``Net.forward``; ``run`` for ``test.<locals>.run``."""
    name = code.co_qualname
    for part in _PARTS:
        while name.endswith(part):
            name = name.removesuffix(part).removesuffix(".<locals>.").removesuffix(".")
    return name.rpartition("<locals>.")[2] or "<module>"


@contextlib.contextmanager
def lines_watched() -> Iterator[LinesRun]:
    """Watch what this thread runs within the block. The trace function that was set before is restored afterwards."""
    found = LinesRun()
    before = sys.gettrace()
    sys.settrace(_watcher(found))
    try:
        yield found
    finally:
        sys.settrace(before)


def _watcher(found: LinesRun) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function for ``sys.settrace``. It runs for every line, so names are bound once."""
    clock, lines, calls = time.time_ns, found.lines, found.calls
    note_time, note_line = found.times_ns.append, found.lines.append
    known: dict[int, _Known] = {}
    current = 0

    def enter(code: CodeType) -> _Known:
        if shown_file(code.co_filename) is None:
            one = _Known(code, None, 0, code.co_qualname, is_part=False)
        else:
            found.codes.append(code)
            number = len(found.codes) * _LINES
            one = _Known(code, local_of(number), number, function_of(code), code.co_name in _PARTS)
        known[id(code)] = one
        return one

    def line_at(frame: FrameType | None) -> int:
        while frame is not None:
            one = known.get(id(frame.f_code))
            if one is not None and one.local is not None:
                return one.number + frame.f_lineno
            frame = frame.f_back
        return 0

    def local_of(number: int) -> _Local:
        def local(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal current
            note_time(clock())
            if len(lines) > MOST_EVENTS:
                found.is_over = True
                sys.settrace(None)
            if event == "line":
                current = number + frame.f_lineno
                note_line(current)
            else:
                current = line_at(frame.f_back) if event == "return" else current
                note_line(~current)
            return local

        return local

    def on_call(frame: FrameType, _event: str, _: Any) -> Any:
        note_time(clock())
        note_line(~current)
        one = known.get(id(frame.f_code)) or enter(frame.f_code)
        if one.local is not None:
            if not one.is_part:
                calls[current, one.name] += 1
            return one.local
        back = frame.f_back
        if back is not None and (above := known.get(id(back.f_code))) is not None and above.local is not None:
            calls[current, f"{frame.f_globals.get('__name__', '')}.{one.name}"] += 1
        return None

    return on_call


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
