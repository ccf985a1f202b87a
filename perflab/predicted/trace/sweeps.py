"""Cuts a trace into sweeps over its layers: forward up, backward down, optimizer up.

A *visit* begins with an event of a layer and ends before the next event of another layer: an event of no layer belongs
to the visit before it (but see ``Reading``). A *sweep* is a series of visits to successive layers, one number up or
down at a time; where the direction turns (forward's last layer is backward's first), the visit at the turn belongs to
the earlier sweep. Events before all layers form a sweep of their own, of no stack. How sweeps change with more
layers, ``patterns.find_patterns`` derives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Trace

Tags = Sequence[Layer | None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Successive visits. ``number`` is the layer of the first visit; ``step`` from visit to visit is 1 or -1."""

    stack: str | None
    number: int
    step: int
    visits: tuple[tuple[Event, ...], ...]

    @property
    def last(self) -> int:
        """The number of the last visit's layer."""
        return self.number + self.step * (len(self.visits) - 1)


class Where(NamedTuple):
    """The origin of a block: its sweep, its layer's number, and how many blocks the visit had made before."""

    sweep: int
    number: int
    ordinal: int


@dataclass(frozen=True)
class Cut:
    """A trace cut into sweeps over the layers of ``stacks``: first the sweeps of held blocks, then those of events."""

    trace: Trace
    stacks: frozenset[str]
    sweeps: tuple[Sweep, ...]
    held_sweeps: int
    made: Mapping[int, Where]
    """The origin of each block, by block number."""

    def last(self, stack: str | None) -> int:
        """Return the number of a stack's last layer; 0 for no stack."""
        return self.trace.layers[stack] - 1 if stack is not None else 0


class Reading(NamedTuple):
    """The rules that assign events to layers where tags alone do not decide."""

    leading: bool = False
    """Whether, on the way down, an event of no layer belongs to the visit after the event: backward passes in reverse
    order through the work that forward did between layers."""
    steady: bool = False
    """Whether a free belongs to the furthest layer so far, where tags alternate on their way over the layers
    (1 2 0 1 0). An autograd graph is freed in this order: what a layer kept of the previous layer, then what it kept of
    itself."""
    owned_but: int | None = None
    """The number of layers that a run of frees may miss and still count as freeing blocks of a whole stack; None: off.
    Each free of such a run belongs to its block's layer, whatever the free's tag. A list is freed in this way, inside
    of the module that held the list."""


READINGS = tuple(
    Reading(leading, steady, owned_but)
    for steady, owned_but in ((False, None), (True, None), (True, 0), (True, 1))
    for leading in (False, True)
)
"""The readings in the order in which they are tried, the plain one first."""


def cut(trace: Trace, stacks: frozenset[str], reading: Reading = READINGS[0]) -> Cut:
    """Cut a trace along the layers of these stacks; events of other stacks' layers count as events of no layer.

    Args:
        trace: the trace to cut.
        stacks: names of stacks.
        reading: the rules for events that tags do not assign.

    Raises:
        ValueError: a block is freed that was never allocated.
    """
    tags = [event.layer if event.layer and event.layer.stack in stacks else None for event in trace.events]
    runs = list(_free_runs(trace.events))
    for run in runs:
        _settle(tags, run)
    if reading.owned_but is not None:
        plain = _cut(trace, stacks, tags, reading.leading)
        for run in runs:
            owners = [_owner(plain, event.block) for event in trace.events[run] if isinstance(event, Free)]
            for stack in stacks:
                layers = {owner for owner in owners if owner and owner.stack == stack}
                if len(layers) >= trace.layers[stack] - reading.owned_but:
                    tags[run] = owners
    if reading.steady:
        for run in runs:
            tags[run] = _steadied(tags[run])
    return _cut(trace, stacks, tags, reading.leading)


def _cut(trace: Trace, stacks: frozenset[str], tags: Tags, leading: bool) -> Cut:
    held_tags = [made.layer if made.layer and made.layer.stack in stacks else None for made in trace.held]
    held = _sweeps(trace.held, held_tags, leading)
    sweeps = (*held, *_sweeps(trace.events, tags, leading))
    made: dict[int, Where] = {}
    for index, sweep in enumerate(sweeps):
        for position, visit in enumerate(sweep.visits):
            number, ordinal = sweep.number + sweep.step * position, 0
            for event in visit:
                if isinstance(event, Alloc):
                    made[event.block] = Where(index, number, ordinal)
                    ordinal += 1
                elif isinstance(event, Free) and event.block not in made:
                    raise ValueError(f"a trace frees block {event.block}, which it has not allocated before")
    return Cut(trace, stacks, sweeps, len(held), made)


