"""Reads ranges from an export, and finds the named ranges that are open on a thread at a moment. Times are nanoseconds.

A push/pop range belongs to its thread, a start/end range to all threads of its process. A kernel belongs to the
innermost range that is open when the kernel is launched, and to all ranges around that range. All ranges that somebody
named are read, and those of operators in chosen calls only.

PyTorch (``emit_nvtx``) writes ``aten::mm, seq = 5, op_id = 6, sizes = [[8, 16], [16, 4]], input_op_ids = [(2,0),
(0,-1)]``. The parts were added over the years; each may be missing.
"""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from heapq import heappop, heappush, merge
from typing import NamedTuple

from perflab.attribution.places import Where
from perflab.base.grouping import groups_of
from perflab.measure.calls.nvtx import MEMORY, OPERATORS, SAMPLES, WARM_UP
from perflab.nsys.export import API, LONGEST_NS, RANGES, STRINGS, WORK, Export
from perflab.profiles.events import NODE
from perflab.profiles.recording import AT, BETWEEN
from perflab.units import format_count

NONE = -1
_NEVER = 2**63 - 1


class Opened(NamedTuple):
    """A range as the export records it."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    whole_process: bool = False
    """Whether the range is a start/end range."""
    domain: int = 0
    """The range's domain; 0: the program's own. Libraries such as NCCL have their own domains."""


@dataclass
class _Timeline:
    """The number of the innermost open range from each moment on."""

    moments: array[int] = field(default_factory=lambda: array("q"))
    innermost: array[int] = field(default_factory=lambda: array("q"))

    def add(self, at_ns: int, number: int) -> None:
        if self.moments and self.moments[-1] == at_ns:
            self.innermost[-1] = number
        else:
            self.moments.append(at_ns)
            self.innermost.append(number)

    def at(self, moment_ns: int) -> tuple[int, int, int]:
        found = bisect_right(self.moments, moment_ns) - 1
        until_ns = self.moments[found + 1] if found + 1 < len(self.moments) else _NEVER
        return (self.innermost[found], self.moments[found], until_ns) if found >= 0 else (NONE, -_NEVER, until_ns)


class Ranges:
    """The ranges of one process, numbered in order of their start."""

    def __init__(self, found: Iterable[Opened]) -> None:
        self.all: list[Opened] = sorted(found, key=lambda one: (one.start_ns, -one.end_ns))
        self.parents: array[int] = array("q", [NONE]) * len(self.all)
        """The number of the range around each range; ``NONE`` for an outermost range."""
        self.crossing: list[tuple[str, str]] = []
        """Pairs of names: a range that begins within another range and ends after it, and the other range."""
        self.borrowed: dict[int, int] = {}
        """Threads without ranges of their own, each with the thread whose ranges count for it."""
        self.outside: set[int] = set()
        """Threads without ranges of their own that launched work while several other threads have ranges."""
        self._timelines: dict[int, _Timeline] = {}
        self._shared = [number for number, one in enumerate(self.all) if one.whole_process]
        self._own: dict[int, list[int]] = {}
        for number, one in enumerate(self.all):
            if not one.whole_process:
                self._own.setdefault(one.thread, []).append(number)
        ours = {thread for thread, found in self._own.items() if any(not self.all[at].domain for at in found)}
        self._lenders = ours or set(self._own)
        for thread in {one.thread for one in self.all}:
            self._timelines[thread] = self._timeline(thread)

    def stretch(self, thread: int, moment_ns: int) -> tuple[int, int, int]:
        """Return the number of the innermost open range, ``NONE`` if none is open; and start and end of this state."""
        if thread not in self._lenders and thread not in self.borrowed:
            if len(self._lenders) == 1:  # the backward's thread works for the ranges that its caller has open
                (self.borrowed[thread],) = self._lenders
            elif self._lenders:
                self.outside.add(thread)
        lender = self.borrowed.get(thread, thread)
        if lender not in self._timelines:
            self._timelines[lender] = self._timeline(lender)
        return self._timelines[lender].at(moment_ns)

    def outermost(self, name: str) -> list[int]:
        """Return the ranges of one name that lie in no other range of this name."""
        found, within = [], bytearray(len(self.all) + 1)  # the last entry is for ``NONE``
        for number, parent in enumerate(self.parents):  # an outer range begins before its inner ranges
            within[number] = within[parent]
            if self.all[number].name == name and not within[number]:
                found.append(number)
                within[number] = True
        return found

    @cached_property
    def children(self) -> dict[int, list[int]]:
        """The ranges directly within each range; those of ``NONE`` are the outermost."""
        return groups_of(range(len(self.parents)), self.parents.__getitem__)

    def _timeline(self, thread: int) -> _Timeline:
        timeline = _Timeline()
        stack = _Open()
        for number in merge(self._shared, self._own.get(thread, [])):
            one = self.all[number]
            stack.close(one.start_ns, timeline)
            innermost = stack.innermost
            if one.thread == thread:
                self.parents[number] = around = stack.around(one.end_ns, self.all)
                if innermost != around and one.end_ns > one.start_ns:
                    self.crossing.append((one.name, self.all[innermost].name))
            stack.open(number, one.end_ns)
            timeline.add(one.start_ns, number)
        stack.close(_NEVER, timeline)
        return timeline


class _Open:
    """The ranges that are open at a moment. Thousands may be open: a push without its pop, once a step."""

    def __init__(self) -> None:
        self._stack: list[int] = []
        self._ends: list[tuple[int, int, int]] = []
        self._closed: set[int] = set()
        """Ranges that have ended but are still in the stack, beneath an open range."""

    @property
    def innermost(self) -> int:
        """The number of the innermost open range; ``NONE`` if no range is open."""
        return self._stack[-1] if self._stack else NONE

    def open(self, number: int, end_ns: int) -> None:
        """Open the range that begins next."""
        heappush(self._ends, (end_ns, -len(self._stack), number))
        self._stack.append(number)

    def around(self, end_ns: int, ranges: Sequence[Opened]) -> int:
        """Return the innermost open range that does not end before ``end_ns``; ``NONE`` if there is none."""
        found = (at for at in reversed(self._stack) if at not in self._closed and ranges[at].end_ns >= end_ns)
        return next(found, NONE)

    def close(self, until_ns: int, timeline: _Timeline) -> None:
        """Close the ranges that end by ``until_ns``, the first end first, wherever in the stack they are."""
        while self._ends and self._ends[0][0] <= until_ns:
            ends_ns, _, number = heappop(self._ends)
            self._closed.add(number)
            while self._stack and self._stack[-1] in self._closed:
                self._closed.remove(self._stack.pop())
            timeline.add(ends_ns, self.innermost)


class Totals:
    """The work launched in each range; after ``passed_up``, with the work launched in the ranges within it."""

    def __init__(self, ranges: Ranges) -> None:
        count = len(ranges.all) + 1  # the last entry is for work outside of all ranges
        self.kernels: array[int] = array("q", [0]) * count
        self.busy_ns: array[int] = array("q", [0]) * count
        self.first_ns: array[int] = array("q", [0]) * count
        self.last_ns: array[int] = array("q", [0]) * count

    def add(self, number: int, start_ns: int, end_ns: int) -> None:
        """Add one kernel to the innermost range that it belongs to."""
        if not self.kernels[number] or start_ns < self.first_ns[number]:
            self.first_ns[number] = start_ns
        if end_ns > self.last_ns[number]:
            self.last_ns[number] = end_ns
        self.kernels[number] += 1
        self.busy_ns[number] += end_ns - start_ns

    def passed_up(self, parents: Sequence[int]) -> None:
        """Add the work of each range to the range around it."""
        for number in range(len(parents) - 1, -1, -1):  # an outer range begins before its inner ranges
            above = parents[number]
            if above == NONE or not self.kernels[number]:
                continue
            if not self.kernels[above] or self.first_ns[number] < self.first_ns[above]:
                self.first_ns[above] = self.first_ns[number]
            self.last_ns[above] = max(self.last_ns[above], self.last_ns[number])
            self.kernels[above] += self.kernels[number]
            self.busy_ns[above] += self.busy_ns[number]


NOT_OPERATOR = (
    "instr({0}, ', op_id = ') = 0 AND instr({0}, ', seq = ') = 0 AND {0} NOT GLOB 'aten::*'"
    " AND {0} NOT GLOB 'autograd::engine::evaluate_function: *'"
)
"""The SQL condition for a range's name that somebody chose, in contrast to a name that PyTorch wrote.
``Named.is_operator`` and ``place_or_node`` classify a name as text."""
_PASS = re.compile(rf"(.+): ({WARM_UP}|{SAMPLES}|{MEMORY}|{OPERATORS})", re.DOTALL)


class Named(NamedTuple):
    """The parts of a range's name."""

    name: str
    sequence: int = -1
    sizes: str = ""
    """Shapes of the inputs as PyTorch writes them; ``""``: somebody's own range, or a frame of autograd's engine."""

    @property
    def is_operator(self) -> bool:
        """Whether PyTorch opened the range for an operator, in contrast to a range that somebody named."""
        return bool(self.sizes) or self.sequence >= 0 or "::" in self.name.partition(" ")[0]


