"""Streams the device's work with the call of CUDA that launched each piece, and sums it up as it comes."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import NamedTuple

from perflab.kernel_names import kernel_name
from perflab.profiles.nsys.export import (
    API,
    COPIES,
    FILLS,
    GRAPHS,
    KERNELS,
    LONGEST_NS,
    STRINGS,
    WORK,
    Export,
    ExportError,
    quoted,
)
from perflab.profiles.nsys.ranges import NONE, Ranges, Totals

_NAMES = ("demangledName", "shortName", "nameId", "name")
"""Columns that have had a kernel's name, the best first."""
FILL, COPY, GRAPH = -1, -100, -1000
"""Stand in for a kernel's name where the device fills, copies or runs a CUDA graph; a copy's kind, or a graph's number,
is taken off."""
_INSTEAD_OF_NAMES = {FILLS: (FILL, ""), COPIES: (COPY, "copyKind"), GRAPHS: (GRAPH, "graphId")}
_COPY_KINDS = {1: "copy host to device", 2: "copy device to host", 8: "copy device to device", 10: "copy peer to peer"}
_STEP = 200_000


class Launch(NamedTuple):
    """One kernel, copy, fill or launch of a CUDA graph, and the host's call that launched it."""

    start_ns: int
    end_ns: int
    name: int
    """Of the kernel, among the strings; ``FILL``; of a copy ``COPY`` less its kind; of a graph likewise."""
    thread: int
    """0: the call was not recorded."""
    called_ns: int
    launched_ns: int
    device: int = 0


_Row = tuple[int, int, int, int, int, int, int]
"""The same as a plain tuple: there are millions."""
_FIELDS = 7


@dataclass
class Kept:
    """Launches of chosen calls, as numbers: there may be millions."""

    numbers: array[int] = field(default_factory=lambda: array("q"))

    def launches(self) -> list[Launch]:
        """All of them, in order of time."""
        found = [Launch(*self.numbers[at : at + _FIELDS]) for at in range(0, len(self.numbers), _FIELDS)]
        return sorted(found)


class Before:
    """Until when the device is busy with what was launched before some moments, whoever launched it."""

    def __init__(self, moments: Sequence[int] = ()) -> None:
        self._moments = moments
        self._until_ns = array("q", [0]) * (len(moments) + 1)

    def add(self, called_ns: int, end_ns: int) -> None:
        """One kernel."""
        at = bisect_right(self._moments, called_ns)
        if end_ns > self._until_ns[at]:
            self._until_ns[at] = end_ns

    def passed_on(self) -> None:
        """What is before one moment is before those after it."""
        self._until_ns = array("q", accumulate(self._until_ns, max))

    def until_ns(self, moment_ns: int) -> int:
        """0: nothing was launched before."""
        return self._until_ns[bisect_left(self._moments, moment_ns)]


@dataclass
class Sums:
    """What all launches of a process came to."""

    totals: Totals
    by_range: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """By number of a path, and of a name: how many, and for how long."""
    kept: Mapping[int, Kept] = field(default_factory=dict)
    before: Before = field(default_factory=Before)
    without_call: int = 0
    """Launches whose call was not recorded."""
    without_end: int = 0
    """Launches that have no end that can be, and count nowhere."""
    count: int = 0

    @property
    def graphs(self) -> int:
        """Launches of CUDA graphs."""
        return sum(count for _, name, count, _ in self.flat() if name <= GRAPH)

    def flat(self) -> Iterator[tuple[int, int, int, int]]:
        """Path, name, how many and for how long."""
        for path, names in self.by_range.items():
            for name, (count, time_ns) in names.items():
                yield path, name, count, time_ns


class _Within(NamedTuple):
    """What launches in one range are added to."""

    number: int
    by_name: dict[int, list[int]]
    kept: Kept | None


_NOWHERE = (0, 0, _Within(NONE, {}, None))
_OUTSIDE = (NONE, -(2**63), 2**63 - 1)


