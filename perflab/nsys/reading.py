"""Reads one process of an export: time by range, kernels by range, and the profile of each case; formats it as text."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap

from perflab.base.grouping import groups_of
from perflab.nsys.cases import MOST_KERNELS, CaseReading, asked_in_calls, case_reading, cases_named, cases_of, has_torch
from perflab.nsys.errors import ExportError
from perflab.nsys.export import API, Export, thread_of
from perflab.nsys.launches import Sums, names_in, summed
from perflab.nsys.ranges import NONE, Ranges, named_ranges
from perflab.profiles.text import lines as profile_lines
from perflab.tables.escaping import one_line
from perflab.tables.lines import columns, cut, cut_begin, percent
from perflab.units import format_change, format_count, format_names, format_ns


@dataclass(frozen=True)
class RangeSum:
    """The sums over all ranges of one path."""

    path: tuple[str, ...]
    instances: int
    host_ns: int
    """Nanoseconds that the ranges were open."""
    device_ns: int
    """Nanoseconds from the start of the first kernel launched in each range to the end of the last, summed up."""
    busy_ns: int
    """Total nanoseconds of the kernels launched in the ranges."""
    kernels: int


@dataclass(frozen=True)
class KernelSum:
    """Launches of one kernel within ranges of one path."""

    path: tuple[str, ...]
    kernel: str
    instances: int
    time_ns: int


@dataclass(frozen=True)
class Reading:
    """The ranges, kernels, cases and notes of one process of an export."""

    process: str
    version: str
    ranges: list[RangeSum] = field(default_factory=list)
    kernels: list[KernelSum] = field(default_factory=list)
    cases: list[CaseReading] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def chosen_process(export: Export, wanted: int | None) -> int:
    """Return the number of the process to read.

    Raises:
        ExportError: the export has several processes or none, and none is named; or it lacks the named process.
    """
    found = export.processes
    known = found if wanted is None else sorted({*found, *export.processes_with_ranges})
    listed = ", ".join(f"{pid} ({export.process_names.get(pid, 'unnamed')})" for pid in known) or "none"
    if wanted is not None and wanted not in known:
        raise ExportError(f"{export.path} has no process {wanted} with ranges or CUDA work", f"it has: {listed}")
    if wanted is None and len(found) != 1:
        raise ExportError(
            f"{export.path} has {len(found)} processes with ranges or CUDA work: {listed}",
            f"name one: perflab nsys --process=PID {export.path}" if found else "profile with --trace=cuda,nvtx",
        )
    return found[0] if wanted is None else wanted


def read(
    export: Export, process: int, only: str | None, progress: Callable[[str], None], *, case_part: str = ""
) -> Reading:
    """Read one process.

    Args:
        export: the export.
        process: the number of the process.
        only: the name of ranges that count as the calls of a case; None: the cases of perflab's own ranges.
        progress: called with a text on the current work.
        case_part: a text that the names of the cases to read contain.

    Raises:
        ExportError: no case or range has the given name.
    """
    progress("reading ranges")
    ranges, notes = named_ranges(export, process)
    known = cases_named(ranges, only) if only is not None else cases_of(ranges)
    cases = {name: case for name, case in known.items() if case_part in name}
    if known and not cases:
        raise ExportError(
            f"--case={case_part}: no case of {export.path} has that in its name",
            f"name a part of one that it has: {format_names(list(known))}",
        )
    if case_part and not cases and only is None:
        raise ExportError(
            "; ".join([f"--case={case_part}: {export.path} has no cases of perflab's", *export.missing()]),
            "leave --case out, or name ranges: --range=NAME",
        )
    if only is not None and not cases:
        raise ExportError(
            "; ".join([f"{export.path} has no range {only!r}", *export.missing()]),
            "name one that it has; without --range it lists them" if ranges.all else "it has no ranges: trace nvtx too",
        )
    keeping = {number: array("q") for case in cases.values() for number in (*case.kept, *case.with_operators)}
    paths = _Paths(ranges)
    calls = sorted(ranges.all[at].start_ns for case in cases.values() for at in case.timed)
    sums = summed(
        export, process, ranges, keeping, paths.number, calls, lambda count: progress(f"reading kernels: {count:,}")
    )
    name_of = names_in(export)
    notes += _notes(export, ranges, sums)
    progress("reading operators")
    asked = asked_in_calls(export, process, ranges, cases, keeping)
    if asked and not has_torch():
        notes.append("could not count FLOPs, because PyTorch does not load here")
    return Reading(
        process=f"{process} ({export.process_names.get(process, 'unnamed')})",
        version=export.version,
        ranges=_range_sums(ranges, sums, paths),
        kernels=[
            KernelSum(paths.named(path), name_of(name), count, time_ns)
            for path, name, count, time_ns in sorted(sums.flat(), key=lambda one: -one[3])
        ],
        cases=[
            case_reading(name, case, ranges, sums, asked, name_of, MOST_KERNELS // len(cases))
            for name, case in cases.items()
        ],
        notes=notes,
    )


class _Paths:
    """Numbers the paths of ranges: ranges with the same names around each other have one path.

    A range within a range of its own name has the path of the outer range, because a push without its pop may nest a
    thousand of them.
    """

    def __init__(self, ranges: Ranges) -> None:
        self._ranges = ranges
        self._numbers: dict[tuple[int, str], int] = {}
        self._of: dict[int, int] = {NONE: NONE}
        self._named: list[tuple[str, ...]] = []
        self.folded: set[int] = set()
        """Ranges within a range of their own name: their time is contained in the outer range's."""

    def number(self, number: int) -> int:
        """Return the number of a range's path, given the number of the range."""
        waiting = []
        while number not in self._of:
            waiting.append(number)
            number = self._ranges.parents[number]
        path = self._of[number]
        for inner in reversed(waiting):
            path = self._of[inner] = self._within(path, inner)
        return path

    def _within(self, above: int, number: int) -> int:
        names, name = self.named(above), self._ranges.all[number].name
        if name in names:
            self.folded.add(number)
            path = NONE
            for outer in names[: names.index(name) + 1]:
                path = self._numbers[path, outer]
            return path
        if (above, name) not in self._numbers:
            self._numbers[above, name] = len(self._named)
            self._named.append((*names, name))
        return self._numbers[above, name]

    def named(self, path: int) -> tuple[str, ...]:
        """Return the names on a path, the outermost first."""
        return self._named[path] if path != NONE else ()


