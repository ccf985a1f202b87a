"""Runs a call under PyTorch's profiler and reads its raw events; or with NVTX ranges, for Nsight Systems.

Measures the time that the profiler adds to the calls it records.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from perflab.attribution.places import Places, module_names
from perflab.attribution.reachable import reachable
from perflab.base.errors import UsageError
from perflab.base.gpu_names import kernel_name
from perflab.base.grouping import groups_of
from perflab.internals.of_torch.machine import a_profiler_runs, activity_of, host_events, kineto_results
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measure.counts.events import profiler
from perflab.measure.machine.devices import synchronize
from perflab.profiles.categories import flops_of
from perflab.profiles.divided import Cost, Kernel
from perflab.profiles.events import (
    CALL,
    COMPILED_REGION,
    PHASE,
    Call,
    Event,
    Phase,
    name_and_scope,
    nested,
    operators,
    shown_shapes,
)

if TYPE_CHECKING:
    import torch


__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_DTYPES = {
    **{"float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16"},
    **{"long int": "int64", "int": "int32", "bool": "bool", "unsigned char": "uint8", "signed char": "int8"},
}
RAN_OUT = "[OutOfMemory]"
"""The profiler's name for the moment at which an allocator ran out of memory."""
_OF_HOST = ("cpu_op", "user_annotation")
"""Kineto's kinds of events for operators and ranges."""
_API = ("cuda_runtime", "cuda_driver")
"""Kineto's kinds of events for the host's calls of CUDA."""
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
"""Kineto's kinds of events for what a device does."""


