"""Streams the device's work with the call of CUDA that launched each piece, and sums it up as it comes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from perflab.kernel_names import kernel_name
from perflab.profiles.nsys.export import API, COPIES, FILLS, KERNELS, STRINGS, Export, ExportError, quoted
from perflab.profiles.nsys.ranges import NONE, Ranges, Totals

_NAMES = ("demangledName", "shortName", "nameId", "name")
"""Columns that have had a kernel's name, the best first."""
FILL, COPY = -1, -100
"""Stand in for a kernel's name where the device fills or copies; a copy's kind is taken off."""
_COPY_KINDS = {1: "copy host to device", 2: "copy device to host", 8: "copy device to device", 10: "copy peer to peer"}
_STEP = 200_000


class Launch(NamedTuple):
    """One kernel, copy or fill, and the host's call that launched it."""

    start_ns: int
    end_ns: int
    name: int
    """Of the kernel, among the strings; of a copy ``COPY`` less its kind; ``FILL``."""
    thread: int
    """0: the call was not recorded."""
    called_ns: int
    launched_ns: int


_FIELDS = 6


@dataclass
class Kept:
    """Launches of chosen calls, as numbers: there may be millions."""

    numbers: array[int] = field(default_factory=lambda: array("q"))

    def add(self, launch: Launch) -> None:
        """One more."""
        self.numbers.extend(launch)

    def launches(self) -> list[Launch]:
        """All of them, in order of time."""
        found = [Launch(*self.numbers[at : at + _FIELDS]) for at in range(0, len(self.numbers), _FIELDS)]
        return sorted(found)


@dataclass
class Sums:
    """What all launches of a process came to."""

    totals: Totals
    by_range: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """By number of a path and of a name: how many, and for how long."""
    kept: Mapping[int, Kept] = field(default_factory=dict)
    without_call: int = 0
    """Launches whose call was not recorded."""
    count: int = 0


def launches_of(export: Export, process: int) -> Iterator[Launch]:
    """The work of one process, in the order in which the export has it.

    Raises:
        ExportError: what belongs to which process cannot be known, or the file is damaged.
    """
    for table in (KERNELS, COPIES, FILLS):
        if export.has(table):
            yield from _launches(export, table, process)


def _launches(export: Export, table: str, process: int) -> Iterator[Launch]:
    columns = export.tables[table]
    has_process = "globalPid" in columns
    if not has_process and len(export.processes) > 1:
        raise ExportError(
            f"{export.path}: {table} does not say which of {len(export.processes)} processes a kernel is of",
            "export it with a newer Nsight Systems, or profile one process at a time",
        )
    name = _name_column(columns) if table == KERNELS else f"{COPY} - k.copyKind" if "copyKind" in columns else str(COPY)
    name = str(FILL) if table == FILLS else name
    where = f"WHERE (k.globalPid >> 24 & 16777215) = {process}" if has_process else ""
    if not export.has(API):
        query = f"SELECT k.rowid, k.start, k.end, {name}, 0, 0, 0 FROM {table} k {where}"
    else:
        # nsys makes no index: SQLite makes one of the calls for the length of this query, in a temporary file
        query = (
            f"SELECT k.rowid, k.start, k.end, {name}, r.globalTid, r.start, r.end FROM {table} k LEFT JOIN {API} r"
            f" ON r.correlationId = k.correlationId AND (r.globalTid >> 24 & 16777215) = {process} {where}"
        )
    last = None
    for row, start_ns, end_ns, number, thread, called_ns, launched_ns in export.rows(query):
        if row == last or end_ns < start_ns:  # a call of the runtime and one of the driver may share a number
            continue
        last = row
        yield Launch(start_ns, end_ns, number or 0, thread or 0, called_ns or 0, launched_ns or 0)


def _name_column(columns: frozenset[str]) -> str:
    known = [f"k.{quoted(name)}" for name in _NAMES if name in columns]
    return f"COALESCE({', '.join(known)}, 0)" if known else "0"


def summed(
    export: Export,
    process: int,
    ranges: Ranges,
    keeping: Mapping[int, Kept],
    paths: Callable[[int], int],
    progress: Callable[[int], None],
) -> Sums:
    """Go through all launches once.

    Args:
        export: what is read.
        process: whose launches.
        ranges: of that process.
        keeping: by number of a range whose launches are kept one by one.
        paths: the number of a range's path, by the range's number.
        progress: told how many launches have been read, now and then.
    """
    sums = Sums(Totals(ranges), kept=keeping)
    kept_in: dict[int, Kept | None] = {}
    parents = ranges.parents

    def keeper(number: int) -> Kept | None:
        at = number
        while at != NONE:
            if at in keeping:
                return keeping[at]
            at = parents[at]
        return None

    for launch in launches_of(export, process):
        number = ranges.innermost(launch.thread, launch.called_ns) if launch.thread else NONE
        sums.without_call += not launch.thread
        sums.totals.add(number, launch.start_ns, launch.end_ns)
        key = (paths(number), launch.name)
        total = sums.by_range.get(key)
        if total is None:
            total = sums.by_range[key] = [0, 0]
        total[0] += 1
        total[1] += launch.end_ns - launch.start_ns
        if number not in kept_in:
            kept_in[number] = keeper(number)
        keep = kept_in[number]
        if keep is not None:
            keep.add(launch)
        sums.count += 1
        if sums.count % _STEP == 0:
            progress(sums.count)
    sums.totals.passed_up(parents)
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
        if number <= COPY:
            return _COPY_KINDS.get(COPY - number, "copy")
        if not self._export.has(STRINGS):
            return "kernel"
        found = next(self._export.rows(f"SELECT value FROM {STRINGS} WHERE id = ?", number), None)
        return kernel_name(str(found[0])) if found is not None else "kernel"
