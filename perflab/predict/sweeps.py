"""A trace cut into sweeps over its layers: forward goes up, backward comes down, the optimizer goes up again.

A *visit* begins with an event of a layer and ends before the next event of another layer: what belongs to no layer
belongs to the visit before it. A *sweep* is visits of successive layers, one number up or down at a time; where it
turns (forward's last layer is backward's first), the one visit belongs to the sweep before. What comes before all
layers is a sweep of its own, of no stack. ``find_patterns`` says what sweeps become with other numbers of layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from perflab.predict.trace import Alloc, Event, Free, Layer, Trace

Tags = Sequence[Layer | None]


@dataclass(frozen=True, slots=True)
class Sweep:
    """Successive visits. ``number`` is the first one's layer, ``step`` is 1 or -1."""

    stack: str | None
    number: int
    step: int
    visits: tuple[tuple[Event, ...], ...]

    @property
    def last(self) -> int:
        """The last visit's layer."""
        return self.number + self.step * (len(self.visits) - 1)


class Where(NamedTuple):
    """Where a block came to be: in which sweep and layer, and how many blocks that visit had made before."""

    sweep: int
    number: int
    ordinal: int


@dataclass(frozen=True)
class Cut:
    """A trace in sweeps over the layers of ``stacks``: first those of what is held, then those of its events."""

    trace: Trace
    stacks: frozenset[str]
    sweeps: tuple[Sweep, ...]
    held_sweeps: int
    made: Mapping[int, Where]
    """By block."""

    def last(self, stack: str | None) -> int:
        """The number of a stack's last layer; 0 for what is in no stack."""
        return self.trace.layers[stack] - 1 if stack is not None else 0


class Reading(NamedTuple):
    """How frees in a row are understood, where they may be the work of one hand: a list or a graph that is let go."""

    steady: bool = False
    """Where tags go to and fro on their way over the layers (1 2 0 1 0), a free is of the furthest layer so far. So a
    graph goes: what a layer kept of the one before, then what it kept of itself."""
    owned_but: int | None = None
    """Where blocks of all layers of a stack are freed, or of all but so many, each free is of its block's layer,
    whatever it is tagged with. So a list goes, inside of the module that held it."""


READINGS = (Reading(), Reading(steady=True), Reading(steady=True, owned_but=0), Reading(steady=True, owned_but=1))
"""The plain one first."""


def cut(trace: Trace, stacks: frozenset[str], reading: Reading = READINGS[0]) -> Cut:
    """Cut a trace along the layers of these stacks; those of others are no layers here.

    Raises:
        ValueError: a block is freed that was never allocated.
    """
    tags = [event.layer if event.layer and event.layer.stack in stacks else None for event in trace.events]
    if reading.owned_but is not None:
        plain = _cut(trace, stacks, tags)
        for run in _free_runs(trace.events):
            owners = [_owner(plain, event.block) for event in trace.events[run] if isinstance(event, Free)]
            for stack in stacks:
                layers = {owner for owner in owners if owner and owner.stack == stack}
                if len(layers) >= trace.layers[stack] - reading.owned_but:
                    tags[run] = owners
    if reading.steady:
        for run in _free_runs(trace.events):
            tags[run] = _steadied(tags[run])
    return _cut(trace, stacks, tags)


def _cut(trace: Trace, stacks: frozenset[str], tags: Tags) -> Cut:
    held_tags = [made.layer if made.layer and made.layer.stack in stacks else None for made in trace.held]
    held = _sweeps(trace.held, held_tags)
    sweeps = (*held, *_sweeps(trace.events, tags))
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
    """Where two or more blocks are freed in a row."""
    start = 0
    for index, event in enumerate((*events, None)):
        if not isinstance(event, Free):
            if index - start >= 2:
                yield slice(start, index)
            start = index + 1


def _steadied(tags: Tags) -> list[Layer | None]:
    """The same without going back by one on the way: 1 2 0 1 0 becomes 1 1 0 0 0."""
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
    """The furthest number so far in this direction, as long as the path goes back by one at most, and comes again."""
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


def _sweeps(events: Sequence[Event], tags: Tags) -> list[Sweep]:
    starts: list[tuple[Layer | None, int]] = [(None, 0)]
    for index, tag in enumerate(tags):
        if tag is not None and tag != starts[-1][0]:
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
