"""A profile as text: categories, phases, modules, and the rows that take most time. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from textwrap import wrap

from perflab.base.data import changed
from perflab.measure.counts.events import kind_of
from perflab.results.profile import GAPS, OTHER, OTHER_THREAD, Profile, ProfileRow, merged_with
from perflab.tables.lines import columns, cut, percent, shorten
from perflab.units import format_count, format_flops, format_ns

CANT_TELL = 0.05
"""Share of the time without an explanation above which a profile says that it can't tell where time goes."""
_WORTH_A_WORD = 0.01
"""Share of a call above which the text names how much longer the profiler makes the call, and a reason for
unexplained time."""
_ROWS = 10
_NAME = 32
"""The greatest number of characters of an operator's or module's name in the table; results files have the whole
name."""
_MODULES = 5
_OTHER = {
    "cpu": "`other`, operators that the call which found places did not have",
    "cuda": "`other`, kernels that no operator launched",
}
_NO_PLACE = "outside of modules"


def heading(name: str, profile: Profile) -> str:
    """Return what was profiled and how.

    An example is ``profile of step[tiny]: one call, 21.3 ms on cpu, mean of 12 calls; …``.
    """
    cost = f"; the profiler adds {format_ns(profile.cost_ns)}, taken off" if profile.cost_ns else ""
    on = profile.device
    longer_ns = profile.profiled_ns - profile.timer_ns
    if profile.cuda_calls and longer_ns > _WORTH_A_WORD * profile.timer_ns:
        cost = f"; the profiler makes a call {format_ns(longer_ns)} longer, mostly as host wait"
    if profile.devices > 1:
        on = f"each of {profile.devices} devices, whose times are added up"
    calls = format_count(profile.calls, "call")
    return f"profile of {name}: one call, {format_ns(profile.timer_ns)} on {on}, mean of {calls}{cost}"


def lines(name: str, profile: Profile, width: int, *, brief: bool = False) -> list[str]:
    """Return the lines of the text of one case's profile.

    ``brief`` leaves out phases, modules, lines of Python and the table of operators.
    """
    found = [heading(name, profile), *_categories(profile)]
    for said in filter(None, (by_device(profile), on_host(profile))):
        found += wrap(said, width, initial_indent="  ", subsequent_indent="  ")
    for note in notes_of(profile):
        found += wrap(note, width, initial_indent="  ", subsequent_indent="  ")
    if brief:
        return found
    phases = _shares(profile, lambda row: row.phase, len(profile.rows))
    if len(phases) > 1:
        found.append(f"  by phase: {' · '.join(phases)}")
    modules = _shares(profile, lambda row: row.module or _NO_PLACE, _MODULES)
    if len(modules) > 1:
        found.append(f"  by module: {' · '.join(modules)}")
    plain = _shares(
        profile, lambda row: f"{row.operator} ({row.line})" if row.is_plain and row.time_ns else "", _MODULES
    )
    if plain:
        found.append(f"  python by line: {' · '.join(plain)}")
    table = _aligned(_cells(top_rows(profile)[:_ROWS], profile))
    return [*found, *(cut(line, width) for line in table)]  # the last columns matter least


def by_device(profile: Profile) -> str:
    """Return how busy each of several devices is: ``busy: cuda:0 81.0% · cuda:1 44.2%``; ``""`` for one device."""
    if profile.devices == 1:
        return ""
    busy: dict[int, float] = defaultdict(float)
    for row in profile.rows:
        busy[row.device] += row.time_ns if row.category not in GAPS else 0.0
    shares = (f"{profile.device}:{at} {percent(time_ns / profile.timer_ns)}" for at, time_ns in sorted(busy.items()))
    return f"busy: {' · '.join(shares)}"


def on_host(profile: Profile) -> str:
    """Return the host's calls of CUDA as text; ``""`` if there are none.

    An example is ``beside it, on the host, CUDA's calls: 1.20 ms in 300 launches · 90.0 µs in 2 waits``. These calls
    are no part of the sum: the device works meanwhile. Gaps in which the device does not work are ``host wait``.
    """
    if not profile.cuda_calls:
        return ""
    sums: dict[str, list[float]] = {}
    for one in profile.cuda_calls:
        kind = kind_of(one.name)
        total = sums.setdefault(kind, [0.0, 0.0])
        total[0] += one.time_ns
        total[1] += one.instances
    told = (f"{format_ns(time_ns)} in {format_count(round(count), kind)}" for kind, (time_ns, count) in sums.items())
    return f"beside it, on the host, CUDA's calls: {' · '.join(told)}"