def named(text: str) -> Named:
    """Split a range's name into parts."""
    rest = text.partition(", input_op_ids = ")[0]
    rest, _, sizes = rest.partition(", sizes = ")
    rest = _without_number(rest, ", op_id = ")[0]
    name, sequence = _without_number(rest, ", seq = ")
    return Named(name, sequence, sizes)


def _without_number(text: str, before: str) -> tuple[str, int]:
    start, found, number = text.rpartition(before)
    return (start, int(number)) if found and number.isdecimal() else (text, -1)


@lru_cache(maxsize=65536)
def shapes_of(sizes: str) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of an operator's inputs; ``()`` for an input that is no tensor."""
    try:
        found = json.loads(sizes)
    except ValueError:
        return ()
    if not isinstance(found, list):
        return ()
    return tuple(
        tuple(one) if isinstance(one, list) and all(isinstance(size, int) for size in one) else () for one in found
    )


@lru_cache(maxsize=65536)
def place_or_node(name: str) -> tuple[Where | None, str | None]:
    """Return the module and line of a range of perflab's, and the backward node of a frame of autograd's engine.

    None: the name is not of such a range.
    """
    module, _, line = name.removeprefix(AT).partition(BETWEEN)
    place = Where(module, line) if name.startswith(AT) else None
    return place, name.removeprefix(NODE) if name.startswith(NODE) else None


