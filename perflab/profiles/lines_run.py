"""Watches the lines of Python that a call runs: which lines, when, how often, and which functions the lines call.

Every event of Python's own tracing is noted, so counts are exact. Tracing makes a call several times as long. So lines
are watched in separate calls, which only show how the time of the other calls divides among lines (``python_rows.py``).
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import time
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, NamedTuple

from perflab.base.user_lines import shown_file

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
