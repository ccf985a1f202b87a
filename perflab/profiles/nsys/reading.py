"""Reads one process of an export: time by range, kernels by range, and the profile of each case."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean

from perflab.measure.nvtx import CALL, OPERATORS, SAMPLES
from perflab.profiles.device import device_sums
from perflab.profiles.flops import flops_of
from perflab.profiles.host import Key, Sum, faster_half
from perflab.profiles.nsys.export import COPIES, FILLS, KERNELS, Export, ExportError, thread_of
from perflab.profiles.nsys.launches import Kept, Names, Sums, summed
from perflab.profiles.nsys.names import case_and_pass
from perflab.profiles.nsys.operators import PHASES, Asked, Ranged, asked_by, kernels
from perflab.profiles.nsys.ranges import NONE, Ranges
from perflab.profiles.nsys.reading_ranges import named_ranges, operator_ranges
from perflab.profiles.placed import Phase
from perflab.profiles.records import Profile
from perflab.profiles.sum_up import summed_up

TIMED_CALLS = 8
"""Calls of a case whose kernels are taken one by one, at most."""
MOST_EVENTS = 1_000_000
"""Ranges of operators that are read, at most: 1 GB of memory would not hold many more."""
MOST_KERNELS = 300_000
"""Kernels of cases that are taken one by one, at most; but each case has two calls."""
_STRANGERS = 0.05


@dataclass(frozen=True)
class RangeSum:
    """Ranges of one path."""

    path: tuple[str, ...]
    instances: int
    host_ns: int
    """How long they were open."""
    device_ns: int
    """From the start of the first kernel launched in each to the end of the last."""
    busy_ns: int
    """Time of these kernels."""
    kernels: int


@dataclass(frozen=True)
class KernelSum:
    """Launches of one kernel within ranges of one path."""

    path: tuple[str, ...]
    kernel: str
    instances: int
    time_ns: int


@dataclass(frozen=True)
class CaseReading:
    """What the export says of one case."""

    name: str
    calls: int
    host_ns: float
    """One call's range, on the host."""
    device_ns: float
    """One call on the device: from the end of the call before to its own."""
    profile: Profile | None = None
    problem: str = ""
    """Why there is no profile."""


