"""Computes the trace of a model with many layers from traces with few.

Two traces of one call, the second with a layer more in each stack, show what a layer does and what an additional layer
changes (``sweeps``, ``patterns.find_patterns``). The whole trace is laid out from these patterns. As a check, both
input traces are laid out in the same way first and must match the recorded ones, event by event; patterns that fail
are refused.

A step from 3 layers to 4 cannot show an effect that begins with the fifth: a layer of another kind further up, a list
that is cut into pieces once it is long. The caller has to make sure that the layers of a stack are built alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from perflab.predicted.trace.patterns import (
    OWN,
    Did,
    Freed,
    Line,
    Made,
    NotPeriodic,
    Pattern,
    Tag,
    find_patterns,
    role_of,
)
from perflab.predicted.trace.sweeps import READINGS, cut
from perflab.predicted.trace.trace import Alloc, Event, Free, Layer, Op, Trace, Use


def unroll(few: Trace, more: Trace, layers: Mapping[str, int]) -> Trace:
    """Return the trace of the same call with ``layers[stack]`` layers in each stack.

    Stacks that have one layer more in ``more`` are unrolled; stacks with equally many layers in both traces keep that
    number. So several stacks can be unrolled together, or one after another. Unrolled together, all stacks must gain
    the same number of layers, or growth outside of layers cannot be derived. Unrolling one after another takes four
    traces, with 3 and 4 layers of the first stack and 3 and 4 of the second: unrolling the first stack turns these into
    the two traces for the second.

    Args:
        few: a trace with three layers or more in each stack that is unrolled.
        more: a trace of the same call with one layer more in each of these stacks.
        layers: the wanted number of layers of each stack that is unrolled.

    Returns:
        A trace whose blocks are numbered in order of allocation. The caller counts its parameters.

    Raises:
        NotPeriodic: the layers do not repeat, or the pattern cannot be derived; all layers have to be traced.
        ValueError: the stacks of the traces do not match, or fewer layers are wanted than were traced.
    """
    stacks, layers = _unrolled(few, more, layers), {**few.layers, **layers}
    for reading in READINGS:
        with contextlib.suppress(NotPeriodic):
            cuts = [cut(trace, stacks, reading) for trace in (few, more)]
            patterns, held_sweeps = find_patterns(*cuts), cuts[0].held_sweeps
            if all(same(_laid_out(patterns, held_sweeps, few, more, seen.layers), seen) for seen in (few, more)):
                return _laid_out(patterns, held_sweeps, few, more, layers)
    raise NotPeriodic("in no reading of the traces the layers repeat")


def _unrolled(few: Trace, more: Trace, layers: Mapping[str, int]) -> frozenset[str]:
    """Return the stacks with one layer more in ``more``; raise ``ValueError`` if the numbers of layers do not match."""
    for stack in {**few.layers, **more.layers, **layers}:
        number, one_more = few.layers.get(stack, 0), more.layers.get(stack, 0)
        wanted = layers.get(stack, number)
        if not (number == one_more == wanted > 0 or (3 <= number == one_more - 1 and number <= wanted)):
            raise ValueError(
                f"{wanted} layers of {stack} are wanted, and it was traced with {number} and {one_more}; trace it with "
                "as many as are wanted, or with three or more and one more"
            )
    return frozenset(stack for stack, number in more.layers.items() if number != few.layers[stack])


def _laid_out(
    patterns: Sequence[Pattern], held_sweeps: int, few: Trace, more: Trace, layers: Mapping[str, int]
) -> Trace:
    """Return the trace that the patterns give for these numbers of layers."""
    gained = {layers[stack] - number for stack, number in more.layers.items() if few.layers[stack] < number}
    layout = _Layout(patterns, gained.pop() if len(gained) == 1 else None, layers, more.layers)
    for index in range(held_sweeps):
        layout.lay_out(index)
    held, layout.events = tuple(event for event in layout.events if isinstance(event, Alloc)), []
    for index in range(held_sweeps, len(patterns)):
        layout.lay_out(index)
    return Trace(
        held=held,
        events=tuple(layout.events),
        uses=layout.uses,
        layers=dict(layers),
        result_blocks=frozenset(layout.lasting),
    )


class _Layout:
    """A trace under construction, sweep by sweep. Blocks are numbered in order of allocation."""

    def __init__(
        self, patterns: Sequence[Pattern], extra: int | None, layers: Mapping[str, int], traced: Mapping[str, int]
    ) -> None:
        self.patterns = patterns
        self.traced = traced
        """The number of layers of each stack in the larger trace, from which the patterns were learned."""
        self.extra = extra
        """The layers that each unrolled stack gains over the larger trace; None if not all gain as many."""
        self.layers = layers
        self.events: list[Event] = []
        self.uses: dict[int, Use] = {}
        self.lasting: list[int] = []
        self.blocks = 0
        self.freed: set[int] = set()
        self.starts: list[list[int]] = [[] for _ in patterns]
        """The number of each visit's first block, by sweep and visit."""
        self.numbers = [pattern.course.numbers(self.last(pattern.course.stack)) for pattern in patterns]

    def last(self, stack: str | None) -> int:
        return self.layers[stack] - 1 if stack is not None else 0

    def lay_out(self, sweep: int) -> None:
        """Append the events of all visits of a sweep."""
        course, visits = self.patterns[sweep].course, self.patterns[sweep].visits
        stack = course.stack
        own_tag = Tag(stack, OWN) if stack is not None else None
        for number in self.numbers[sweep]:
            self.starts[sweep].append(self.blocks)
            own = Layer(stack, number) if stack is not None else None
            pattern = visits.get(course.pattern(number, self.last(stack)))
            if pattern is None:
                raise NotPeriodic("too few layers were traced to see what one between others does")
            for step in pattern:
                layer = step.tag if not isinstance(step.tag, Tag) else own
                if isinstance(step.tag, Tag) and step.tag != own_tag:
                    layer = Layer(step.tag.stack, self.seen(step.tag.line, step.tag.stack, stack, number))
                if isinstance(step, Did):
                    self.events.append(self.did(step, layer))
                elif isinstance(step, Made):
                    self.events.append(self.made(step, layer))
                else:
                    self.events.append(Free(self.freed_block(step, stack, number), layer))

    def seen(self, line: Line, stack: str | None, own_stack: str | None, own_number: int) -> int:
        """Return the number of the layer of ``stack`` that a layer of ``own_stack`` refers to by a line."""
        last = self.last(stack)
        if line.of_number and stack != own_stack and last != self.last(own_stack):
            raise NotPeriodic("layers of two stacks go with each other one by one, and there are not as many")
        return line.at(own_number, last)

    def grown(self, value: int, growth: int) -> int:
        """Return a value of the larger trace, extrapolated to the wanted layers; ``growth`` is per additional layer."""
        if not growth:
            return value
        if self.extra is None:
            raise NotPeriodic("what grows outside of layers cannot be shared out between stacks that grow unlike")
        if value + self.extra * growth < 0:
            raise NotPeriodic("what shrinks with every layer would be less than nothing")
        return value + self.extra * growth

    def did(self, step: Did, layer: Layer | None) -> Op:
        op = step.op
        flops, bytes_moved, launches = map(self.grown, (op.flops, op.bytes_moved, op.launches), step.growth)
        lists = op.lists
        if lists is not None and step.has_lists:
            lists = lists.with_layers(self.traced, self.layers)
            launches = lists.launches
        return Op(op.name, op.place, flops, bytes_moved, op.dtype, launches, layer, op.is_causal, lists)

    def made(self, step: Made, layer: Layer | None) -> Alloc:
        block, self.blocks = self.blocks, self.blocks + 1
        use, alloc = step.use, step.alloc
        if use is not None and use.saved is not None and step.shape_growth is not None:
            shape = tuple(map(self.grown, use.saved.shape, step.shape_growth))
            use = Use(use.category, use.saved._replace(shape=shape))
        if use is not None:
            self.uses[block] = use
        if step.lasting:
            self.lasting.append(block)
        return Alloc(block, self.grown(alloc.size_bytes, step.growth), alloc.place, alloc.operator, layer)

    def freed_block(self, step: Freed, own_stack: str | None, own_number: int) -> int:
        """Return the number of the block that a step frees.

        Raises:
            NotPeriodic: the block does not exist yet, or was freed before.
        """
        number = self.seen(step.line, step.stack, own_stack, own_number)
        target = step.targets.get(role_of(number, self.last(step.stack)))
        tail = step.targets.get("tail")
        if tail and number == self.numbers[tail[0]][-1]:
            target = tail
        if target is not None and number in self.numbers[target[0]]:
            visit, starts = self.numbers[target[0]].index(number), self.starts[target[0]]
            block = starts[visit] + target[1] if visit < len(starts) else self.blocks
            if block < self.blocks and block not in self.freed:
                self.freed.add(block)
                return block
        raise NotPeriodic("which block is freed cannot be told")


def same(a: Trace, b: Trace) -> bool:
    """Whether two traces are equal event by event and block by block, except for the blocks' numbers."""
    return dict(a.layers) == dict(b.layers) and all(one == other for one, other in zip_longest(_told(a), _told(b)))


def _told(trace: Trace) -> Iterator[object]:
    """Yield a trace's contents in order, with blocks renumbered in order of allocation."""
    numbers: dict[int, int] = {}
    for event in (*trace.held, "the call", *trace.events):
        if isinstance(event, Alloc):
            numbers[event.block] = len(numbers)
            yield event.size_bytes, event.place, event.operator, event.layer, trace.uses.get(event.block)
        elif isinstance(event, Free):
            yield numbers.get(event.block), event.layer
        else:
            yield event
    yield {numbers[block] for block in trace.result_blocks}
