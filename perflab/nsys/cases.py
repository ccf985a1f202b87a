"""Finds the calls of each case among the ranges of an export, and makes the profile of one call.

The operator, module, line and phase that launched each kernel of a call follow from the ranges then open. PyTorch's
ranges carry each operator's name, its shapes and autograd's sequence number. So a backward node belongs to the forward
that made it, as in a profile of ``torch.profiler``.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import fmean

from perflab.attribution.places import MARK, Where
from perflab.base.grouping import groups_of
from perflab.measure.calls.nvtx import CALL, OPERATORS, PHASE, SAMPLES
from perflab.nsys.export import Export
from perflab.nsys.launches import COPY, GRAPH, Launch, Sums, launches_in
from perflab.nsys.ranges import Opened, Ranges, case_and_pass, named, operator_ranges, place_or_node, shapes_of
from perflab.profiles.categories import BACKWARD_SCOPE, categories, flops_of, flops_where_done
from perflab.profiles.divided import STRANGER, Kernel, Known, Sum, counterparts, device_sums, faster_half
from perflab.profiles.events import (
    RANGE_SCOPE,
    Call,
    Event,
    Innermost,
    Phase,
    name_and_scope,
    nested,
    placed,
    shown_shapes,
    within,
)
from perflab.profiles.reading import STRANGERS, summed_up
from perflab.results.profile import Profile, ProfileRow

Flops = Callable[[str, Sequence[Sequence[int]]], int]


@dataclass(frozen=True)
class Asked:
    """The origins of a call's launches, in the order of the launches.

    ``names`` has the number of each kernel's name. ``operators`` has the number of the operator that launched each
    kernel, or a negative number if no operator did.
    """

    names: tuple[int, ...]
    operators: tuple[int, ...]
    known: Mapping[int, Known]
    """The facts about each origin, by its number in ``operators``."""

    @property
    def by_operators(self) -> int:
        """The number of launches that an operator made."""
        return sum(operator > 0 for operator in self.operators)


def asked_by(
    span: Opened, found: Iterable[Opened], phases: Sequence[Phase], launches: Sequence[Launch], flops: Flops
) -> Asked:
    """Find the origin of each launch of a call: the operator that was open, or else module, line and phase.

    ``found`` are ranges within the call, in any order; ``flops`` returns the FLOPs of an operator with given shapes.
    """
    by_thread = groups_of(found, lambda one: one.thread)
    places: list[Where] = []
    number = 0
    roots: list[Call] = []
    for thread, ones in sorted(by_thread.items(), key=lambda item: (item[0] != span.thread, item[0])):
        events = _events(sorted(ones, key=lambda one: (one.start_ns, -one.end_ns)), span.thread, places, number, flops)
        number += len(events)
        roots += nested(events)
        by_thread[thread] = []
    placed_calls = placed(roots, phases, lambda name: places[int(name.removeprefix(MARK))])
    innermost = Innermost(call for root in roots for call in root.walk())
    ordered = sorted(launches, key=lambda launch: (launch.called_ns, launch.start_ns))
    operators: list[int] = []
    known: dict[int, Known] = {}
    for launch in ordered:
        running = list(innermost.at(launch.thread, launch.called_ns))
        operator = next((one for one in running if not one.is_range), None)
        operators.append(operator.event.correlation if operator is not None else -1 - len(operators))
        if operator is None:  # a Triton kernel that Python calls, or a copy
            marks = [places[int(one.name.removeprefix(MARK))] for one in running if one.name.startswith(MARK)]
            module = next((one.module for one in marks if one.module), "")
            line = next((one.line for one in marks if one.line), "")
            phase = next((one.name for one in reversed(phases) if one.start_ns <= launch.called_ns < one.end_ns), "")
            category = "copies" if GRAPH < launch.name <= COPY else "other"
            known[operators[-1]] = Known("", category, phase, Where(module, line))
    launching = set(operators)
    done = flops_where_done([one.call for one in placed_calls])
    for asker, category in zip(placed_calls, categories(placed_calls), strict=True):
        call = asker.call
        if call.event.correlation in launching:
            shapes = shown_shapes(shapes_of(call.event.shapes))
            known[call.event.correlation] = Known(
                call.name, category, asker.phase, asker.where, shapes, done.get(id(call), 0), within(call)
            )
    return Asked(tuple(launch.name for launch in ordered), tuple(operators), known)


def kernels(launches: Sequence[Launch], asked: Asked, name_of: Callable[[int], str]) -> tuple[list[Kernel], int]:
    """Return the launches of another call of the same work with their operators, and the number of strangers.

    Calls of unchanged work launch the same kernels in the same order. A launch without a counterpart is a stranger: it
    gets the operator of the first kernel of its name, or 0 if there is none.
    """
    ordered = sorted(launches, key=lambda launch: (launch.called_ns, launch.start_ns))
    places, strangers = counterparts(tuple(launch.name for launch in ordered), asked.names)
    return [
        Kernel(
            name_of(one.name),
            one.start_ns,
            one.end_ns,
            asked.operators[at] if at != STRANGER else 0,
            one.called_ns or None,
            one.launched_ns or None,
            one.device,
        )
        for at, one in zip(places, ordered, strict=True)
    ], strangers


def _events(found: Sequence[Opened], caller: int, places: list[Where], before: int, flops: Flops) -> list[Event]:
    """Return the ranges of one thread as a profiler's events, in order of time."""
    parts = [named(one.name) for one in found]
    events = []
    for at, (one, said) in enumerate(zip(found, parts, strict=True)):
        name, sequence, scope = said.name, said.sequence, 0
        place, node = place_or_node(name)
        if place is not None:
            places.append(place)
            name, scope = f"{MARK}{len(places) - 1}", RANGE_SCOPE
        elif node is not None:  # the range that begins next has autograd's sequence number
            inner = parts[at + 1] if at + 1 < len(found) and found[at + 1].start_ns < one.end_ns else None
            sequence = inner.sequence if inner is not None and inner.name == node else -1
        elif at > 0 and place_or_node(parts[at - 1].name)[1] == name and found[at - 1].end_ns > one.start_ns:
            scope = BACKWARD_SCOPE
        elif not said.is_operator:
            name, scope = name_and_scope(name, RANGE_SCOPE)
        event = Event(
            name=name,
            start_ns=one.start_ns,
            end_ns=one.end_ns,
            thread=one.thread,
            scope=scope,
            correlation=before + at + 1,
            sequence=sequence,
            forward_thread=caller if node is not None else 0,
            shapes=said.sizes,
            flops=flops(name, shapes_of(said.sizes)) if name.startswith("aten::") else 0,
        )
        events.append(event)
    return events


