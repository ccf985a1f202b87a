"""Opens PyTorch's profiler, and counts operators, allocations and calls of CUDA or HIP in its events.

The profiler is opened in one place, because the first profile of a process decides what later ones see. A counted call
is a span; an event belongs to the span in which the event began. The counts are pure functions of the events.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from perflab.measure.calls.nvtx import ranges_asked

COUNTED = "perflab: counted call"
"""Name of the span around each counted call."""
END_OF_PHASE = "perflab: end of a phase"
"""Name of an empty range at the end of each phase of a counted call."""
_FUNCTION_SCOPE = 0
"""``RecordScope::FUNCTION``: operators are recorded in this scope, and ranges that a user names are not."""
ON_THE_CPU = "on_the_cpu:"
"""Beginning of the names of counts of operators that ran on the CPU though the device is another."""
OPERATOR = re.compile(r"(?!autograd::|torch::)\w+::\w+")
"""``namespace::name``; ``autograd::engine::...`` and ``torch::autograd::...`` are frames of the engine."""
_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
"""Suffixes that CUPTI may append to a function's name: ``cudaLaunchKernel_v7000``."""
_LAUNCHES = frozenset(
    (
        "cudaLaunchKernel",
        "cudaLaunchKernelExC",
        "cudaLaunchCooperativeKernel",
        "cudaLaunchCooperativeKernelMultiDevice",
        "cudaGraphLaunch",
        "cuLaunchKernel",
        "cuLaunchKernelEx",
        "cuLaunchCooperativeKernel",
        "cuGraphLaunch",
        "hipLaunchKernel",
        "hipExtLaunchKernel",
        "hipLaunchKernelExC",
        "hipLaunchCooperativeKernel",
        "hipLaunchCooperativeKernelMultiDevice",
        "hipGraphLaunch",
        "hipModuleLaunchKernel",
        "hipModuleLaunchCooperativeKernel",
        "hipExtModuleLaunchKernel",
        "hipDrvLaunchKernelEx",
    )
)
_SYNCS = frozenset(
    (
        "cudaDeviceSynchronize",
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaMemcpy",
        "cudaMemcpy2D",
        "cudaMemcpy3D",
        "cudaMemcpyToSymbol",
        "cudaMemcpyFromSymbol",
        "cuCtxSynchronize",
        "cuStreamSynchronize",
        "cuEventSynchronize",
        "hipDeviceSynchronize",
        "hipStreamSynchronize",
        "hipEventSynchronize",
        "hipMemcpy",
        "hipMemcpyWithStream",
        "hipMemcpy2D",
        "hipMemcpy3D",
        "hipMemcpyToSymbol",
        "hipMemcpyFromSymbol",
        "hipCtxSynchronize",
    )
)
"""Calls of CUDA and HIP that return only when the device has caught up. Copies whose names end in Async are not among
them: where PyTorch waits for such a copy, it calls ``cudaStreamSynchronize``; on ROCm ``hipMemcpyWithStream``, which
waits (c10/hip/HIPFunctions.h)."""


