"""Ranges that somebody opened by name: which are open at a moment, on a thread. Pure; times are nanoseconds.

A push/pop range belongs to its thread, a start/end range to all threads of its process. A kernel belongs to the
innermost range that is open when it is launched, and with it to those around.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import merge
from typing import NamedTuple

NONE = -1
_NEVER = 2**63 - 1


class Opened(NamedTuple):
    """A range as it was recorded."""

    name: str
    start_ns: int
    end_ns: int
    thread: int
    whole_process: bool
    """Whether it is a start/end range."""


@dataclass
class _Timeline:
    """Which range is the innermost from each moment on."""

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
    """All ranges of one process, by number in order of their start."""

    def __init__(self, found: Iterable[Opened]) -> None:
        self.all: list[Opened] = sorted(found, key=lambda one: (one.start_ns, -one.end_ns))
        self.parents: array[int] = array("q", [NONE]) * len(self.all)
        """The range around each, ``NONE`` for the outermost."""
        self.crossing: list[tuple[str, str]] = []
        """Ranges that begin within another and end after it, with that other."""
        self.borrowed: dict[int, int] = {}
        """Threads without ranges of their own, and the one whose ranges count for them."""
        self._timelines: dict[int, _Timeline] = {}
        self._shared = [number for number, one in enumerate(self.all) if one.whole_process]
        self._own: dict[int, list[int]] = {}
        for number, one in enumerate(self.all):
            if not one.whole_process:
                self._own.setdefault(one.thread, []).append(number)
        for thread in {one.thread for one in self.all}:
            self._timelines[thread] = self._timeline(thread)

    def innermost(self, thread: int, moment_ns: int) -> int:
        """The number of the innermost range that is open; ``NONE``: none is."""
        return self.stretch(thread, moment_ns)[0]

    def stretch(self, thread: int, moment_ns: int) -> tuple[int, int, int]:
        """The innermost range, and from when until when it is."""
        if thread not in self._timelines:
            if len(self._own) == 1:  # the backward's thread: what the caller has open is what it works for
                (lender,) = self._own
                self.borrowed[thread] = lender
                self._timelines[thread] = self._timelines[lender]
            else:
                self._timelines[thread] = self._timeline(thread)
        return self._timelines[thread].at(moment_ns)

    def path(self, number: int) -> tuple[str, ...]:
        """Names from the outermost range to this one."""
        names = []
        while number != NONE:
            names.append(self.all[number].name)
            number = self.parents[number]
        return tuple(reversed(names))

    def children(self) -> dict[int, list[int]]:
        """The ranges directly within each."""
        found: dict[int, list[int]] = {}
        for number, parent in enumerate(self.parents):
            found.setdefault(parent, []).append(number)
        return found

    def _timeline(self, thread: int) -> _Timeline:
        timeline = _Timeline()
        open_now: list[int] = []
        for number in merge(self._shared, self._own.get(thread, [])):
            one = self.all[number]
            self._close(open_now, one.start_ns, timeline)
            around = [at for at in open_now if self.all[at].end_ns >= one.end_ns]
            if one.thread == thread:
                self.parents[number] = around[-1] if around else NONE
                if open_now and (not around or around[-1] != open_now[-1]) and one.end_ns > one.start_ns:
                    self.crossing.append((one.name, self.all[open_now[-1]].name))
            open_now.append(number)
            timeline.add(one.start_ns, number)
        self._close(open_now, None, timeline)
        return timeline

    def _close(self, open_now: list[int], until_ns: int | None, timeline: _Timeline) -> None:
        """Close what ends by then, the first end first, wherever among the open ones it stands."""
        while open_now:
            ends_ns, first = min((self.all[at].end_ns, -place) for place, at in enumerate(open_now))
            if until_ns is not None and ends_ns > until_ns:
                return
            del open_now[-first]
            timeline.add(ends_ns, open_now[-1] if open_now else NONE)


class Totals:
    """What was launched in each range, without and with those within it."""

    def __init__(self, ranges: Ranges) -> None:
        count = len(ranges.all) + 1  # the last one: outside of all
        self.kernels: array[int] = array("q", [0]) * count
        self.busy_ns: array[int] = array("q", [0]) * count
        self.first_ns: array[int] = array("q", [0]) * count
        self.last_ns: array[int] = array("q", [0]) * count

    def add(self, number: int, start_ns: int, end_ns: int) -> None:
        """One kernel, of the innermost range that it belongs to."""
        if not self.kernels[number] or start_ns < self.first_ns[number]:
            self.first_ns[number] = start_ns
        if end_ns > self.last_ns[number]:
            self.last_ns[number] = end_ns
        self.kernels[number] += 1
        self.busy_ns[number] += end_ns - start_ns

    def passed_up(self, parents: Sequence[int]) -> None:
        """Give each range what those within it have."""
        for number in range(len(parents) - 1, -1, -1):  # a range around another begins before it
            above = parents[number]
            if above == NONE or not self.kernels[number]:
                continue
            if not self.kernels[above] or self.first_ns[number] < self.first_ns[above]:
                self.first_ns[above] = self.first_ns[number]
            self.last_ns[above] = max(self.last_ns[above], self.last_ns[number])
            self.kernels[above] += self.kernels[number]
            self.busy_ns[above] += self.busy_ns[number]
