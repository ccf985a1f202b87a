"""Counts in a profiler's events. Pure functions.

A counted call is a span; an event belongs to it by the moment at which it began.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

COUNTED = "perflab: counted call"
"""Name of the span around each counted call."""
END_OF_PHASE = "perflab: end of a phase"
"""Name of an empty range at the end of each phase of a counted call."""
_FUNCTION_SCOPE = 0
"""``RecordScope::FUNCTION``: operators are recorded in it, and ranges that a user names are not."""
OPERATOR = re.compile(r"(?!autograd::|torch::)\w+::\w+")
"""``namespace::name``; ``autograd::engine::...`` and ``torch::autograd::...`` are frames of the engine."""
_VERSION = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
"""What CUPTI may put behind a function's name: ``cudaLaunchKernel_v7000``."""
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
    )
)
"""Calls that return when the device has come that far. Copies whose names end in Async are not among them: where
PyTorch waits for one, it does so by ``cudaStreamSynchronize``."""


class Event(NamedTuple):
    """What the profiler recorded of one thing that happened on the host. Times are nanoseconds."""

    name: str
    start_ns: int
    end_ns: int
    thread: int = 1
    scope: int = _FUNCTION_SCOPE
    correlation: int = 0
    """Joins the CUDA API's events of one call; 0 where there is none."""
    size_bytes: int = 0
    """Of a ``[memory]`` event; negative for a free."""


class Span(NamedTuple):
    """From the beginning of a counted call to its end."""

    start_ns: int
    end_ns: int

    def holds(self, event: Event) -> bool:
        """Whether the event began in the span."""
        return self.start_ns <= event.start_ns < self.end_ns


def spans(events: Iterable[Event]) -> list[Span]:
    """The counted calls, in order."""
    return sorted(Span(event.start_ns, event.end_ns) for event in events if event.name == COUNTED)


def parts_of(events: Iterable[Event], span: Span) -> list[Span]:
    """The phases of a counted call, in order; what comes after the last one's end is in none."""
    marks = sorted((e for e in events if e.name == END_OF_PHASE and span.holds(e)), key=lambda e: e.start_ns)
    starts = [span.start_ns, *(mark.end_ns for mark in marks)]
    return [Span(start_ns, mark.start_ns) for start_ns, mark in zip(starts, marks, strict=False)]


def outermost_operators(events: Iterable[Event], span: Span) -> list[str]:
    """Names of the operators that began in the span and that no other operator of their thread called."""
    found = [e for e in events if e.scope == _FUNCTION_SCOPE and span.holds(e) and OPERATOR.match(e.name)]
    names: list[str] = []
    open_until_ns: dict[int, int] = {}
    for event in sorted(found, key=lambda e: (e.start_ns, -e.end_ns)):
        if event.start_ns >= open_until_ns.get(event.thread, 0):
            names.append(event.name)
            open_until_ns[event.thread] = event.end_ns
    return names


def count_allocations(events: Iterable[Event], span: Span) -> int:
    """Blocks that were given out in the span."""
    return sum(e.name == "[memory]" and e.size_bytes > 0 and span.holds(e) for e in events)


def compiled_regions(events: Iterable[Event], span: Span) -> set[str]:
    """What of torch.compile's was entered in the span, by its ``frame/compilation``: ``{"0/0", "1/0"}``."""
    prefix = "Torch-Compiled Region: "
    return {e.name.removeprefix(prefix) for e in events if e.name.startswith(prefix) and span.holds(e)}


def count_cuda_calls(events: Iterable[Event], span: Span) -> dict[str, int]:
    """``kernel_launches`` and ``host_syncs`` of the span, over all threads; an API that calls another counts once."""
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
    """What a call of CUDA's API is: a ``launch``, a ``wait``, or an ``other call``."""
    name = _VERSION.sub("", function)
    return "launch" if name in _LAUNCHES else "wait" if name in _SYNCS else "other call"


def saw_cuda(events: Iterable[Event]) -> bool:
    """Whether CUDA's calls were recorded: the harness waits for the device beside the span, so one is there."""
    return any(_VERSION.sub("", event.name) in _SYNCS for event in events)


def agreed(each: Sequence[dict[str, int]]) -> dict[str, int]:
    """What every call counted alike: a count that differs from call to call is none."""
    if not each:
        return {}
    return {name: value for name, value in each[0].items() if all(other.get(name) == value for other in each[1:])}