def case_and_pass(name: str) -> tuple[str, str] | None:
    """Split ``test_step[small]: samples`` into the case and ``samples``; None: the name is of another range."""
    found = _PASS.fullmatch(name)
    return (found[1], found[2]) if found else None


_PUSHED, _STARTED = (59, 70), (60, 71)
"""Types of events in every version: push/pop ranges, and start/end ranges."""
MOST_RANGES = 1_000_000
"""The most named ranges that are read; of more, the longest are read. A million take 300 MB."""


def _text(export: Export) -> tuple[str, str]:
    """Return the SQL expression of a range's name, and the join that the expression needs."""
    columns = export.tables[RANGES]
    own = ["e.text"] if "text" in columns else []
    if "textId" in columns and export.has(STRINGS):
        own.append("s.value")
        join = f"LEFT JOIN {STRINGS} s ON s.id = e.textId"
    else:
        join = ""
    nothing = "''"
    return f"COALESCE({', '.join([*own, nothing, nothing])})", join


def named_ranges(export: Export, process: int) -> tuple[Ranges, list[str]]:
    """Return the ranges that somebody opened by name in one process, and notes on them."""
    if not export.has(RANGES):
        return Ranges([]), []
    text, join = _text(export)
    kinds = ", ".join(map(str, (*_PUSHED, *_STARTED)))
    condition = (
        f"e.eventType IN ({kinds}) AND (e.globalTid >> 24 & 16777215) = {process} AND {NOT_OPERATOR.format(text)}"
    )
    source = f"FROM {RANGES} e {join} WHERE {condition}"

    @cache
    def last_ns() -> int:  # a scan of all rows takes seconds, and few exports need it
        length = "COALESCE(end, start) - start"
        whole = "typeof(start) = 'integer' AND typeof(COALESCE(end, 0)) = 'integer'"
        found = (
            f"SELECT COALESCE(MAX(start + {length}), 0) FROM {{}} WHERE {whole} AND {length} BETWEEN 0 AND {LONGEST_NS}"
        )
        tables = (table for table in (RANGES, API, *WORK) if export.has(table))
        return max(int(next(export.rows(found.format(table)))[0]) for table in tables)

    domain = "COALESCE(e.domainId, 0)" if "domainId" in export.tables[RANGES] else "0"
    columns = f"{text}, e.start, e.end, e.globalTid, e.eventType, {domain}"
    rows = export.rows(f"SELECT {columns} {source} LIMIT {MOST_RANGES + 1}")
    found, unclosed, endless = _opened(rows, last_ns)
    notes = []
    if len(found) > MOST_RANGES:
        rows = export.rows(
            f"SELECT {columns} {source} ORDER BY COALESCE(e.end, {last_ns()}) - e.start DESC LIMIT {MOST_RANGES}"
        )
        found, unclosed, endless = _opened(rows, last_ns)
        notes.append(f"there are more than {MOST_RANGES:,} named ranges: the shortest were not read")
    if unclosed:
        notes.append(
            f"{format_count(unclosed, 'range')} never closed (a push without its pop?): until the end of the recording"
        )
    if endless:
        notes.append(
            f"{format_count(endless, 'range')} left out: the end is before the beginning, or over a week later"
        )
    return Ranges(found), notes


