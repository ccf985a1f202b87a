"""Events of the profiler, each nested in the event that called it. Pure functions; times are nanoseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from perflab.base.grouping import groups_of

RANGE_SCOPE = 7
"""The value of PyTorch's ``RecordScope::USER_SCOPE``: a range that somebody opened by name."""
NODE = "autograd::engine::evaluate_function: "
"""The beginning of the name that the autograd engine gives the frame around each backward node."""
CALL, PHASE = "perflab: profiled call", "perflab: phase "
"""Names of perflab's ranges: around a call, and, as the beginning of a name, around each phase of the call."""
COMPILED_GRAPH, COMPILED_REGION = "compiled graph", "Torch-Compiled Region"
_GRAPH = "## Call CompiledFxGraph "


class Event(NamedTuple):
    """One event on the host as the profiler recorded it: an operator, a range or a backward node."""

    name: str
    start_ns: int
    end_ns: int
    thread: int = 1
    scope: int = 0
    correlation: int = 0
    sequence: int = -1
    """Autograd's sequence number: for a forward operator that of the node which it makes next, for a backward node
    its own."""
    forward_thread: int = 0
    """The thread that made a backward node; 0: the event is no backward node."""
    shapes: str = ""
    flops: int = 0


@dataclass(slots=True)
class Call:
    """An event with the calls that it made."""

    event: Event
    children: list[Call] = field(default_factory=list)
    parent: Call | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The operator's or range's name."""
        return self.event.name

    @property
    def is_range(self) -> bool:
        """Whether the event is a named range, in which Python runs, and no operator."""
        return self.event.scope == RANGE_SCOPE

    @property
    def is_mark(self) -> bool:
        """Whether the event is the range that perflab opens around a call, or around one of the call's phases."""
        return self.is_range and self.name.startswith((CALL, PHASE))

    @property
    def total_ns(self) -> int:
        """The event's time, including the time of the calls that it made."""
        return self.event.end_ns - self.event.start_ns

    @property
    def self_ns(self) -> int:
        """The event's own time, without the time of the calls that it made."""
        return self.total_ns - sum(child.total_ns for child in self.children)

    def walk(self) -> Iterator[Call]:
        """Yield this call and all calls below it, in order of time."""
        waiting = [self]
        while waiting:
            call = waiting.pop()
            yield call
            waiting.extend(reversed(call.children))

    def outwards(self) -> Iterator[Call]:
        """Yield this call and its callers, the innermost first."""
        call: Call | None = self
        while call is not None:
            yield call
            call = call.parent

    def above(self) -> Iterator[Call]:
        """Yield the callers of this call, the innermost first."""
        return islice(self.outwards(), 1, None)


class Innermost:
    """Finds the call that is open on a thread at a moment."""

    def __init__(self, calls: Iterable[Call]) -> None:
        in_order = sorted(calls, key=lambda call: (call.event.start_ns, -call.event.end_ns))
        self._calls = groups_of(in_order, lambda call: call.event.thread)
        self._starts = {thread: [call.event.start_ns for call in found] for thread, found in self._calls.items()}

    def at(self, thread: int, moment_ns: int) -> Iterator[Call]:
        """Yield the innermost call that is open at a moment, then its callers; nothing if none is open."""
        last = bisect_right(self._starts.get(thread, []), moment_ns) - 1
        begun = self._calls[thread][last].outwards() if last >= 0 else ()
        return (one for one in begun if one.event.end_ns >= moment_ns)


def name_and_scope(name: str, scope: int) -> tuple[str, int]:
    """Return an event's name and scope, replaced for compiled code by ones that do not change.

    PyTorch names a compiled graph by a hash that changes with every edit, and a compiled region by the order of
    compilation. If shapes are recorded, PyTorch records a graph as a range, and otherwise as an operator.
    """
    if name.startswith(_GRAPH):
        return COMPILED_GRAPH, 0
    return (COMPILED_REGION if name.startswith(COMPILED_REGION) else name), scope


def nested(events: Iterable[Event]) -> list[Call]:
    """Return the outermost calls of one thread, with all calls nested in them.

    An event that outlives its caller, by a tick of the clock, is cut at the caller's end.
    """
    roots: list[Call] = []
    open_calls: list[Call] = []
    outer_first = sorted(events, key=attrgetter("end_ns"), reverse=True)
    for event in sorted(outer_first, key=attrgetter("start_ns")):  # stable: of simultaneous events, the longest first
        while open_calls and open_calls[-1].event.end_ns <= event.start_ns:
            open_calls.pop()
        parent = open_calls[-1] if open_calls else None
        if parent is not None and event.end_ns > parent.event.end_ns:
            event = event._replace(end_ns=parent.event.end_ns)
        call = Call(event, parent=parent)
        (parent.children if parent is not None else roots).append(call)
        open_calls.append(call)
    return roots


def shown_shapes(shapes: Sequence[Sequence[int]]) -> str:
    """Format the shapes of tensors, the first three of them: ``512x256, 256x768``. Empty shapes are left out."""
    tensors = ["x".join(map(str, shape)) for shape in shapes if shape]
    return ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
