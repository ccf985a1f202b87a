"""Streams the device's work, each launch with the call of CUDA that made it, and sums up the launches."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, chain
from typing import NamedTuple

from perflab.base.gpu_names import kernel_name
from perflab.nsys.errors import ExportError
from perflab.nsys.export import API, COPIES, FILLS, GRAPHS, KERNELS, LONGEST_NS, STRINGS, WORK, Export, quoted
from perflab.nsys.ranges import NONE, Ranges, Totals

_NAMES = ("demangledName", "shortName", "nameId", "name")
"""Columns that hold a kernel's name in some version, the best first."""
FILL, COPY, GRAPH = -1, -100, -1000
"""Stand-ins for the number of a kernel's name if the device fills, copies or runs a CUDA graph; the kind of the copy or
the number of the graph is subtracted."""
_INSTEAD_OF_NAMES = {FILLS: (FILL, ""), COPIES: (COPY, "copyKind"), GRAPHS: (GRAPH, "graphId")}
_COPY_KINDS = {1: "copy host to device", 2: "copy device to host", 8: "copy device to device", 10: "copy peer to peer"}
_STEP = 200_000


class Launch(NamedTuple):
    """One kernel, copy, fill or launch of a CUDA graph, and the host's call that launched it."""

    start_ns: int
    end_ns: int
    name: int
    """The number of the kernel's name in the table of strings; ``FILL``; ``COPY`` minus the copy's kind; or ``GRAPH``
    minus the graph's number."""
    thread: int
    """The serialized identifier of the thread that made the call; 0: the call was not recorded."""
    called_ns: int
    launched_ns: int
    device: int = 0


_Row = tuple[int, int, int, int, int, int, int]
"""The fields of a ``Launch`` as a plain tuple, because there are millions."""
_FIELDS = 7


def launches_in(numbers: array[int]) -> list[Launch]:
    """Return the launches that a flat array of numbers keeps, since there may be millions, in order of start."""
    return sorted(Launch(*numbers[at : at + _FIELDS]) for at in range(0, len(numbers), _FIELDS))


class Before:
    """The times until which the device is busy with work launched before given moments, by any thread.

    The order of calls: ``add`` for each launch, ``passed_on`` once, then ``until_ns``.
    """

    def __init__(self, moments: Sequence[int]) -> None:
        self._moments = moments
        self._until_ns = array("q", [0]) * (len(moments) + 1)

    def add(self, called_ns: int, end_ns: int) -> None:
        """Add one launch, by the time of its call and its end on the device."""
        at = bisect_right(self._moments, called_ns)
        if end_ns > self._until_ns[at]:
            self._until_ns[at] = end_ns

    def passed_on(self) -> None:
        """Carry the work before each moment over to all later moments."""
        self._until_ns = array("q", accumulate(self._until_ns, max))

    def until_ns(self, moment_ns: int) -> int:
        """Return the last end of the work launched before a moment; 0: nothing was launched before."""
        return self._until_ns[bisect_left(self._moments, moment_ns)]


@dataclass
class Sums:
    """The sums over all launches of a process."""

    totals: Totals
    kept: Mapping[int, array[int]]
    before: Before
    by_range: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    """Number and total nanoseconds of launches, by number of the path and then of the name."""
    without_call: int = 0
    """The number of launches whose call was not recorded."""
    without_end: int = 0
    """The number of launches without a possible end, which are left out of all other sums."""
    count: int = 0

    @property
    def graphs(self) -> int:
        """The number of launches of CUDA graphs."""
        return sum(count for _, name, count, _ in self.flat() if name <= GRAPH)

    def flat(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield path, name, number of launches and total nanoseconds."""
        for path, names in self.by_range.items():
            for name, (count, time_ns) in names.items():
                yield path, name, count, time_ns


class _Within(NamedTuple):
    """The sums to which the launches in one range are added."""

    number: int
    by_name: dict[int, list[int]]
    kept: array[int] | None


_NOWHERE = (0, 0, _Within(NONE, {}, None))
_OUTSIDE = (NONE, -(2**63), 2**63 - 1)


def _launches(export: Export, table: str, process: int) -> Iterator[_Row]:
    """Yield the work of one process as the fields of ``Launch``, in the order of the export.

    Raises:
        ExportError: the export does not tell to which process work belongs, or the file is damaged.
    """
    columns = export.tables[table]
    has_process = "globalPid" in columns
    if not has_process and len(export.processes) > 1:
        raise ExportError(
            f"{export.path}: {table} does not say which of {len(export.processes)} processes a kernel is of",
            "export it with a newer Nsight Systems, or profile one process at a time",
        )
    instead, part = _INSTEAD_OF_NAMES.get(table, (0, ""))
    name = str(instead)
    if table == KERNELS and (known := [f"k.{quoted(one)}" for one in _NAMES if one in columns]):
        name = f"COALESCE({', '.join(known)}, 0)"
    if part in columns:
        name = f"{name} - COALESCE(k.{part}, 0)"
    device = "k.deviceId" if "deviceId" in columns else "0"
    where = f"WHERE (k.globalPid >> 24 & 16777215) = {process}" if has_process else ""
    if not export.has(API):
        query = f"SELECT k.rowid, k.start, k.end, {name}, {device}, 0, 0, 0 FROM {table} k {where}"
    else:
        # nsys makes no index: SQLite indexes the calls for the length of this query, in a temporary file
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


def summed(
    export: Export,
    process: int,
    ranges: Ranges,
    keeping: Mapping[int, array[int]],
    paths: Callable[[int], int],
    calls: Sequence[int],
    progress: Callable[[int], None],
) -> Sums:
    """Sum up all launches of a process in one pass.

    Args:
        export: the export.
        process: the number of the process.
        ranges: the process's ranges.
        keeping: where to keep launches one by one, by number of the range.
        paths: returns the number of a range's path.
        calls: the times at which the calls begin whose time on the device is wanted, in order.
        progress: called now and then with the number of launches read so far.
    """
    sums = Sums(Totals(ranges), keeping, Before(calls))
    totals, parents, before = sums.totals, ranges.parents, sums.before
    keepers: list[array[int] | None] = []
    for number, parent in enumerate(parents):  # an outer range begins before its inner ranges
        keepers.append(keeping.get(number, keepers[parent] if parent != NONE else None))

    # Most launches follow another of their thread in the same range: the last range of each thread is kept.
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
            within.kept.extend(launch)
        sums.count += 1
        if sums.count % _STEP == 0:
            progress(sums.count)
    totals.passed_up(parents)
    before.passed_on()
    return sums


def names_in(export: Export) -> Callable[[int], str]:
    """Return a function that gives readable names of kernels by number, which are looked up on demand.

    A name is such as ``vectorized_elementwise_kernel<4, FillFunctor<float>>``; for a copy, it is the direction.
    """

    @cache
    def name_of(number: int) -> str:
        if number <= GRAPH:
            return f"CUDA graph {GRAPH - number}"
        if number <= COPY:
            return _COPY_KINDS.get(COPY - number, "copy")
        if number == FILL:
            return "fill"
        found = None
        if export.has(STRINGS):
            found = next(export.rows(f"SELECT value FROM {STRINGS} WHERE id = ?", number), None)
        return kernel_name(str(found[0])) if found is not None else f"kernel {number}"

    return name_of