def _range_sums(ranges: Ranges, sums: Sums, paths: _Paths) -> list[RangeSum]:
    totals: dict[int, list[int]] = {}
    for number, one in enumerate(ranges.all):
        total = totals.setdefault(paths.number(number), [0, 0, 0, 0, 0])
        launched = sums.totals
        spans_ns = launched.last_ns[number] - launched.first_ns[number] if launched.kernels[number] else 0
        added = (1, one.end_ns - one.start_ns, spans_ns, launched.busy_ns[number], launched.kernels[number])
        if number in paths.folded:
            added = (1, 0, 0, 0, 0)
        for at, value in enumerate(added):
            total[at] += value
    return [RangeSum(paths.named(path), *total) for path, total in totals.items()]


def _notes(export: Export, ranges: Ranges, sums: Sums) -> list[str]:
    notes = export.missing()
    if sums.without_call and export.has(API):
        notes.append(f"{sums.without_call} of {sums.count} kernels have no call of CUDA that launched them: no range")
    if sums.without_end:
        notes.append(
            f"{format_count(sums.without_end, 'kernel')} left out: the end is before the beginning, or over a week "
            "later"
        )
    if sums.graphs:
        notes.append(
            f"{format_count(sums.graphs, 'launch')} of CUDA graphs count{'s' * (sums.graphs == 1)} as one kernel each: "
            "nsys profile --cuda-graph-trace=node records the kernels in them"
        )
    if ranges.crossing:
        (inner, outer), crossing = ranges.crossing[0], len(ranges.crossing)
        notes.append(
            f"{format_count(crossing, 'range')} cross{'es' * (crossing == 1)} another, such as {inner!r}, which begins "
            f"in {outer!r} and ends after it: what is launched in both counts for the later one"
        )
    for thread, lender in ranges.borrowed.items():
        borrower, owner = (export.thread_names.get(one, "thread") for one in (thread, lender))
        notes.append(
            f"kernels launched from {borrower} {thread_of(thread)}, which has no range of its own, count for the "
            f"ranges that {owner} {thread_of(lender)} has open meanwhile"
        )
    if ranges.outside:
        threads = ", ".join(
            f"{export.thread_names.get(one, 'thread')} {thread_of(one)}" for one in sorted(ranges.outside)
        )
        notes.append(
            f"kernels launched from {threads}, without a range of its own, count for no pushed range: several threads "
            "have pushed some, and nothing says for which one it works"
        )
    return notes