TIMED_CALLS = 8
"""The most calls of a case whose kernels are read one by one."""
MOST_EVENTS = 300_000
"""The most ranges of operators that are read; each takes 30 µs and 1 KB."""
MOST_KERNELS = 300_000
"""The most kernels of all cases together that are read one by one; beyond that, each case still has two calls."""
_NO_OPERATORS = (
    "its calls have no ranges of operators: record them with PERFLAB_NVTX=1, or under emit_nvtx(record_shapes=True)"
)


_PLAIN = ("forward", "backward", "optimizer")
"""Phases whose ranges had the phase's name without a prefix, in older exports."""


def phase_in(name: str) -> str:
    """Return the phase whose range has this name; ``""`` if the name is that of no phase."""
    return name if name in _PLAIN else name.removeprefix(PHASE) if name.startswith(PHASE) else ""


@dataclass(frozen=True)
class CaseReading:
    """The times and the profile of one case, read from an export."""

    name: str
    calls: int
    host_ns: float
    """Duration of one call's range on the host. All times are means over the same calls: the half that is faster on the
    device, or on the host if no call ran on a device."""
    device_ns: float
    """Duration of one call on the device: from the end of earlier work, or the call if later, to the end of the call's
    work."""
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Durations of each phase of a call: on the host, and from the start of its first kernel to the end of its last."""
    profile: Profile | None = None
    problem: str = ""
    """The reason why the case has no profile; empty if the case has one."""


@dataclass
class Case:
    """The calls of a case, as numbers of ranges."""

    timed: list[int] = field(default_factory=list)
    with_operators: list[int] = field(default_factory=list)

    @property
    def kept(self) -> list[int]:
        """The calls whose kernels are read one by one: a selection, spread over all calls.

        The first call is left out if others exist, because no call precedes it.
        """
        later = self.timed[1:] or self.timed
        return later[:: max(1, len(later) // TIMED_CALLS)][:TIMED_CALLS]


def cases_of(ranges: Ranges) -> dict[str, Case]:
    """Return the cases that perflab's own ranges name."""
    passes = {number: found for number, one in enumerate(ranges.all) if (found := case_and_pass(one.name)) is not None}
    cases: dict[str, Case] = {}
    for number, (name, which) in passes.items():
        calls = [child for child in ranges.children.get(number, []) if ranges.all[child].name == CALL]
        if which == SAMPLES:
            cases.setdefault(name, Case()).timed += calls
        elif which == OPERATORS:
            cases.setdefault(name, Case()).with_operators += calls[-1:]
    return {name: case for name, case in cases.items() if case.timed}