class Event(NamedTuple):
    """One event that the profiler recorded on the host. Times are in nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    thread: int = 1
    scope: int = _FUNCTION_SCOPE
    correlation: int = 0
    """Number that the events of one call of CUDA or HIP share; 0 if there is none."""
    size_bytes: int = 0
    """Size of the block of a ``[memory]`` event; negative for a free."""


class Span(NamedTuple):
    """The time of a counted call, or of one of its phases, from beginning to end, in nanoseconds."""

    start_ns: int
    end_ns: int

    def holds(self, event: Event) -> bool:
        """Whether the event began in the span."""
        return self.start_ns <= event.start_ns < self.end_ns


def spans(events: Iterable[Event]) -> list[Span]:
    """Return the spans of the counted calls, in order of time."""
    return sorted(Span(event.start_ns, event.end_ns) for event in events if event.name == COUNTED)


def parts_of(events: Iterable[Event], span: Span) -> list[Span]:
    """Return the spans of a counted call's phases, in order; time after the last phase's end belongs to no phase."""
    marks = sorted((e for e in events if e.name == END_OF_PHASE and span.holds(e)), key=lambda e: e.start_ns)
    starts = [span.start_ns, *(mark.end_ns for mark in marks)]
    return [Span(start_ns, mark.start_ns) for start_ns, mark in zip(starts, marks, strict=False)]


def _operators(events: Iterable[Event], span: Span) -> list[Event]:
    """Return the operators that began in the span, each before those that it called."""
    found = (e for e in events if e.scope == _FUNCTION_SCOPE and span.holds(e) and OPERATOR.match(e.name))
    return sorted(found, key=lambda e: (e.start_ns, -e.end_ns))


def outermost_operators(events: Iterable[Event], span: Span) -> list[str]:
    """Return the names of the operators that began in the span and that no other operator of their thread called."""
    names: list[str] = []
    open_until_ns: dict[int, int] = {}
    for event in _operators(events, span):
        if event.start_ns >= open_until_ns.get(event.thread, 0):
            names.append(event.name)
            open_until_ns[event.thread] = event.end_ns
    return names


def count_allocations(events: Iterable[Event], span: Span) -> int:
    """Count the blocks that the allocator gave out in the span."""
    return sum(e.name == "[memory]" and e.size_bytes > 0 and span.holds(e) for e in events)


def count_fallbacks(events: Iterable[Event], span: Span) -> dict[str, int]:
    """Count the operators in the span that PyTorch ran on the CPU for want of a kernel, each under its own name.

    PyTorch's fallback (ATen/native/CPUFallback.cpp) calls ``aten::_to_cpu`` within the operator, before its kernel.
    """
    counts: Counter[str] = Counter()
    open_now: dict[int, list[Event]] = {}
    for event in _operators(events, span):
        around = open_now.setdefault(event.thread, [])
        while around and around[-1].end_ns <= event.start_ns:
            around.pop()
        if event.name == "aten::_to_cpu" and around:
            counts[f"{ON_THE_CPU}{around[-1].name}"] += 1
        around.append(event)
    return dict(counts)


def compiled_regions(events: Iterable[Event], span: Span) -> set[str]:
    """Return the regions of torch.compile entered in the span, as ``frame/compilation``: ``{"0/0", "1/0"}``."""
    prefix = "Torch-Compiled Region: "
    return {e.name.removeprefix(prefix) for e in events if e.name.startswith(prefix) and span.holds(e)}


def count_launches(events: Iterable[Event], span: Span) -> dict[str, int]:
    """Count ``kernel_launches`` and ``host_syncs`` in the span, over all threads; events of one API call count once."""
    counts = {"kernel_launches": 0, "host_syncs": 0}
    seen: set[tuple[str, int]] = set()
    for event in events:
        function = _VERSION.sub("", event.name)
        name = "kernel_launches" if function in _LAUNCHES else "host_syncs" if function in _SYNCS else None
        if name is None or not span.holds(event) or (name, event.correlation) in seen:
            continue
        counts[name] += 1
        if event.correlation:
            seen.add((name, event.correlation))
    return counts


def kind_of(function: str) -> str:
    """Return the kind of a call of CUDA or HIP: ``launch``, ``wait``, or ``other call``."""
    name = _VERSION.sub("", function)
    return "launch" if name in _LAUNCHES else "wait" if name in _SYNCS else "other call"


def saw_waits(events: Iterable[Event]) -> bool:
    """Whether calls of CUDA or HIP were recorded: the harness itself waits for the device outside of the span."""
    return any(_VERSION.sub("", event.name) in _SYNCS for event in events)


def agreed(each: Sequence[dict[str, int]]) -> dict[str, int]:
    """Return the counts that are the same in every call; a count that differs from call to call is left out."""
    if not each:
        return {}
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each[1:])}


def profiler(device: str, **asked: Any) -> Any:
    """Return PyTorch's profiler as a context manager; afterwards ``kineto_results`` reads what it recorded.

    Kineto is set up once a process, by the first profile: without CUDA if that profile watches the CPU alone. Later
    profiles then silently record neither kernels nor calls of CUDA. So where there is a GPU, an empty profile that
    watches the GPU comes first.

    Args:
        device: ``cuda`` to watch a GPU besides the host; ``cpu`` to watch the host alone.
        asked: further arguments of ``torch.autograd.profiler.profile``.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise Kineto prints a greeting on standard error
    # Not torch.profiler's class around it, which loads the whole compiler (two seconds) to read one setting.
    from torch.autograd.profiler import profile

    if device != "cuda":
        _set_up_with_cuda()
    return profile(use_cpu=True, use_device="cuda" if device == "cuda" else None, use_kineto=True, **asked)


@cache
def _set_up_with_cuda() -> None:
    import torch
    from torch.autograd.profiler import profile

    if ranges_asked() or not torch.cuda.is_available():  # under Nsight Systems CUPTI is in use already
        return
    empty = profile(use_cpu=True, use_device="cuda", use_kineto=True)
    empty.use_device = None  # otherwise the profile waits for the device at its end, which makes a context on it
    with empty:
        pass
