"""The host's side of a profiled call: its time divided among operators and the gaps between them. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perflab.attribution.places import Where
from perflab.profiles.alignment import STRANGER, aligned
from perflab.profiles.categories import category_without_place
from perflab.profiles.events import Call
from perflab.profiles.placed import NOWHERE, Phase
from perflab.results.profile import DISPATCH, PYTHON


class Known(NamedTuple):
    """The properties of an operator besides its time: category, place, shapes and FLOPs."""

    name: str
    category: str
    phase: str
    where: Where
    shapes: str = ""
    flops: int = 0
    within: str = ""
    """The outermost operator that this operator runs within; ``""``: none."""
    is_part: bool = False
    """Whether the operator runs within another operator of its category."""
    entries: int = 1
    """How many events the profiler records for one call: autocast casts the inputs and then calls the operator
    again."""


class Key(NamedTuple):
    """The fields of a profile's row in which equal pieces of work agree."""

    category: str
    operator: str
    kernel: str
    phase: str
    module: str
    line: str
    shapes: str
    within: str = ""
    device: int = 0
    is_part: bool = False
    code: str = ""


@dataclass
class Sum:
    """The sums of equal pieces of work in one call."""

    instances: float = 0
    time_ns: float = 0.0
    flops: int = 0
    events: int = 0
    """How many events were recorded within ``time_ns``, which includes the profiler's cost of each."""
    sides: int = 0
    """How many sides of marks around the call and its phases lie within ``time_ns``. Each begin and each end of a
    mark has one side within the mark and one outside."""


def matched(calls: Sequence[Call], known: Sequence[Known]) -> tuple[list[Known], int]:
    """Return what is known of each operator of another call of the same work, and the number of strangers.

    Calls of unchanged work call the same operators in the same order. A stranger, an operator without a counterpart,
    gets what is known of the first operator of its name, or its name alone.
    """
    places = aligned([call.name for call in calls], [one.name for one in known])
    by_name = {one.name: one for one in reversed(known)}
    found = [
        known[at]
        if at != STRANGER
        else by_name.get(call.name) or Known(call.name, category_without_place(call.name), "", NOWHERE)
        for at, call in zip(places, calls, strict=True)
    ]
    return found, places.count(STRANGER)


def host_sums(root: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> dict[Key, Sum]:
    """Divide the time of one call on a CPU into the own times of operators and the gaps in which no operator runs.

    The profiler's cost of an event is in the time of the operator or gap in which the event was recorded.

    ``root`` is the range around the call, on the calling thread; ``known`` is by ``id`` of a call.
    """
    sums: dict[Key, Sum] = defaultdict(Sum)
    found: dict[int, Sum] = {}  # many calls share one ``Known``, whose key is made once
    for call in root.walk():
        one = known.get(id(call))
        if one is None:
            continue
        total = found.get(id(one))
        if total is None:
            total = found[id(one)] = sums[key_of(one, one.category)]
        total.instances += 1 / one.entries
        total.time_ns += call.self_ns
        total.events += len(call.children)
        total.flops += one.flops
    for gap in gaps_of(root, known, phases):
        total = sums[gap.key]
        total.instances += 1
        total.time_ns += gap.end_ns - gap.start_ns
        total.events += gap.events
        total.sides += gap.sides
    return sums


def key_of(one: Known, category: str) -> Key:
    """Return the key of an operator on the host.

    PyTorch's own work consists of many small calls, so its keys have no lines and shapes.
    """
    if category == DISPATCH:
        return Key(category, one.name, "", one.phase, one.where.module, "", "")
    module, line, _ = one.where
    return Key(category, one.name, "", one.phase, module, line, one.shapes, one.within, is_part=one.is_part)


class Gap(NamedTuple):
    """A stretch of the calling thread's time in which no operator runs."""

    start_ns: int
    end_ns: int
    key: Key
    events: int
    sides: int
    """How many sides of marks lie in the gap; ``events`` and ``sides`` are as in ``Sum``."""


def gaps_of(root: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> Iterator[Gap]:
    """Yield all gaps of one call, range by range."""
    for call in root.walk():
        if id(call) not in known:
            yield from _gaps_within(call, known, phases)


def _gaps_within(opened: Call, known: Mapping[int, Known], phases: Sequence[Phase]) -> Iterator[Gap]:
    """Yield the gaps of a range, in which no recorded event runs, each with the place of the operator that ends it."""
    last_ns, sides = opened.event.start_ns, int(opened.is_mark)
    module = line = ""

    def until(end_ns: int, end: Call, *, events: int) -> Gap:
        begun = [one.name for one in phases if one.start_ns <= last_ns]
        phase = begun[-1] if begun else phases[0].name if phases else ""
        return Gap(last_ns, end_ns, Key(PYTHON, "", "", phase, module, line, ""), events, sides + end.is_mark)

    for child in opened.children:
        at = next((known[id(one)] for one in child.walk() if id(one) in known), None)
        module, line = (at.where.module, at.where.line) if at is not None else (module, "")
        yield until(child.event.start_ns, child, events=int(not child.is_mark))
        last_ns, sides = child.event.end_ns, int(child.is_mark)
    line = ""
    yield until(opened.event.end_ns, opened, events=0)


def faster_half(totals_ns: Sequence[float]) -> list[int]:
    """Return the indices of the faster half of calls, of which the mean is taken.

    Means add up, as medians do not, and the slower half was disturbed.
    """
    ranked = sorted(range(len(totals_ns)), key=lambda at: totals_ns[at])
    return sorted(ranked[: max(1, (len(ranked) + 1) // 2)])