def cases_named(ranges: Ranges, name: str) -> dict[str, Case]:
    """Return one case, whose calls are the outermost ranges of one name; empty if there are no such ranges."""
    calls = ranges.outermost(name)
    case = Case(calls)
    case.with_operators = sorted({*case.kept[:1], *calls[-1:]})  # PyTorch's ranges may be in the last calls only
    return {name: case} if calls else {}


def asked_in_calls(
    export: Export, process: int, ranges: Ranges, cases: Mapping[str, Case], keeping: Mapping[int, array[int]]
) -> dict[int, Asked]:
    """Return the origin of each launch in the calls with ranges of operators, by the number of the call's range."""
    calls = [number for case in cases.values() for number in case.with_operators]
    calls.sort(key=lambda at: ranges.all[at].start_ns)
    spans = [(ranges.all[at].start_ns, ranges.all[at].end_ns) for at in calls]
    starts = [start_ns for start_ns, _ in spans]
    found: dict[int, list[Opened]] = {at: [] for at in calls}
    count, left_out = 0, len(calls)  # rows come in any order: calls are left out as a whole, the last first
    for text, start_ns, end_ns, thread in operator_ranges(export, process, spans):
        at = bisect_right(starts, start_ns) - 1
        if not 0 <= at < left_out or spans[at][1] < start_ns:
            continue
        found[calls[at]].append(Opened(text, start_ns, end_ns, thread))
        count += 1
        while count > MOST_EVENTS:
            left_out -= 1
            count -= len(found.pop(calls[left_out]))
    flops = cache(flops_of if has_torch() else lambda _name, _shapes: 0)
    asked = {}
    for number in list(found):
        one = ranges.all[number]
        phases = [ranges.all[at] for at in ranges.children.get(number, []) if phase_in(ranges.all[at].name)]
        asked[number] = asked_by(
            one,
            found.pop(number),
            [Phase(phase_in(phase.name), phase.start_ns, phase.end_ns) for phase in phases],
            launches_in(keeping[number]),
            flops,
        )
    return asked


def has_torch() -> bool:
    """Whether PyTorch loads, so that FLOPs can be counted: an export may be read where PyTorch finds no CUDA."""
    try:
        import torch  # noqa: F401
    except (ImportError, OSError):
        return False
    return True