@dataclass
class Recorded:
    """One recorded call."""

    root: Call
    """The range around the call, on the calling thread."""
    others: list[Call] = field(default_factory=list)
    """The outermost calls of other threads meanwhile, one thread after the other."""
    phases: tuple[Phase, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    """The kernels, copies and fills that devices ran for the call, in order of time."""
    cuda_calls: tuple[tuple[str, int], ...] = ()
    """The host's calls of CUDA: the function's name, and how many nanoseconds the call took."""
    foreign: tuple[Kernel, ...] = ()
    """The kernels that were launched by threads which the profiler does not follow, during all calls recorded
    together."""

    def foreign_within(self, begin_ns: int, end_ns: int) -> list[Kernel]:
        """Return the kernels of ``foreign`` that run between two moments."""
        return [one for one in self.foreign if one.end_ns > begin_ns and one.start_ns < end_ns]

    @property
    def roots(self) -> list[Call]:
        """The outermost calls of all threads, the calling thread's first."""
        return [self.root, *self.others]

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code ran in the call."""
        return any(call.name == COMPILED_REGION for call in operators(self.roots))


def refuse_another_profiler(to_do: str) -> None:
    """Raise UsageError if a profiler runs. ``to_do`` says in the message what to do without that profiler."""
    if a_profiler_runs():
        raise UsageError(
            "a profiler runs in this process already, and a second one would end it",
            f"{to_do} without it; PyTorch has one profiler a process",
        )


@contextlib.contextmanager
def recording(device: str, *, shapes: bool = False, memory: bool = False) -> Iterator[Any]:
    """Profile the block on ``cpu`` or ``cuda``; the profiler that is yielded has results once the block has ended.

    ``shapes`` and ``memory`` say whether it notes the shapes of operators' inputs, and what allocators give out.
    """
    with profiler(device, record_shapes=shapes, profile_memory=memory) as opened:
        yield opened
        if device == "cuda":
            clock.wait_for_devices()  # a kernel that has not ended is not recorded


def run_marked(workload: Workload) -> Any:
    """Run the workload once, with ranges around the call and around its phases; return the call's result."""
    import torch

    spans = iter(workload.spans)

    def open_next() -> None:
        opened.close()
        phase = next(spans, None)
        if phase is not None:
            opened.enter_context(torch.profiler.record_function(PHASE + phase))

    with torch.profiler.record_function(CALL), contextlib.ExitStack() as opened:
        open_next()
        return workload.run(open_next)


def recorded_calls(recorded: Any, calls: int, *, details: bool = False) -> list[Recorded]:
    """Return the calls that ``run_marked`` ran, in order.

    ``recorded`` is the profiler that ``recording`` yielded. ``details`` adds what places need: autograd's numbers, and
    shapes and FLOPs of operators.

    Raises:
        UsageError: some of the calls were not recorded.
    """
    host: list[Event] = []
    api: dict[int, Event] = {}
    work = []
    followed: set[int] = set()
    for one in kineto_results(recorded).events():
        kind = activity_of(one)
        if kind in _OF_HOST:
            host.append(_event(one, details))
            followed.add(one.device_resource_id())
        elif kind in WORK:
            work.append(one)
        elif kind in _API:
            start_ns, end_ns, number = one.start_ns(), one.end_ns(), one.correlation_id() or -1 - len(api)
            inner = api.get(number)  # CUDA's runtime calls its driver, under the same number
            if inner is None or inner.end_ns - inner.start_ns < end_ns - start_ns:
                api[number] = Event(one.name(), start_ns, end_ns, one.device_resource_id())
    if followed.isdisjoint(one.thread for one in api.values()):  # numbered otherwise: nothing is known of threads
        followed = {one.thread for one in api.values()}
    kernels = sorted((_kernel(one, api, followed) for one in work), key=lambda one: one.start_ns)
    spans = sorted((one for one in host if one.name == CALL), key=lambda one: one.start_ns)
    if len(spans) != calls:
        raise UsageError(
            f"the profiler recorded {len(spans)} of {calls} calls: the workload runs a profiler of its own",
            "profile it without that; PyTorch has one profiler a process",
        )
    own = (one for one in api.values() if one.thread in followed)
    return _divided(spans, host, kernels, sorted(own, key=lambda one: one.start_ns))


def _divided(
    spans: Sequence[Event], events: list[Event], kernels: Sequence[Kernel], api: Sequence[Event]
) -> list[Recorded]:
    """Assign events to the spans in which they began, and kernels to the spans in which they were launched."""
    starts = [span.start_ns for span in spans]

    def at(moment_ns: int) -> int:
        number = bisect_right(starts, moment_ns) - 1
        return number if number >= 0 and moment_ns < spans[number].end_ns else -1

    inside: list[list[Event]] = [[] for _ in spans]
    asked: dict[int, int] = {}
    for event in events:
        number = at(event.start_ns)
        if number >= 0:
            asked[event.correlation] = number
            if event.name != CALL:
                inside[number].append(event)
    ours: list[list[Kernel]] = [[] for _ in spans]
    foreign = tuple(one for one in kernels if one.is_foreign)
    for kernel in kernels:
        if kernel.is_foreign:
            continue
        if kernel.operator:
            number = asked.get(kernel.operator, -1)
        else:
            number = at(kernel.launched_ns) if kernel.launched_ns is not None else -1
        if number >= 0:
            ours[number].append(kernel)
    called: list[list[tuple[str, int]]] = [[] for _ in spans]
    for one in api:
        if (number := at(one.start_ns)) >= 0:
            called[number].append((one.name, one.end_ns - one.start_ns))
    found = []
    for span, within, own_kernels, calls in zip(spans, inside, ours, called, strict=True):
        by_thread = groups_of(within, lambda one: one.thread)
        root = nested([span, *by_thread.pop(span.thread, [])])[0]
        threads = sorted(by_thread.values(), key=lambda some: min(one.start_ns for one in some))
        others = [call for some in threads for call in nested(some)]
        marks = sorted((one for one in within if one.name.startswith(PHASE)), key=lambda one: one.start_ns)
        phases = tuple(Phase(one.name.removeprefix(PHASE), one.start_ns, one.end_ns) for one in marks)
        found.append(Recorded(root, others, phases, tuple(own_kernels), tuple(calls), foreign))
    return found


def _kernel(event: Any, api: Mapping[int, Event], followed: Collection[int]) -> Kernel:
    call = api.get(event.correlation_id())
    return Kernel(
        name=kernel_name(event.name()),
        start_ns=event.start_ns(),
        end_ns=event.end_ns(),
        operator=event.linked_correlation_id(),
        launched_ns=call.start_ns if call is not None else None,
        launch_ended_ns=call.end_ns if call is not None else None,
        device=event.device_index(),
        stream=event.device_resource_id(),
        is_foreign=not event.linked_correlation_id() and call is not None and call.thread not in followed,
    )


def _event(event: Any, details: bool) -> Event:
    """Read one event. Each attribute takes PyTorch 0.1 us or more, so only those that are needed are read."""
    name, scope = name_and_scope(event.name(), event.scope())
    found = Event(name, event.start_ns(), event.end_ns(), event.start_thread_id(), scope, event.correlation_id())
    if not details:
        return found
    shapes, sequence = event.shapes(), event.sequence_nr()
    return found._replace(
        sequence=sequence if sequence < 1 << 62 else -1,
        forward_thread=event.fwd_thread_id(),
        shapes=_shown(event, shapes),
        flops=flops_of(name, shapes, event.concrete_inputs()),
    )


def _shown(event: Any, shapes: Sequence[Sequence[int]]) -> str:
    """Return the shapes of an event's inputs and their first dtype: ``512x256, 256x768 float32``."""
    at = next((at for at, shape in enumerate(shapes) if shape), None)
    if at is None:
        return ""
    dtypes = event.dtypes()
    first = dtypes[at] if at < len(dtypes) else ""
    return f"{shown_shapes(shapes)} {_DTYPES.get(first, first.removeprefix('c10::'))}".strip()


AT = "perflab: at "
"""The beginning of a range's name; the module and the line follow, separated by ``BETWEEN``."""
BETWEEN = " | "


class NamedPlaces(Places):
    """Places whose ranges have the module and the line in their names, since another process reads the names."""

    def mark(self, line: str, stack: tuple[str, ...] = ()) -> str:
        """Return the name of a range for a line of the module that runs."""
        return f"{AT}{self.module}{BETWEEN}{line}"


def run_with_operator_ranges(workload: Workload, device: torch.device, calls: int) -> None:
    """Call the workload with PyTorch's own ranges, which carry each operator's name, shapes and autograd number.

    A workload with compiled code gets no ranges for modules and lines: they would make PyTorch compile it again.
    """
    from torch.autograd.profiler import emit_nvtx

    marking = NamedPlaces(module_names(reachable(workload.roots))).marking
    with recording("cpu") as profiler:
        workload.run()
    if any(event.name.startswith(COMPILED_REGION) for event in profiler.function_events):
        marking = contextlib.nullcontext  # type: ignore[assignment]
    workload.make_ready(calls)
    with emit_nvtx(record_shapes=True), marking():  # type: ignore[no-untyped-call]
        for _ in range(calls):
            workload.run()
        synchronize(device)


_CALLS = 200
_ROUNDS = 9


class _Empty(Workload):
    """A workload whose calls do nothing, with the given phases."""

    def __init__(self, spans: tuple[str, ...]) -> None:
        super().__init__(lambda: None, (), {})
        self.spans = spans

    def run(self, after_phase: Callable[[], None] = lambda: None) -> None:
        for _ in self.spans:
            after_phase()


def cost_of(spans: tuple[str, ...], *, backward: bool) -> Cost:
    """Measure the cost of recording on this machine now, in calls that do next to nothing.

    The cost of an event is the time of calls with the profiler minus that without.

    Args:
        spans: the phase of each span of a call.
        backward: whether the calls run a backward too, whose nodes take longer to record than plain operators.
    """
    import torch

    empty = _Empty(spans)
    with recording("cpu") as profiler:
        for _ in range(_CALLS):
            run_marked(empty)
    marked_ns = median(one.root.total_ns for one in recorded_calls(profiler, _CALLS))
    tensor = torch.ones(1)
    with torch.inference_mode(False):
        leaf = torch.ones(1, requires_grad=True)

    def forward_and_backward() -> None:
        with torch.inference_mode(False), torch.enable_grad():
            (leaf * leaf).sum().backward()  # type: ignore[no-untyped-call]

    call: Callable[[], object] = forward_and_backward if backward else tensor.detach

    def once() -> float:
        call()  # the first call after other work is slower
        start_ns = clock.read_ns()
        for _ in range(_CALLS):
            call()
        return (clock.read_ns() - start_ns) / _CALLS

    once()
    plain, profiled, events = [], [], 0.0
    for _ in range(_ROUNDS):
        plain.append(once())
        with recording("cpu") as profiler:
            profiled.append(once())
        events = len(host_events(kineto_results(profiler))) / (_CALLS + 1)
    event_ns = max(0.0, (median(profiled) - median(plain)) / max(1.0, events))
    return Cost(event_ns, marked_ns / (2 + 4 * len(spans)))
