"""Runs a call under PyTorch's profiler and reads its raw events."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perflab.errors import UsageError
from perflab.kernel_names import kernel_name
from perflab.measure.profiler import profiler
from perflab.profiles.device import Kernel
from perflab.profiles.events import Call, Event, nested
from perflab.profiles.flops import flops_of
from perflab.profiles.placed import Phase
from perflab.torch_internals.machine import device_events, host_events, kineto_results

if TYPE_CHECKING:
    from perflab.measure.workload import Workload

CALL = "perflab: profiled call"
PHASE = "perflab: phase "
_DTYPES = {"float": "float32", "double": "float64", "c10::BFloat16": "bfloat16", "c10::Half": "float16"}
RAN_OUT = "[OutOfMemory]"
"""How the profiler names the moment at which an allocator found no room."""
OF_MEMORY = ("[memory]", RAN_OUT)
"""Events that are no operator's."""
_API = ("cuda_runtime", "cuda_driver")
"""The host's calls of CUDA, among kineto's kinds of events."""
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_INTEGERS = {"long int": "int64", "int": "int32", "bool": "bool", "unsigned char": "uint8", "signed char": "int8"}


@dataclass
class Recorded:
    """One recorded call."""

    root: Call
    """The range around it, on the thread that called."""
    others: list[Call] = field(default_factory=list)
    """What other threads did meanwhile, one thread after the other."""
    phases: tuple[Phase, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    """What the device did for it, in order of time."""

    @property
    def roots(self) -> list[Call]:
        """Of all threads, the caller's first."""
        return [self.root, *self.others]


@contextlib.contextmanager
def recording(device: str, *, shapes: bool = False) -> Iterator[Any]:
    """Profile the block on ``cpu`` or ``cuda``; what comes has the results once the block has ended."""
    with profiler(device, record_shapes=shapes) as opened:
        yield opened


def run_marked(workload: Workload) -> Any:
    """Run the workload once, with ranges around it and around its phases."""
    import torch

    spans = iter(workload.spans)
    opened: list[Any] = []

    def open_next() -> None:
        phase = next(spans, None)
        if phase is not None:
            opened.append(torch.profiler.record_function(PHASE + phase))
            opened[-1].__enter__()

    def close() -> None:
        if opened:
            opened.pop().__exit__(None, None, None)

    def after_phase() -> None:
        close()
        open_next()

    with torch.profiler.record_function(CALL):
        open_next()
        try:
            return workload.run(after_phase)
        finally:
            close()


def recorded_calls(recorded: Any, calls: int, *, details: bool = False) -> list[Recorded]:
    """The calls that were run marked, in order.

    Args:
        recorded: what ``recording`` gave.
        calls: how many there were.
        details: with shapes and FLOPs of operators.

    Raises:
        UsageError: not all of them were recorded.
    """
    results = kineto_results(recorded)
    host, launches = [], {}
    for one in host_events(results):
        if one.name() in OF_MEMORY:
            continue
        if one.activity_type() in _API:
            launches[one.correlation_id()] = one.start_ns()
        else:
            host.append(_event(one, details))
    kernels = [_kernel(one, launches) for one in device_events(results) if one.activity_type() in _WORK]
    spans = sorted((one for one in host if one.name == CALL), key=lambda one: one.start_ns)
    if len(spans) != calls:
        raise UsageError(
            f"the profiler recorded {len(spans)} of {calls} calls: the workload runs a profiler of its own",
            "profile it without that; PyTorch has one profiler a process",
        )
    return [_recorded(span, host, kernels) for span in spans]


def _recorded(span: Event, events: Sequence[Event], kernels: Sequence[Kernel]) -> Recorded:
    inside = [one for one in events if span.start_ns <= one.start_ns < span.end_ns and one.name != CALL]
    by_thread: dict[int, list[Event]] = {}
    for one in inside:
        by_thread.setdefault(one.thread, []).append(one)
    root = nested([span, *by_thread.pop(span.thread, [])])[0]
    others = sorted(by_thread.values(), key=lambda some: min(one.start_ns for one in some))
    phases = sorted(
        (Phase(one.name.removeprefix(PHASE), one.start_ns, one.end_ns) for one in inside if one.name.startswith(PHASE)),
        key=lambda phase: phase.start_ns,
    )
    asked = {one.correlation for one in (span, *inside)}
    ours = sorted((one for one in kernels if _is_of(one, span, asked)), key=lambda one: one.start_ns)
    return Recorded(root, [call for some in others for call in nested(some)], tuple(phases), tuple(ours))


def _is_of(kernel: Kernel, span: Event, asked: set[int]) -> bool:
    """Whether a kernel was launched in the call: by one of its operators, or by none of PyTorch's."""
    if kernel.operator:
        return kernel.operator in asked
    return kernel.launched_ns is not None and span.start_ns <= kernel.launched_ns < span.end_ns


def _kernel(event: Any, launches: Mapping[int, int]) -> Kernel:
    return Kernel(
        name=kernel_name(event.name()),
        start_ns=event.start_ns(),
        end_ns=event.end_ns(),
        operator=event.linked_correlation_id(),
        launched_ns=launches.get(event.correlation_id()),
    )


def _event(event: Any, details: bool) -> Event:
    shapes = event.shapes() if details else []
    name = event.name()
    return Event(
        name=name,
        start_ns=event.start_ns(),
        end_ns=event.end_ns(),
        thread=event.start_thread_id(),
        scope=event.scope(),
        correlation=event.correlation_id(),
        sequence=event.sequence_nr() if event.sequence_nr() < 1 << 62 else -1,
        forward_thread=event.fwd_thread_id(),
        shapes=_shown(event, shapes) if details else "",
        flops=flops_of(name, shapes, event.concrete_inputs()) if details else 0,
    )


def _shown(event: Any, shapes: Sequence[Sequence[int]]) -> str:
    """``512x256, 256x768 float32``."""
    tensors = [at for at, shape in enumerate(shapes) if shape]
    if not tensors:
        return ""
    dtypes = event.dtypes()
    first = dtypes[tensors[0]] if tensors[0] < len(dtypes) else ""
    named = (_DTYPES | _INTEGERS).get(first, first.removeprefix("c10::"))
    listed = ["x".join(map(str, shapes[at])) for at in tensors[:3]]
    more = f" and {len(tensors) - 3} more" if len(tensors) > 3 else ""
    return f"{', '.join(listed)}{more} {named}".strip()
