"""Events of a profiler, nested as they were called. Pure functions; times are nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

RANGE_SCOPE = 7
"""``RecordScope::USER_SCOPE``: a range that somebody opened by name."""
NODE = "autograd::engine::evaluate_function: "
"""How the engine names the frame around each backward node."""
CALL, PHASE = "perflab: profiled call", "perflab: phase "
"""Our own ranges around a call, and around each of its phases."""
COMPILED_GRAPH, COMPILED_REGION = "compiled graph", "Torch-Compiled Region"
_GRAPH = "## Call CompiledFxGraph "


class Event(NamedTuple):
    """What the profiler recorded of one thing that happened on the host."""

    name: str
    start_ns: int
    end_ns: int
    thread: int = 1
    scope: int = 0
    correlation: int = 0
    sequence: int = -1
    """Autograd's number: of a forward operator that of the node which it makes next, of a backward node its own."""
    forward_thread: int = 0
    """Of a backward node, the thread that made it; 0: this is no backward."""
    shapes: str = ""
    flops: int = 0


@dataclass(slots=True)
class Call:
    """An event with what it called."""

    event: Event
    children: list[Call] = field(default_factory=list)
    parent: Call | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The operator's or range's name."""
        return self.event.name

    @property
    def is_range(self) -> bool:
        """Whether it is a named range, in which Python runs, and no operator."""
        return self.event.scope == RANGE_SCOPE

    @property
    def is_mark(self) -> bool:
        """Whether it is the range that perflab opens around a call, or around one of its phases."""
        return self.is_range and self.name.startswith((CALL, PHASE))

    @property
    def total_ns(self) -> int:
        """With everything that it called."""
        return self.event.end_ns - self.event.start_ns

    @property
    def self_ns(self) -> int:
        """Without."""
        return self.total_ns - sum(child.total_ns for child in self.children)

    def walk(self) -> Iterator[Call]:
        """This and everything below, in order of time."""
        waiting = [self]
        while waiting:
            call = waiting.pop()
            yield call
            waiting.extend(reversed(call.children))

    def above(self) -> Iterator[Call]:
        """What called it, the innermost first."""
        call = self.parent
        while call is not None:
            yield call
            call = call.parent


def name_and_scope(name: str, scope: int) -> tuple[str, int]:
    """Those of an event as they came, but for compiled code.

    PyTorch names its graphs with a hash that every edit changes, and its regions in the order of compilation. Where
    shapes are recorded, a graph is a range, and otherwise an operator.
    """
    if name.startswith(_GRAPH):
        return COMPILED_GRAPH, 0
    return (COMPILED_REGION if name.startswith(COMPILED_REGION) else name), scope


def nested(events: Iterable[Event]) -> list[Call]:
    """The outermost calls of one thread. An event that outlives its caller by a clock's tick ends with it."""
    roots: list[Call] = []
    open_calls: list[Call] = []
    outer_first = sorted(events, key=attrgetter("end_ns"), reverse=True)
    for event in sorted(outer_first, key=attrgetter("start_ns")):  # stable: of those that begin at once the longest
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
    """Those of tensors, the first three of them: ``512x256, 256x768``."""
    tensors = ["x".join(map(str, shape)) for shape in shapes if shape]
    return ", ".join(tensors[:3]) + (f" and {len(tensors) - 3} more" if len(tensors) > 3 else "")