def _opened(
    rows: Iterator[tuple[str, int, int | None, int, int, int]], last_ns: Callable[[], int]
) -> tuple[list[Opened], int, int]:
    found, unclosed, endless = [], 0, 0
    known: dict[str, str] = {}
    for text, start_ns, end_ns, thread, kind, domain in rows:
        name = known.setdefault(text, str(text))  # one object per name; in a damaged file, a name may be no text
        unclosed += end_ns is None
        end_ns = last_ns() if end_ns is None else end_ns
        if not 0 <= end_ns - start_ns <= LONGEST_NS:
            endless += 1
            continue
        found.append(Opened(name, start_ns, end_ns, thread, kind in _STARTED, domain))
    return found, unclosed, endless


def operator_ranges(
    export: Export, process: int, spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, start, end and thread of the ranges that PyTorch opened within some spans of time."""
    if not spans or not export.has(RANGES):
        return
    text, join = _text(export)
    condition = f"e.eventType IN ({', '.join(map(str, _PUSHED))}) AND (e.globalTid >> 24 & 16777215) = {process}"
    yield from export.rows(
        f"SELECT {text}, e.start, COALESCE(e.end, e.start), e.globalTid FROM {RANGES} e {join}"
        f" WHERE {_within(sorted(spans))} AND {condition} AND NOT ({NOT_OPERATOR.format(text)})"
    )


def _within(spans: Sequence[tuple[int, int]]) -> str:
    """Return the SQL condition that a range begins in one of the spans; it bisects, because it tests every row."""
    if len(spans) == 1:
        return f"e.start BETWEEN {spans[0][0]} AND {spans[0][1]}"
    half = len(spans) // 2
    return f"CASE WHEN e.start < {spans[half][0]} THEN {_within(spans[:half])} ELSE {_within(spans[half:])} END"
