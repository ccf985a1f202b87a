"""Finds the named ranges that are open on a thread at a moment. Pure; times are nanoseconds.

A push/pop range belongs to its thread, a start/end range to all threads of its process. A kernel belongs to the
innermost range that is open when the kernel is launched, and to all ranges around that range.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heappop, heappush, merge
from typing import NamedTuple

from perflab.base.grouping import groups_of

NONE = -1
_NEVER = 2**63 - 1


class Opened(NamedTuple):
    """A range as the export records it."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    whole_process: bool
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
