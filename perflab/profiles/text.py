"""A profile as text: categories, phases, modules, and the rows that take most time; and an explanation in words. Pure.

Rows of an explanation are such as ``+2.4 ms 12 more aten::copy_ in blocks.*.attention (model.py:88)``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import NamedTuple

from perflab.base.data import changed
from perflab.base.user_lines import CALLERS, with_callers
from perflab.measure.counts.events import kind_of
from perflab.results.peak import KEPT_BEFORE, LET_GO, OUTLIVED, PeakChange, PeakExplanation
from perflab.results.profile import (
    GAPS,
    ON_HOST,
    OTHER,
    OTHER_THREAD,
    PYTHON,
    SAME,
    UNNAMED,
    VARY,
    Explanation,
    Part,
    Profile,
    ProfileRow,
    merged_with,
)
from perflab.tables.lines import columns, cut, percent, shorten
from perflab.units import format_bytes, format_count, format_flops, format_ns, format_signed

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


_NAMED_MODULES = 3
"""How many modules a row names; the other modules are counted."""
_LINES = 2
"""How many further lines of an edit a row names."""
_ON = {SAME: " at the same shapes", VARY: " on inputs that vary"}
_RESOLUTION = 0.001
"""Share of the change up to which an unexplained rest is left out."""
MOST = 5
"""The greatest number of parts in the text; the results file has all parts."""
IN_ALL = "in all"


class Row(NamedTuple):
    """One row of an explanation."""

    amount: str
    """The change with sign and unit, ``+3.1 ms``; empty if only numbers of calls are known."""
    text: str

    def __str__(self) -> str:
        return f"{self.amount} {self.text}".lstrip()


def explanation_texts(found: Explanation, *, timed: bool, brief: bool = False) -> list[str]:
    """Return the rows of an explanation, each as one line of text."""
    return list(map(str, explanation_rows(found, timed=timed, brief=brief)))


def explanation_rows(found: Explanation, *, timed: bool, most: int = MOST, brief: bool = False) -> list[Row]:
    """Return the rows of an explanation: the most likely cause, the other changes, and their sum.

    Args:
        found: the explanation.
        timed: whether time became worse; if not, the rows have numbers of calls and no times.
        most: the greatest number of parts that are shown, besides the unexplained rest.
        brief: leave out the operators and lines that changed in number beside the operator that leads a part.
    """
    on_device = [part for part in found.parts if part.category != ON_HOST]
    host = [part for part in found.parts if part.category == ON_HOST]
    on_host = [Row("", _what(part, brief=brief)) for part in host[:most]]
    if 0 < most < len(host):
        on_host.append(Row("", f"{format_count(len(host) - most, 'more place')} {ON_HOST}"))
    shown = _shown(on_device, most)
    others = [part for part in on_device if not any(part is one for one in shown)]
    problem = [Row("", found.problem)] if found.problem is not None else []
    if not timed or not any(part.change_ns for part in on_device):
        counted = [Row("", _what(part, brief=brief)) for part in shown if part.more or part.shapes]
        counted += [Row("", format_count(len(others), "more place"))] if others else []
        counted += on_host
        if not timed:
            return counted or problem or [Row("", "nothing that the profiler records is called more often")]
        return [*counted, *problem] or [Row("", "no operator stands out: the change is spread over all of them")]
    whole = sum(part.change_ns for part in on_device) + found.rest_ns
    rows = [Row(format_signed(part.change_ns, format_ns), _what(part, brief=brief)) for part in shown]
    if others:
        others_ns = sum(part.change_ns for part in others)
        other = "other part" if shown else "part"
        rows.append(Row(format_signed(others_ns, format_ns), f"in {format_count(len(others), other)}"))
    if abs(found.rest_ns) > _RESOLUTION * abs(whole):
        rows.append(Row(format_signed(found.rest_ns, format_ns), "unexplained"))
    return [*rows, *([Row(format_signed(whole, format_ns), IN_ALL)] if len(rows) > 1 else []), *on_host, *problem]


def _shown(parts: Sequence[Part], most: int) -> list[Part]:
    """Return the first part, the most likely cause, and the largest of the other parts, in their given order."""
    largest = sorted(range(1, len(parts)), key=lambda at: -abs(parts[at].change_ns))[: max(0, most - 1)]
    return [parts[at] for at in [0, *sorted(largest)]] if parts and most else []


def peak_texts(found: PeakExplanation, *, most: int = MOST, callers: int = CALLERS) -> list[str]:
    """Return the rows of a peak's explanation, each as one line of text.

    An example is ``+64.0 MiB 3 more blocks of aten::mul in blocks.* (net.py:9), activations``.
    """
    return list(map(str, peak_rows(found, most=most, callers=callers)))


def peak_rows(found: PeakExplanation, *, most: int = MOST, callers: int = CALLERS) -> list[Row]:
    """Return rows for the first ``most`` changes of a peak, for the rest of the changes, and for the sum.

    Each row has up to ``callers`` callers of its line: ``net.py:9 < train.py:5``.
    """
    if not found.parts:
        return [Row("", found.problem or "nothing that the profiler records differs at the peak")]
    rows = [
        Row("" if part.size_bytes else format_signed(part.change_bytes, format_bytes), _blocks(part, callers))
        for part in found.parts[:most]
    ]
    rest = found.parts[most:]
    if rest:
        rest_bytes = sum(part.change_bytes for part in rest)
        rows.append(Row(format_signed(rest_bytes, format_bytes), f"in {format_count(len(rest), 'smaller row')}"))
    whole = format_signed(found.now_bytes - found.before_bytes, format_bytes)
    return [
        *rows,
        *([Row(whole, IN_ALL)] if len(rows) > 1 else []),
        *([Row("", found.problem)] if found.problem else []),
    ]


def _blocks(part: PeakChange, callers: int) -> str:
    of = f" of {part.operator}" if part.operator else ""
    where = f" in {part.module}" if part.module else ""
    line = f" ({with_callers(part.line, part.stack, callers)})" if part.line else ""
    if part.category == LET_GO:
        # Blocks that are let go have negative sizes: one block less makes the peak higher.
        less = "less" if part.change_bytes > 0 else "more"
        return f"blocks{of}{where}{line}, held before the call: {less} let go before the peak"
    if part.category == KEPT_BEFORE:
        return f"kept by {format_count(abs(part.more), 'call')} {'more' if part.more > 0 else 'fewer'} before"
    line += f" and in {format_count(part.places - 1, 'more place')}" if part.places > 1 else ""
    many = f"{abs(part.more)} {'more' if part.more > 0 else 'fewer'} block{'s' * (abs(part.more) != 1)}"
    grown = "larger blocks" if part.change_bytes > 0 else "smaller blocks"
    by = f" {part.keeper.place}".rstrip() if part.keeper is not None else ""
    if part.size_bytes:
        return f"{format_bytes(part.size_bytes)}{of}{where}{line} are {OUTLIVED}{by} now, and were not before"
    enabled = "; gradients are enabled there now" if part.has_gradients else ""
    return f"{many if part.more else grown}{of}{where}{line}, {part.category}{by}{enabled}"


def _what(part: Part, *, brief: bool) -> str:
    # The line of an operator in the backward may be a line of the forward.
    phases = "" if part.moved_from and part.module else " and ".join(part.phases)
    of = f"the {phases} of {part.module}" if len(part.phases) == 1 else f"{part.module} ({phases})"
    where = f" in {of if part.module and phases else part.module or phases}" if part.module or phases else ""
    where = f"{where} {ON_HOST}" if part.category == ON_HOST else where
    if part.often:
        return _of_python(part, brief=brief)
    line = f" ({part.line})" if part.line else ""
    called = f", called at {part.called}" if part.called else ""
    others = f", with {', '.join(part.others)}" if part.others and not brief else ""
    line += _on_other_lines(part) if not brief else ""
    if part.layers:
        before, now = part.layers
        layers = _listed([part.module, *part.other_modules])
        called = f", called at {part.called.partition(' < ')[0]}" if part.called else ""
        return f"{_many(now - before)} {layers} ({now} instead of {before}){called}"
    if part.again:
        times = "once" if part.again == 1 else f"{part.again} times"
        phase = f" in {part.phases[0]}" if part.phases else ""
        but = f" but for {_listed(part.left_out)}" if part.left_out else ""
        led = "" if brief or not part.more else f", with {abs(part.more):g} more {part.operator}"
        return (
            f"all of {_listed([part.module, *part.other_modules])} computed {times} more{phase}{but}{called}{led}{line}"
        )
    if part.moved_from:
        way = f" moved from {', '.join(part.moved_from)} to {', '.join(part.phases)}"
        return f"{abs(part.more):g} {part.operator}{way}{others}{where if part.module else ''}{line}"
    many = _many(part.more)
    if part.more and part.inputs == VARY:
        return f"about {many} {part.operator} a call (it varies){where}{line}"
    if part.more:
        by = f" within {part.within}" if part.within else ""
        instead = f" instead of {', '.join(part.instead_of)}" if part.instead_of else ""
        return f"{many} {part.operator}{by}{others}{instead}{where}{called}{line}"
    if part.shapes:
        return f"{part.operator} on other inputs, {part.shapes}{where}{line}"
    if part.operator in UNNAMED:
        of = "work of " if part.operator == OTHER_THREAD else ""
        what = f"{'less' if part.change_ns < 0 else 'more'} {of}{part.operator}"
    else:
        what = f"{part.operator} {'faster' if part.change_ns < 0 else 'slower'}{_ON.get(part.inputs, '')}"
    return f"{what}{where}{line}"


def _of_python(part: Part, *, brief: bool) -> str:
    """Describe a part of plain Python: ``200 more calls of json.dumps in encode (data.py:16; 200 instead of 0)``."""
    before, now = part.often
    line = f"{part.line}; {now:g} instead of {before:g}" if part.more else part.line
    where = f" in {part.module}{f' ({line})' if line else ''}"
    shown = [] if brief else part.other_lines[:_LINES]
    edited, run = ([one.line for one in shown if bool(one.more) == is_run] for is_run in (False, True))
    also = f", most of it at {', '.join(run)}" if run else ""
    also += f", which was edited at {', '.join(edited)}" if edited else ""
    if not part.more:
        return f"{'less' if part.change_ns < 0 else 'more'} {PYTHON}{where}{also}"
    many = "s" * (abs(part.more) != 1)
    of = f"run{many}" if part.operator == PYTHON else f"call{many} of {part.operator}"
    return f"{_many(part.more)} {of}{where}{also}"


def _on_other_lines(part: Part) -> str:
    if not part.other_lines:
        return ""
    shown = [
        f"{_many(one.more)} {one.operator} ({one.line})" if one.more else f"{one.operator} on other inputs ({one.line})"
        for one in part.other_lines[:_LINES]
    ]
    more = ["..."] if len(part.other_lines) > _LINES else []
    return f" and on {format_count(len(part.other_lines), 'more line')}: {', '.join([*shown, *more])}"


def _many(more: float) -> str:
    return f"{abs(more):g} {'more' if more > 0 else 'fewer'}"


def _listed(modules: Sequence[str]) -> str:
    """Join the names of the first modules, and the number of the other modules."""
    left = len(modules) - _NAMED_MODULES
    *first, last = modules if left <= 0 else [*modules[:_NAMED_MODULES], format_count(left, "more module")]
    return f"{', '.join(first)} and {last}" if first else last