def _owner(whole: Cut, block: int) -> Layer | None:
    where = whole.made[block]
    stack = whole.sweeps[where.sweep].stack
    return None if stack is None else Layer(stack, where.number)


def _free_runs(events: Sequence[Event]) -> Iterator[slice]:
    """Yield the slices of the events in which blocks are freed in a row."""
    start = 0
    for index, event in enumerate((*events, None)):
        if not isinstance(event, Free):
            if index > start:
                yield slice(start, index)
            start = index + 1


def _settle(tags: list[Layer | None], run: slice) -> None:
    """Assign frees amid the work of one layer to that layer, if they have at most one other tag.

    An optimizer's local variables hold the results for one parameter until the variables are set for the next.
    """
    before = tags[run.start - 1] if run.start else None
    after = tags[run.stop] if run.stop < len(tags) else None
    if before is not None and before == after and len({*tags[run], before}) <= 2:
        tags[run] = [before] * (run.stop - run.start)


def _steadied(tags: Tags) -> list[Layer | None]:
    """Return the tags without steps back by one: 1 2 0 1 0 becomes 1 1 0 0 0."""
    steady = list(tags)
    path = [(index, tag) for index, tag in enumerate(tags) if tag is not None]
    start = 0
    while start < len(path):
        down, up = _stretch(path[start:], -1), _stretch(path[start:], 1)
        stretch = down if len(down) > len(up) else up
        for (index, tag), number in zip(path[start:], stretch, strict=False):
            steady[index] = Layer(tag.stack, number)
        start += len(stretch)
    return steady


def _stretch(path: Sequence[tuple[int, Layer]], step: int) -> list[int]:
    """Return the furthest layer number so far in this direction, for each tag of the path's first stretch.

    A stretch ends where the stack changes or a tag is more than one layer from the furthest; it leaves out a step back
    at the end that does not return to the furthest layer.
    """
    stack, furthest = path[0][1].stack, path[0][1].number
    found, there = [], 0
    for _, layer in path:
        ahead = (layer.number - furthest) * step
        if layer.stack != stack or not -1 <= ahead <= 1:
            break
        furthest += step * max(ahead, 0)
        found.append(furthest)
        if layer.number == furthest:
            there = len(found)
    return found[:there]


def _sweeps(events: Sequence[Event], tags: Tags, leading: bool) -> list[Sweep]:
    starts: list[tuple[Layer | None, int]] = [(None, 0)]
    for index, tag in enumerate(tags):
        if tag is not None and tag != starts[-1][0]:
            before = starts[-1][0]
            if leading and before is not None and before == Layer(tag.stack, tag.number + 1):
                while tags[index - 1] is None:
                    index -= 1
            starts.append((tag, index))
    sweeps: list[Sweep] = []
    open_layers: list[Layer] = []
    open_visits: list[tuple[Event, ...]] = []
    ends = [start for _, start in starts[1:]] + [len(events)]
    for (layer, start), end in zip(starts, ends, strict=True):
        visit = tuple(events[start:end])
        if layer is None:
            sweeps.append(Sweep(None, 0, 1, (visit,)))
            continue
        if open_layers and not _goes_on(open_layers, layer):
            sweeps.append(_closed(open_layers, open_visits))
            open_layers, open_visits = [], []
        open_layers.append(layer)
        open_visits.append(visit)
    return [*sweeps, _closed(open_layers, open_visits)] if open_layers else sweeps


def _goes_on(layers: Sequence[Layer], layer: Layer) -> bool:
    if layers[-1].stack != layer.stack:
        return False
    step = layer.number - layers[-1].number
    return abs(step) == 1 if len(layers) == 1 else step == layers[-1].number - layers[-2].number


def _closed(layers: Sequence[Layer], visits: Sequence[tuple[Event, ...]]) -> Sweep:
    step = layers[1].number - layers[0].number if len(layers) > 1 else 1
    return Sweep(layers[0].stack, layers[0].number, step, tuple(visits))
