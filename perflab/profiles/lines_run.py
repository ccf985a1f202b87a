"""Watches the lines of Python that a call runs: which, when, how often, and which functions they call.

Every event of Python's own tracing is noted, so counts are exact. It makes a call several times as long: so lines are
watched in calls of their own, which give no time but how that of the others divides (``python_rows.py``).
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

from perflab.user_lines import shown_file

MOST_EVENTS = 1_500_000
"""Of one call: more take seconds, and memory."""
_LINES = 1 << 20
"""Lines of a file, at most: a number of a line is that of its code times this, and its own."""
_INSTRUCTION_BYTES = 2
_PARTS = ("<listcomp>", "<genexpr>", "<setcomp>", "<dictcomp>")
"""Code that is a part of the function in which it stands."""
_Local = Callable[[FrameType, str, Any], Any]


class RunLine(NamedTuple):
    """A line of the user's that ran."""

    function: str
    line: str
    code: str
    """A digest of its text; ``""``: it is not known."""
    instructions: int
    """Of the interpreter's, in that line."""


class _Known(NamedTuple):
    """A piece of code that was called."""

    code: CodeType
    local: _Local | None
    """What watches its lines; None: it is no code of the user's."""
    number: int
    name: str
    is_part: bool


@dataclass
class LinesRun:
    """What was seen in one call."""

    times_ns: array[int] = field(default_factory=lambda: array("q"))
    """Of each event, by the clock of PyTorch's profiler."""
    lines: array[int] = field(default_factory=lambda: array("q"))
    """The line of the user's that runs from each on, as a number; ``~number`` if it does not begin there."""
    calls: dict[tuple[int, str], int] = field(default_factory=lambda: defaultdict(int))
    """How often each line calls each function; a line 0 is no code of the user's."""
    is_over: bool = False
    """Whether there were more events than are kept: nothing of this call is to be used."""
    codes: list[CodeType] = field(default_factory=list)

    def named(self, number: int) -> RunLine:
        """The line that a number stands for."""
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
    """The function that a piece of code is, or is a part of: ``Net.forward``, ``run`` of ``test_net.<locals>.run``."""
    name = code.co_qualname
    for part in _PARTS:
        while name.endswith(part):
            name = name.removesuffix(part).removesuffix(".<locals>.").removesuffix(".")
    return name.rpartition("<locals>.")[2] or "<module>"


@contextlib.contextmanager
def lines_watched() -> Iterator[LinesRun]:
    """Watch what this thread runs within the block; whoever traced before does so again afterwards."""
    found = LinesRun()
    before = sys.gettrace()
    sys.settrace(_watcher(found))
    try:
        yield found
    finally:
        sys.settrace(before)


def _watcher(found: LinesRun) -> Callable[[FrameType, str, Any], Any]:
    """What ``sys.settrace`` takes. All of it is called for every line, so names are bound once."""
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