_RANGES, _KERNELS = 40, 15
_WIDEST_NAME = 60
_NUMBERS = frozenset(
    ("instances", "host", "device", "busy", "kernels", "total", "mean", "share", "FLOPs", "calls", "timer", "vs timer")
)
Timers = Mapping[tuple[str, str], float]
"""Nanoseconds of one call by case and phase, measured by perflab's own timer; phase ``""`` is the whole call."""


def lines(reading: Reading, timers: Timers, width: int, *, every: bool = False) -> list[str]:
    """Format the whole reading. ``every``: list all ranges and kernels."""
    version = f"Nsight Systems {reading.version}" if reading.version else "Nsight Systems, version not stated"
    found = [f"{version} · process {reading.process}"]
    found += _ranges(reading.ranges, len(reading.ranges) if every else _RANGES)
    found += _kernels(reading.kernels, len(reading.kernels) if every else _KERNELS)
    if reading.cases:
        found += ["", *_cases(reading.cases, timers)]
    for case in reading.cases:
        found += ["", *_profile(case, width)]
    said = [
        line
        for note in reading.notes
        for line in wrap(one_line(f"note: {note}"), width, subsequent_indent="  ", break_on_hyphens=False)
    ]
    return [*(cut(one_line(line), width) for line in found), *said]


def _ranges(ranges: Sequence[RangeSum], most: int) -> list[str]:
    """Format ranges as a tree, each level in the order in which its paths first began."""
    if not ranges:
        return ["", "no named ranges"]
    below = groups_of(ranges, lambda one: one.path[:-1])
    cells: list[tuple[str, ...]] = [("range", "instances", "host", "device", "busy", "kernels")]
    waiting = list(reversed(below.get((), [])))
    while waiting:
        one = waiting.pop()
        waiting.extend(reversed(below.get(one.path, [])))
        if len(cells) <= most:
            name = "  " * (len(one.path) - 1) + (one.path[-1] or "(no name)")
            times = (format_ns(value) if value else "" for value in (one.host_ns, one.device_ns, one.busy_ns))
            cells.append((name, f"{one.instances:,}", *times, f"{one.kernels:,}"))
    return ["", *_aligned(cells), *_more(len(ranges) - most, "ranges")]


def _kernels(kernels: Sequence[KernelSum], most: int) -> list[str]:
    if not kernels:
        return []
    total_ns = sum(one.time_ns for one in kernels) or 1
    cells: list[tuple[str, ...]] = [("kernel", "total", "share", "instances", "mean", "range")]
    for one in kernels[:most]:
        cells.append(
            (
                one.kernel,
                format_ns(one.time_ns),
                percent(one.time_ns / total_ns),
                f"{one.instances:,}",
                format_ns(one.time_ns / one.instances),
                cut_begin(" > ".join(name or "(no name)" for name in one.path) or "outside of ranges", _WIDEST_NAME),
            )
        )
    return ["", *_aligned(cells), *_more(len(kernels) - most, "kernels by range")]


def _more(left: int, what: str) -> list[str]:
    return [f"  and {left:,} more {what} (--verbose)"] if left > 0 else []


def _cases(cases: Sequence[CaseReading], timers: Timers) -> list[str]:
    cells: list[tuple[str, ...]] = [("one call", "calls", "host", "device", "timer", "vs timer")]
    for case in cases:
        for phase, (host_ns, device_ns) in {"": (case.host_ns, case.device_ns), **case.phases}.items():
            timer_ns = timers.get((case.name, phase))
            calls = "" if phase else f"{case.calls:,}"
            times = (format_ns(one) if one else "" for one in (host_ns, device_ns, timer_ns))
            change = format_change(device_ns / timer_ns) if timer_ns and device_ns else ""
            cells.append((f"  {phase}" if phase else case.name, calls, *times, change))
    missing = [case.name for case in cases if (case.name, "") not in timers]
    unknown = [f"  not timed by perflab: {format_names(missing)}"] if timers and missing else []
    return [*_aligned(cells), *unknown]


def _profile(case: CaseReading, width: int) -> list[str]:
    if case.profile is None:
        said = one_line(f"could not look at the operators of {case.name}, because {case.problem}")
        return wrap(said, width, subsequent_indent="  ")
    return profile_lines(case.name, case.profile, width)


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """Align names to the left and numbers to the right; the first line is the head."""
    shown = [(*(cut(one_line(text), _WIDEST_NAME) for text in row[:-1]), one_line(row[-1])) for row in cells]
    return columns(shown, [at for at, name in enumerate(cells[0]) if name in _NUMBERS])
