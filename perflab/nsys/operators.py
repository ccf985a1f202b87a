"""Finds the operator, module, line and phase that launched each kernel of a call, from the ranges then open. Pure.

PyTorch's ranges carry each operator's name, its shapes and autograd's sequence number. So a backward node belongs to
the forward that made it, as in a profile of ``torch.profiler``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perflab.attribution.places import MARK, Where
from perflab.base.grouping import groups_of
from perflab.nsys.launches import COPY, GRAPH, Launch
from perflab.nsys.reading_ranges import named, place_or_node, shapes_of
from perflab.profiles.alignment import STRANGER, counterparts
from perflab.profiles.categories import BACKWARD_SCOPE, categories
from perflab.profiles.divided import Kernel, Known
from perflab.profiles.events import RANGE_SCOPE, Call, Event, Innermost, name_and_scope, nested, shown_shapes
from perflab.profiles.flops import flops_where_done
from perflab.profiles.placed import NOWHERE, Phase, placed, within

Flops = Callable[[str, Sequence[Sequence[int]]], int]


class Ranged(NamedTuple):
    """A range that PyTorch or perflab opened within a call."""

    text: str
    start_ns: int
    end_ns: int
    thread: int


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
    span: Ranged, found: Iterable[Ranged], phases: Sequence[Phase], launches: Sequence[Launch], flops: Flops
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
        if operator is None:
            known[operators[-1]] = _without_operator(launch, running, phases, places)
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


def _events(found: Sequence[Ranged], caller: int, places: list[Where], before: int, flops: Flops) -> list[Event]:
    """Return the ranges of one thread as a profiler's events, in order of time."""
    parts = [named(one.text) for one in found]
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


def _without_operator(
    launch: Launch, running: Sequence[Call], phases: Sequence[Phase], places: Sequence[Where]
) -> Known:
    """Return the facts about a kernel that no operator launched: a Triton kernel that Python calls, or a copy."""
    marks = [places[int(one.name.removeprefix(MARK))] for one in running if one.name.startswith(MARK)]
    module = next((one.module for one in marks if one.module), NOWHERE.module)
    line = next((one.line for one in marks if one.line), NOWHERE.line)
    phase = next((one.name for one in reversed(phases) if one.start_ns <= launch.called_ns < one.end_ns), "")
    return Known("", "copies" if GRAPH < launch.name <= COPY else "other", phase, Where(module, line))
