"""Events of the profiler, each nested in the event that called it, with phase, module and line of each operator.

Pure functions; times are nanoseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

from perflab.attribution.places import MARK, Where
from perflab.base.grouping import groups_of
from perflab.measure.counts.events import OPERATOR
from perflab.results.profile import BACKWARD, FORWARD, OPTIMIZER

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


NOWHERE = Where()
OPTIMIZER_STEP = "Optimizer.step#"
"""The beginning of the name that PyTorch gives the range around an optimizer's step."""


class Placed(NamedTuple):
    """An operator's call and its place: phase, module and line."""

    call: Call
    phase: str
    where: Where
    in_backward: bool = False
    """Whether a backward node runs the operator, whatever phase of the case this is in."""

    @property
    def role(self) -> str:
        """``BACKWARD`` or ``OPTIMIZER``, by the phase's name or else by PyTorch's nodes and ranges; ``""``: neither."""
        if role := role_of(self.phase):
            return role
        if self.in_backward:
            return BACKWARD
        return OPTIMIZER if any(above.name.startswith(OPTIMIZER_STEP) for above in self.call.above()) else ""


def role_of(phase: str) -> str:
    """Return the role of work in a phase and outside of operators: ``BACKWARD``, ``OPTIMIZER``, or else ``""``."""
    return phase if phase in (BACKWARD, OPTIMIZER) else ""


class Phase(NamedTuple):
    """A phase of a call, with its begin and end in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int


def operators(roots: Sequence[Call]) -> list[Call]:
    """Return all calls but ranges, in order, one thread after the other."""
    return [call for root in roots for call in root.walk() if not call.is_range]


def within(call: Call) -> str:
    """Return the outermost operator that a call runs within; ``""`` if there is none.

    Operators outside of a frame of the backward engine do not count.
    """
    outermost = ""
    for above in call.above():
        if above.name.startswith(NODE):
            break
        if not above.is_range and OPERATOR.match(above.name):
            outermost = above.name
    return outermost


def entered(calls: Sequence[Call]) -> list[list[Call]]:
    """Return, for each operator, all events that the profiler recorded of the same call, the outermost first.

    The operator's own event is among them. Autocast casts the inputs and calls the operator by its name again, and many
    functions call their own variant that writes into ``out``.
    """
    found: dict[int, list[Call]] = {}
    for call in calls:  # each comes after its caller
        above = call.parent
        is_same = above is not None and above.name == call.name and bool(OPERATOR.match(call.name))
        if above is not None and is_same and sum(one.name == call.name for one in above.children) == 1:
            entries = found[id(above)]
        else:
            entries = []
        entries.append(call)
        found[id(call)] = entries
    return [found[id(call)] for call in calls]


def phases_without_any(found: Sequence[Placed]) -> list[str]:
    """Return the phase of each operator of a call that has no phases of its own.

    Operators that autograd numbered before the last backward node are of the forward. So are operators that a module
    runs without a gradient before such an operator, if no node runs between the two. Other operators outside of nodes
    and of an optimizer's step, such as clipping, or logging under ``no_grad``, have the phase ``""``. So do all
    operators if no backward runs.
    """
    last_ns = max((one.call.event.start_ns for one in found if one.call.name.startswith(NODE)), default=None)
    if last_ns is None:
        return [""] * len(found)
    in_time = sorted((one.call for one in found), key=lambda call: call.event.start_ns, reverse=True)
    before_forward: dict[int, bool] = {}
    is_before = False
    for call in in_time:
        if call.name.startswith(NODE):
            is_before = False
        elif call.event.sequence >= 0 and call.event.start_ns < last_ns and not is_before:
            is_before = not any(outer.name.startswith(NODE) for outer in call.above())
        before_forward[id(call)] = is_before
    phases: dict[int, str] = {}
    for one in found:  # each comes after its caller
        call = one.call
        above = [call, *call.above()]
        phase = next((phases[id(outer)] for outer in above if id(outer) in phases), "")
        if any(outer.name.startswith(NODE) for outer in above):
            phase = BACKWARD
        elif any(outer.name.startswith(OPTIMIZER_STEP) for outer in above):
            phase = OPTIMIZER
        elif before_forward[id(call)] and (call.event.sequence >= 0 or one.where.module):
            phase = FORWARD
        phases[id(call)] = phase
    return [phases[id(one.call)] for one in found]


def made_by(node: Call) -> tuple[int, int]:
    """Return thread and autograd number of the operator that made a backward node; ``(0, -1)`` if they are not known.

    The engine's frame around a node with hooks has neither; a call within the frame does.
    """
    known = (one.event for one in (node, *node.children) if one.event.forward_thread)
    return next(((one.forward_thread, one.sequence) for one in known), (0, -1))


def placed(roots: Sequence[Call], phases: Sequence[Phase], named: Callable[[str], Where]) -> list[Placed]:
    """Return every operator of some threads with its place.

    A backward node has the place of the forward operator that made it; the two share autograd's number. A node without
    a known operator, such as one that adds up gradients, has the place of the node before it.

    Args:
        roots: the outermost calls of each thread, one thread after the other, the caller's first.
        phases: the phases of the call; without any, an operator in a backward node has the phase ``backward``.
        named: returns the place for the name of a range, if the name begins with ``MARK``.
    """
    made_at: dict[tuple[int, int], Where] = {}
    found: list[Placed] = []
    last_node = NOWHERE
    starts = [phase.start_ns for phase in phases]

    def phase_of(call: Call, in_backward: bool) -> str:
        if not phases:
            return BACKWARD if in_backward else ""
        return phases[max(0, bisect_right(starts, call.event.start_ns) - 1)].name

    waiting = [(root, NOWHERE, False) for root in reversed(roots)]
    while waiting:
        call, where, in_backward = waiting.pop()
        event = call.event
        if call.is_range:
            if call.name.startswith(MARK):
                inner = named(call.name)
                if in_backward and inner.module:  # a checkpoint runs a forward again, which has its own line
                    where, in_backward = inner, False
                else:
                    where = Where(inner.module or where.module, inner.line or where.line, inner.stack or where.stack)
        else:
            if call.name.startswith(NODE):
                in_backward = True
                where = last_node = made_at.get(made_by(call), last_node)
            elif event.sequence >= 0 and not in_backward:
                made_at[event.thread, event.sequence] = where
            found.append(Placed(call, phase_of(call, in_backward), where, in_backward))
        waiting.extend((child, where, in_backward) for child in reversed(call.children))
    return found
