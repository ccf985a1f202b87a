"""Formats the reading of an export as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import wrap

from perflab.base.grouping import groups_of
from perflab.nsys.cases import CaseReading
from perflab.nsys.reading import KernelSum, RangeSum, Reading
from perflab.profiles.text import lines as profile_lines
from perflab.tables.escaping import one_line
from perflab.tables.lines import columns, cut, cut_begin, percent
from perflab.units import format_change, format_names, format_ns

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