def notes_of(profile: Profile) -> list[str]:
    """Return the profile's notes as sentences, after those about time that has no explanation."""
    told = []
    if profile.unknown_share > CANT_TELL:
        other = profile.share_of(OTHER)
        why = [f"{percent(other)} is {_OTHER[profile.device]}"] if other > _WORTH_A_WORD else []
        if profile.unknown_share - other > _WORTH_A_WORD:
            why.append("the machine changed meanwhile, or work that is not recorded")
        told.append(
            f"can't tell where all of the time goes: {percent(profile.unknown_share)} of it has no explanation "
            f"({'; '.join(why)})"
        )
    elsewhere = profile.share_of(OTHER_THREAD)
    if elsewhere > CANT_TELL:
        told.append(
            f"can't tell what {percent(elsewhere)} of the time is for: threads that PyTorch's profiler does not "
            "follow launched that work"
        )
    return [*told, *profile.notes]


def by_category(profile: Profile) -> list[tuple[str, float, float, int]]:
    """Return name, time in nanoseconds, instances and FLOPs of each category that has time, the most time first."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in profile.rows:
        for at, value in enumerate((row.time_ns, 0.0 if row.is_part else row.instances, row.flops)):
            sums[row.category][at] += value
    ranked = sorted((one for one in sums.items() if one[1][0]), key=lambda one: -one[1][0])
    return [(name, time_ns, instances, int(flops)) for name, (time_ns, instances, flops) in ranked]


def _categories(profile: Profile) -> list[str]:
    head = ("category", "time", "share", "instances", "FLOPs")
    cells = [
        (
            name,
            format_ns(time_ns),
            percent(time_ns / profile.whole_ns),
            _often(instances) if name not in GAPS else "",
            format_flops(flops) if flops else "",
        )
        for name, time_ns, instances, flops in by_category(profile)
    ]
    missing = profile.unexplained_ns
    sign = "-" if missing < 0 else ""
    cells.append(("unexplained", f"{sign}{format_ns(abs(missing))}", percent(missing / profile.whole_ns), "", ""))
    return _aligned([head, *cells])


def top_rows(profile: Profile) -> list[ProfileRow]:
    """Return the operators' rows, the most time first, whatever line called the operator.

    A row of several lines names the line that takes most time, and how many more lines there are.
    """
    merged: dict[tuple[str | int, ...], ProfileRow] = {}
    lines: dict[tuple[str | int, ...], set[str]] = defaultdict(set)
    for row in profile.rows:
        if row.category in GAPS or row.category == "dispatch":
            continue
        key = (row.operator, row.kernel, row.phase, row.module, row.shapes, row.device)
        merged[key] = merged_with(merged[key], row) if key in merged else row
        lines[key].add(row.line)
    found = [
        changed(row, line=f"{row.line} and {format_count(len(lines[key]) - 1, 'more line')}")
        if len(lines[key]) > 1
        else row
        for key, row in merged.items()
    ]
    return sorted(found, key=lambda row: -row.time_ns)


def _cells(rows: Sequence[ProfileRow], profile: Profile) -> list[tuple[str, ...]]:
    on_device = profile.device == "cuda"
    head = ("operator", "total", "share", "instances", "mean", "", "module", "phase", "shapes", "")
    if on_device:
        head = ("kernel", "total", "share", "instances", "mean", "on", "module", "phase", "operator", "shapes")
    return [
        head,
        *(
            (
                shorten(row.kernel if on_device else row.operator, _NAME),
                format_ns(row.time_ns),
                percent(row.time_ns / profile.whole_ns),
                _often(row.instances),
                format_ns(row.time_ns / row.instances) if row.instances else "",
                f"{profile.device}:{row.device}" if profile.devices > 1 else "",
                shorten(row.module, _NAME),
                row.phase,
                *((row.operator, row.shapes) if on_device else (row.shapes, "")),
            )
            for row in rows
        ),
    ]


def _aligned(cells: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the lines of a table, names to the left and numbers to the right, in columns.

    The first line is the head. Empty columns are left out.
    """
    filled = [at for at in range(len(cells[0])) if any(row[at] for row in cells[1:])]
    numbers = [at for at, place in enumerate(filled) if 0 < place < 5]
    return columns([tuple(row[at] for at in filled) for row in cells], numbers)


def _shares(profile: Profile, name_of: Callable[[ProfileRow], str], most: int) -> list[str]:
    sums: dict[str, float] = defaultdict(float)
    for row in profile.rows:
        sums[name_of(row)] += row.time_ns
    ranked = sorted(sums.items(), key=lambda one: -one[1])
    return [f"{name} {percent(time_ns / profile.whole_ns)}" for name, time_ns in ranked[:most] if name]


def _often(instances: float) -> str:
    """Format how often work is done in one call: ``12``, or ``0.25`` for work in every fourth call."""
    return f"{instances:.0f}" if instances >= 1 or not instances else f"{instances:.2g}"