@dataclass(frozen=True)
class Reading:
    """What one process of an export comes to."""

    process: str
    version: str
    ranges: list[RangeSum] = field(default_factory=list)
    kernels: list[KernelSum] = field(default_factory=list)
    cases: list[CaseReading] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class _Case:
    """The calls of a case, by number of their ranges."""

    timed: list[int] = field(default_factory=list)
    with_operators: list[int] = field(default_factory=list)

    @property
    def kept(self) -> list[int]:
        """Those calls whose kernels are taken one by one: some, over all of the time. The first has none before it."""
        later = self.timed[1:] or self.timed
        return later[:: max(1, len(later) // TIMED_CALLS)][:TIMED_CALLS]


def chosen_process(export: Export, wanted: int | None) -> int:
    """The process to read.

    Raises:
        ExportError: there are several, and none is named; or the one that is named is not there.
    """
    found = export.processes
    listed = ", ".join(f"{pid} ({export.process_names.get(pid, 'unnamed')})" for pid in found) or "none"
    if wanted is not None and wanted not in found:
        raise ExportError(f"{export.path} has no process {wanted} with ranges or CUDA work", f"it has: {listed}")
    if wanted is None and len(found) != 1:
        raise ExportError(
            f"{export.path} has {len(found)} processes with ranges or CUDA work: {listed}",
            "name one: --process=PID" if found else "profile with --trace=cuda,nvtx",
        )
    return found[0] if wanted is None else wanted


def read(export: Export, process: int, only: str | None, progress: Callable[[str], None]) -> Reading:
    """Read one process.

    Args:
        export: what is read.
        process: its number.
        only: name of ranges that count as the calls of a case; None: what perflab's own ranges say.
        progress: told what is under way.
    """
    progress("reading ranges")
    ranges, notes = named_ranges(export, process)
    cases = _cases_named(ranges, only) if only is not None else _cases(ranges)
    if only is not None and not cases:
        raise ExportError(f"{export.path} has no range {only!r}", "name one that it has; without --range it lists them")
    keeping = {number: Kept() for case in cases.values() for number in (*case.kept, *case.with_operators)}
    paths = _Paths(ranges)
    sums = summed(export, process, ranges, keeping, paths.number, lambda count: progress(f"reading kernels: {count:,}"))
    names = Names(export)
    notes += _notes(export, ranges, sums)
    progress("reading operators")
    asked, left_out = _asked(export, process, ranges, cases, keeping)
    if asked and not _has_torch():
        notes.append("could not count FLOPs, because PyTorch does not load here")
    if left_out:
        notes.append(f"operators of the first {MOST_EVENTS:,} ranges were read: read one case with --case or --range")
    return Reading(
        process=f"{process} ({export.process_names.get(process, 'unnamed')})",
        version=export.version,
        ranges=_range_sums(ranges, sums, paths),
        kernels=[
            KernelSum(paths.named(path), names.of(name), count, time_ns)
            for path, name, count, time_ns in sorted(sums.flat(), key=lambda one: -one[3])
        ],
        cases=[
            _case_reading(name, case, ranges, sums, asked, names, MOST_KERNELS // len(cases))
            for name, case in cases.items()
        ],
        notes=notes,
    )


class _Paths:
    """Paths of ranges by number: the same names around each other are one path."""

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._numbers: dict[tuple[int, str], int] = {}
        self._of: dict[int, int] = {NONE: NONE}
        self._named: list[tuple[str, ...]] = []

    def number(self, number: int) -> int:
        """The path's number, by that of a range."""
        if number not in self._of:
            above = self.number(self._ranges.parents[number])
            key = (above, self._ranges.all[number].name)
            if key not in self._numbers:
                self._numbers[key] = len(self._named)
                self._named.append((*self.named(above), key[1]))
            self._of[number] = self._numbers[key]
        return self._of[number]

    def named(self, path: int) -> tuple[str, ...]:
        """The names on a path, the outermost first."""
        return self._named[path] if path != NONE else ()


def _range_sums(ranges: Ranges, sums: Sums, paths: _Paths) -> list[RangeSum]:
    totals: dict[int, list[int]] = {}
    for number, one in enumerate(ranges.all):
        total = totals.setdefault(paths.number(number), [0, 0, 0, 0, 0])
        launched = sums.totals
        spans_ns = launched.last_ns[number] - launched.first_ns[number] if launched.kernels[number] else 0
        added = (1, one.end_ns - one.start_ns, spans_ns, launched.busy_ns[number], launched.kernels[number])
        for at, value in enumerate(added):
            total[at] += value
    return [RangeSum(paths.named(path), *total) for path, total in totals.items()]


def _cases(ranges: Ranges) -> dict[str, _Case]:
    """Cases that perflab's own ranges name."""
    passes = {number: found for number, one in enumerate(ranges.all) if (found := case_and_pass(one.name)) is not None}
    children = ranges.children() if passes else {}
    cases: dict[str, _Case] = {}
    for number, (name, which) in passes.items():
        calls = [child for child in children.get(number, []) if ranges.all[child].name == CALL]
        if which == SAMPLES:
            cases.setdefault(name, _Case()).timed += calls
        elif which == OPERATORS:
            cases.setdefault(name, _Case()).with_operators += calls[-1:]
    return {name: case for name, case in cases.items() if case.timed}


def _cases_named(ranges: Ranges, name: str) -> dict[str, _Case]:
    calls = [number for number, one in enumerate(ranges.all) if one.name == name]
    case = _Case(calls)
    case.with_operators = sorted({*case.kept[:1], *calls[-1:]})  # PyTorch's ranges may come in the last ones alone
    return {name: case} if calls else {}


def _notes(export: Export, ranges: Ranges, sums: Sums) -> list[str]:
    notes = []
    if not any(export.has(table) for table in (KERNELS, COPIES, FILLS)):
        notes.append(
            "could not look at kernels, because the export has no table of CUDA work: trace cuda too, on a GPU"
        )
    elif sums.without_call:
        notes.append(f"{sums.without_call} of {sums.count} kernels have no call of CUDA that launched them: no range")
    if ranges.crossing:
        inner, outer = ranges.crossing[0]
        notes.append(
            f"{len(ranges.crossing)} ranges cross another, such as {inner!r}, which begins in {outer!r} and ends after "
            "it: what is launched in both counts for the later one"
        )
    for thread, lender in ranges.borrowed.items():
        borrower, owner = (export.thread_names.get(one, "thread") for one in (thread, lender))
        notes.append(
            f"kernels launched from {borrower} {thread_of(thread)}, which has no range of its own, count for the "
            f"ranges that {owner} {thread_of(lender)} has open meanwhile"
        )
    return notes


def _asked(
    export: Export, process: int, ranges: Ranges, cases: Mapping[str, _Case], keeping: Mapping[int, Kept]
) -> tuple[dict[int, Asked], bool]:
    """What asked for each launch, by the range of a call; and whether something was left out."""
    calls = [number for case in cases.values() for number in case.with_operators]
    calls.sort(key=lambda at: ranges.all[at].start_ns)
    spans = [(ranges.all[at].start_ns, ranges.all[at].end_ns) for at in calls]
    starts = [start_ns for start_ns, _ in spans]
    found: dict[int, list[Ranged]] = {at: [] for at in calls}
    count = 0
    left_out = False
    for text, start_ns, end_ns, thread in operator_ranges(export, process, spans):
        at = bisect_right(starts, start_ns) - 1
        if at < 0 or spans[at][1] < start_ns:
            continue
        count += 1
        if count > MOST_EVENTS:
            left_out = True
            break
        found[calls[at]].append(Ranged(text, start_ns, end_ns, thread))
    children = ranges.children() if calls else {}
    flops = cache(_flops_of if _has_torch() else lambda _name, _shapes: 0)
    asked = {}
    for number in calls:
        one = ranges.all[number]
        phases = [ranges.all[at] for at in children.get(number, []) if ranges.all[at].name in PHASES]
        asked[number] = asked_by(
            Ranged(one.name, one.start_ns, one.end_ns, one.thread),
            found.pop(number),
            [Phase(phase.name, phase.start_ns, phase.end_ns) for phase in phases],
            keeping[number].launches(),
            flops,
        )
    return asked, left_out


def _has_torch() -> bool:
    """Whether FLOPs can be counted: an export may be read where PyTorch finds no CUDA to load."""
    try:
        import torch  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def _flops_of(name: str, shapes: Sequence[Sequence[int]]) -> int:
    return flops_of(name, [list(shape) for shape in shapes])


def _case_reading(
    name: str, case: _Case, ranges: Ranges, sums: Sums, asked: Mapping[int, Asked], names: Names, most: int
) -> CaseReading:
    host_ns = [float(ranges.all[at].end_ns - ranges.all[at].start_ns) for at in case.timed]
    spans = dict(_device_spans(case.timed, ranges, sums))
    device_ns = [float(end_ns - begin_ns) for begin_ns, end_ns in spans.values() if end_ns > begin_ns]
    reading = CaseReading(name, len(case.timed), _quiet(host_ns), _quiet(device_ns))
    if not device_ns:
        return _without(reading, "no kernel was launched in its calls")
    best = max((asked[at] for at in case.with_operators), key=lambda one: one.by_operators, default=None)
    if best is None or not best.by_operators:
        return _without(
            reading, "no range of an operator in its calls: PERFLAB_NVTX=1, or emit_nvtx(record_shapes=True)"
        )
    divided: list[Mapping[Key, Sum]] = []
    lengths_ns: list[float] = []
    strangers = count = 0
    for at in case.kept:
        launches = sums.kept[at].launches()
        if at not in spans or not launches:
            continue
        if len(divided) > 1 and count + len(launches) > most:
            break
        own = asked.get(at)
        source = own if own is not None and own.by_operators else best
        found, unknown = kernels(launches, source, names.of)
        begin_ns, end_ns = spans[at]
        divided.append(device_sums(found, begin_ns, source.known))
        lengths_ns.append(float(end_ns - begin_ns))
        strangers += unknown
        count += len(found)
    if not divided:
        return _without(reading, "the kernels of its calls were not recorded")
    differ = strangers > _STRANGERS * count
    notes = [f"calls differ: {strangers / count:.0%} of kernels have no operator"] if differ else []
    return CaseReading(
        name,
        reading.calls,
        reading.host_ns,
        reading.device_ns,
        summed_up("cuda", divided, lengths_ns, device_ns, 0.0, notes),
    )


def _without(reading: CaseReading, problem: str) -> CaseReading:
    return CaseReading(reading.name, reading.calls, reading.host_ns, reading.device_ns, problem=problem)


def _quiet(times_ns: Sequence[float]) -> float:
    return fmean(times_ns[at] for at in faster_half(times_ns)) if times_ns else 0.0


def _device_spans(calls: Sequence[int], ranges: Ranges, sums: Sums) -> Iterator[tuple[int, tuple[int, int]]]:
    """When the device began and ended each call: it begins when the one before is done, and not before it is called."""
    totals = sums.totals
    before_ns = 0
    for number in calls:
        if not totals.kernels[number]:
            continue
        end_ns = totals.last_ns[number]
        yield number, (max(before_ns, ranges.all[number].start_ns), end_ns)
        before_ns = end_ns