def _launches(export: Export, table: str, process: int) -> Iterator[_Row]:
    """The work of one process as ``Launch`` has it, in the order of the export.

    Raises:
        ExportError: what belongs to which process cannot be known, or the file is damaged.
    """
    columns = export.tables[table]
    has_process = "globalPid" in columns
    if not has_process and len(export.processes) > 1:
        raise ExportError(
            f"{export.path}: {table} does not say which of {len(export.processes)} processes a kernel is of",
            "export it with a newer Nsight Systems, or profile one process at a time",
        )
    name = _name_column(columns) if table == KERNELS else str(_INSTEAD_OF_NAMES[table][0])
    if (part := _INSTEAD_OF_NAMES.get(table, (0, ""))[1]) in columns:
        name = f"{name} - COALESCE(k.{part}, 0)"
    device = "k.deviceId" if "deviceId" in columns else "0"
    where = f"WHERE (k.globalPid >> 24 & 16777215) = {process}" if has_process else ""
    if not export.has(API):
        query = f"SELECT k.rowid, k.start, k.end, {name}, {device}, 0, 0, 0 FROM {table} k {where}"
    else:
        # nsys makes no index: SQLite makes one of the calls for the length of this query, in a temporary file
        query = (
            f"SELECT k.rowid, k.start, k.end, {name}, {device}, r.globalTid, r.start, r.end"
            f" FROM {table} k LEFT JOIN {API} r"
            f" ON r.correlationId = k.correlationId AND (r.globalTid >> 24 & 16777215) = {process} {where}"
        )
    last = None
    for row, start_ns, end_ns, number, device_id, thread, called_ns, launched_ns in export.rows(query):
        if row == last:  # a call of the runtime and one of the driver may share a number
            continue
        last = row
        yield start_ns, end_ns, number or 0, thread or 0, called_ns or 0, launched_ns or 0, device_id or 0


def _name_column(columns: frozenset[str]) -> str:
    known = [f"k.{quoted(name)}" for name in _NAMES if name in columns]
    return f"COALESCE({', '.join(known)}, 0)" if known else "0"


def summed(
    export: Export,
    process: int,
    ranges: Ranges,
    keeping: Mapping[int, Kept],
    paths: Callable[[int], int],
    calls: Sequence[int],
    progress: Callable[[int], None],
) -> Sums:
    """Go through all launches once.

    ``keeping`` is by number of a range whose launches are kept one by one. ``paths`` gives the number of a path by that
    of a range. ``calls``: when each call begins whose time on the device is asked for, in order. ``progress`` is told
    how many launches have been read, now and then.
    """
    sums = Sums(Totals(ranges), kept=keeping, before=Before(calls))
    totals, parents, before = sums.totals, ranges.parents, sums.before
    keepers: list[Kept | None] = []
    for number, parent in enumerate(parents):  # a range around another begins before it
        keepers.append(keeping.get(number) or (keepers[parent] if parent != NONE else None))

    # Most launches follow one of the same thread in the same range: what is known of that range is kept.
    stretches: dict[int, tuple[int, int, _Within]] = {}
    tables = (_launches(export, table, process) for table in WORK if export.has(table))
    for launch in chain.from_iterable(tables):
        start_ns, end_ns, name, thread, called_ns, _, _ = launch
        length_ns = end_ns - start_ns
        if not 0 <= length_ns <= LONGEST_NS or not end_ns:  # 0: CUPTI could not tell when a graph ran
            sums.without_end += 1
            continue
        begin_ns, until_ns, within = stretches.get(thread, _NOWHERE)
        if not begin_ns <= called_ns < until_ns:
            number, begin_ns, until_ns = ranges.stretch(thread, called_ns) if thread else _OUTSIDE
            keeper = keepers[number] if number != NONE else None
            within = _Within(number, sums.by_range.setdefault(paths(number), {}), keeper)
            stretches[thread] = (begin_ns, until_ns, within)
        sums.without_call += not thread
        totals.add(within.number, start_ns, end_ns)
        if thread and calls:
            before.add(called_ns, end_ns)
        total = within.by_name.get(name)
        if total is None:
            total = within.by_name[name] = [0, 0]
        total[0] += 1
        total[1] += length_ns
        if within.kept is not None:
            within.kept.numbers.extend(launch)
        sums.count += 1
        if sums.count % _STEP == 0:
            progress(sums.count)
    totals.passed_up(parents)
    before.passed_on()
    return sums


class Names:
    """Readable names of kernels by their numbers, looked up as they are needed."""

    def __init__(self, export: Export) -> None:
        self._export = export
        self._known: dict[int, str] = {FILL: "fill"}

    def of(self, number: int) -> str:
        """``vectorized_elementwise_kernel<4, FillFunctor<float>>``; of a copy, from where to where."""
        if number not in self._known:
            self._known[number] = self._read(number)
        return self._known[number]

    def _read(self, number: int) -> str:
        if number <= GRAPH:
            return f"CUDA graph {GRAPH - number}"
        if number <= COPY:
            return _COPY_KINDS.get(COPY - number, "copy")
        found = None
        if self._export.has(STRINGS):
            found = next(self._export.rows(f"SELECT value FROM {STRINGS} WHERE id = ?", number), None)
        return kernel_name(str(found[0])) if found is not None else f"kernel {number}"