def case_reading(
    name: str,
    case: Case,
    ranges: Ranges,
    sums: Sums,
    asked: Mapping[int, Asked],
    name_of: Callable[[int], str],
    most: int,
) -> CaseReading:
    """Return the time of one call and its profile. ``most``: the most kernels to read one by one, beyond two calls."""
    host_ns = {at: float(ranges.all[at].end_ns - ranges.all[at].start_ns) for at in case.timed}
    spans = dict(_device_spans(case.timed, ranges, sums))
    device_ns = {at: float(end_ns - begin_ns) for at, (begin_ns, end_ns) in spans.items() if end_ns > begin_ns}
    numbers = list(device_ns or host_ns)
    chosen = [numbers[at] for at in faster_half(list((device_ns or host_ns).values()))]
    reading = CaseReading(
        name,
        len(case.timed),
        fmean(host_ns[at] for at in chosen),
        fmean(device_ns[at] for at in chosen) if device_ns else 0.0,
        _phases(chosen, ranges, sums),
    )
    if not device_ns:
        problem = "no kernel was launched in its calls" if sums.count else "the export has no kernel"
        if sums.without_call:
            problem = f"for {sums.without_call:,} of {sums.count:,} kernels the export does not say what launched them"
        return replace(reading, problem=problem)
    if case.with_operators and not any(at in asked for at in case.with_operators):
        first = f"the first {MOST_EVENTS:,} ranges of operators"
        return replace(reading, problem=f"{first} are of other cases: read it with --case")
    best = max((asked[at] for at in case.with_operators if at in asked), key=lambda one: one.by_operators, default=None)
    if best is None or not best.by_operators:
        return replace(reading, problem=_NO_OPERATORS)
    divided: list[Mapping[ProfileRow, Sum]] = []
    lengths_ns: list[float] = []
    strangers = count = 0
    for at in case.kept:
        launches = launches_in(sums.kept[at])
        if at not in spans or not launches:
            continue
        if len(divided) > 1 and count + len(launches) > most:
            break
        own = asked.get(at)
        source = own if own is not None and own.by_operators else best
        found, unknown = kernels(launches, source, name_of)
        begin_ns, end_ns = spans[at]
        divided.append(device_sums(found, dict.fromkeys({one.device for one in found}, spans[at]), source.known))
        lengths_ns.append(float(end_ns - begin_ns))
        strangers += unknown
        count += len(found)
    if not divided:
        return replace(reading, problem="the kernels of its calls were not recorded")
    differ = strangers > STRANGERS * count
    notes = [f"calls differ: {strangers / count:.0%} of kernels have no operator"] if differ else []
    profile = summed_up("cuda", divided, lengths_ns, faster_half(lengths_ns), reading.device_ns, notes=notes)
    return replace(reading, profile=profile)


def _phases(calls: Sequence[int], ranges: Ranges, sums: Sums) -> dict[str, tuple[float, float]]:
    """Return the mean nanoseconds per call of each phase, on the host and on the device.

    Several ranges of one phase in a call, as with micro-batches, are added up.
    """
    found: dict[str, list[float]] = {}
    totals = sums.totals
    for child in (child for call in calls for child in ranges.children.get(call, [])):
        one = ranges.all[child]
        if not (name := phase_in(one.name)):
            continue
        both = found.setdefault(name, [0.0, 0.0])
        both[0] += one.end_ns - one.start_ns
        both[1] += totals.last_ns[child] - totals.first_ns[child] if totals.kernels[child] else 0
    return {name: (host_ns / len(calls), device_ns / len(calls)) for name, (host_ns, device_ns) in found.items()}


def _device_spans(calls: Sequence[int], ranges: Ranges, sums: Sums) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the times at which the device began and ended each call that launched work.

    The device begins a call when all earlier work is done, and not before the call is made. Earlier work is what any
    range launched before the call: for a forward, also the backward of the last step.
    """
    totals = sums.totals
    last_ns = 0
    for number in calls:
        if not totals.kernels[number]:
            continue
        called_ns = ranges.all[number].start_ns
        begin_ns = max(called_ns, last_ns, sums.before.until_ns(called_ns))
        last_ns = totals.last_ns[number]
        yield number, (min(begin_ns, totals.first_ns[number]), last_ns)
