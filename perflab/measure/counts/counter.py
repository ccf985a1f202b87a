"""Counts what one call does: operators, allocations, kernel launches.

A counted call runs under PyTorch's profiler, in a span of its own, after the samples. What the profiler saw becomes
plain events, and the counts are pure functions of these (``measure/counts/events.py``):

- ``operators``: calls of registered operators (``aten::mm``, ``mylib::op``) that no other operator made. What an
  operator calls in turn is PyTorch's affair and is not counted; operators that a backward pass calls are.
- ``allocations``: blocks that PyTorch's allocator gave out on the measured device.
- ``kernel_launches`` (CUDA): calls of the host that start a kernel, or a whole CUDA graph.
- ``host_syncs`` (CUDA): calls of the host that wait for the device. Read from the CUDA API's own events and not from
  ``torch.cuda.set_sync_debug_mode``, which sees neither ``torch.cuda.synchronize`` nor what other libraries do.
- ``graph_breaks``, ``recompiles``: where the call enters frames of torch.compile, see ``measure/counts/compiling.py``.
- ``instructions`` (CPU, in one thread): see ``measure/counts/instructions.py``; not quite the same from run to run.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from perflab.internals.of_torch.machine import host_events, kineto_results
from perflab.measure.counts.compiling import CompilerState, compiler_state, counts_of_compiler
from perflab.measure.counts.events import (
    COUNTED,
    END_OF_PHASE,
    Event,
    Span,
    agreed,
    compiled_regions,
    count_allocations,
    count_cuda_calls,
    outermost_operators,
    parts_of,
    saw_cuda,
    spans,
)
from perflab.measure.counts.instructions import count_events, instructions_are_counted
from perflab.measure.counts.profiler import profiler
from perflab.measure.machine.devices import release_memory, synchronize

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class CallCounter:
    """Counts what calls do in spans under a profiler; ``read`` then turns the profiler's events into ``counts``.

    Args:
        device: the device of the work.
        before: the compiler's state before the case began: frames compiled from then on are the case's own.
        instructions: whether to count instructions too, on a CPU that counts them, if PyTorch has one thread.
    """

    def __init__(self, device: torch.device, before: CompilerState, *, instructions: bool = False) -> None:
        self._device = device
        self._before = before
        self._compiled_frames: list[int] = []
        self._instructions = instructions and device.type == "cpu" and instructions_are_counted()
        self.counts: dict[str, int] = {}
        self.each: list[dict[str, int]] = []
        """The counts of each counted call, in order."""
        self.by_phase: dict[str, dict[str, int]] = {}
        """Counts of each phase on which all counted calls agree: operators, allocations, launches, synchronisations."""
        self._each_by_phase: list[dict[str, dict[str, int]]] = []
        self.off: dict[str, str] = {}
        """The reason why a count is unknown, by the count's name."""

    @property
    def extra_calls(self) -> int:
        """Number of calls that counting needs on a CPU in addition to the calls of the memory pass."""
        return int(self._instructions)

    def count_apart(self, workload: Workload) -> None:
        """Count the quantities that need a call of their own: all on CUDA, instructions on a CPU.

        Raises:
            Exception: whatever the workload raises.
        """
        if self._device.type == "cuda":
            _count_on_cuda(workload, self._device, self)
        elif self._instructions:
            workload.make_ready(1)
            release_memory(self._device)  # the collector's next pass comes at the same moment in every run
            found = count_events(workload.run)
            if found is not None:
                self.counts["instructions"] = found

    @contextlib.contextmanager
    def call(self) -> Iterator[Callable[[], None]]:
        """Open the span of one counted call; yield a function that marks the end of a phase."""
        import torch

        def mark() -> None:
            with torch.profiler.record_function(END_OF_PHASE):
                pass

        before = compiler_state()
        with torch.profiler.record_function(COUNTED):
            yield mark
        self._compiled_frames.append(compiler_state().frames_seen - before.frames_seen)

    def read(self, results: Any, phases: Sequence[str] = ()) -> None:
        """Count the events that kineto recorded in the spans, and keep the counts on which all spans agree.

        ``phases`` names the phase that each mark ends.
        """
        events = read_events(results)
        found = spans(events)
        if len(found) != len(self._compiled_frames):
            return  # the workload has stopped our profiler by one of its own, so the recording is incomplete
        for span, frames in zip(found, self._compiled_frames, strict=True):
            counts = self._counts_in(events, span)
            by_phase: dict[str, Counter[str]] = {name: Counter() for name in phases}
            for name, part in zip(phases, parts_of(events, span), strict=False):
                by_phase[name].update(self._counts_in(events, part))
            self._each_by_phase.append({name: dict(found) for name, found in by_phase.items()})
            regions = compiled_regions(events, span)
            after = compiler_state()
            if regions and after.off is not None:
                self.off |= dict.fromkeys(("graph_breaks", "recompiles"), after.off)
            elif after.off is None:
                counts |= counts_of_compiler(regions, frames, self._before, after)
            self.each.append(counts)
        self.counts |= agreed(self.each)
        self.by_phase = {name: agreed([one[name] for one in self._each_by_phase]) for name in phases if found}

    def clear(self) -> None:
        """Drop all counts, because calls differ."""
        self.counts.clear()
        self.by_phase.clear()

    def _counts_in(self, events: Sequence[Event], span: Span) -> dict[str, int]:
        counts = {"operators": len(outermost_operators(events, span))}
        if self._device.type == "cuda":
            return counts | (count_cuda_calls(events, span) if saw_cuda(events) else {})  # none if it saw no CUDA
        return counts | {"allocations": count_allocations(events, span)}


def read_events(results: Any) -> list[Event]:
    """Return the events that kineto recorded on the host; the device's own side of ranges and copies is left out."""
    return [
        Event(
            name=event.name(),
            start_ns=event.start_ns(),
            end_ns=event.end_ns(),
            thread=event.start_thread_id(),
            scope=event.scope(),
            correlation=event.correlation_id(),
            size_bytes=event.nbytes(),
        )
        for event in host_events(results)
    ]


def _count_on_cuda(workload: Workload, device: torch.device, counter: CallCounter) -> None:
    """Count one call in a pass of its own: watching the CUDA API disturbs times, and memory too."""
    import torch

    release_memory(device)
    workload.make_ready(1)
    with profiler("cuda") as profiling:
        synchronize(device)
        given_out = [_blocks_given_out(device)]
        with counter.call() as mark:

            def end_phase() -> None:
                mark()
                given_out.append(_blocks_given_out(device))

            workload.run(end_phase)
        after = _blocks_given_out(device)
        synchronize(device)  # outside of the span: this wait is not the workload's
    counter.read(kineto_results(profiling), workload.spans)
    if torch.cuda.get_allocator_backend() == "native":
        counter.counts["allocations"] = after - given_out[0]
        for name, (begun, ended) in zip(workload.spans, pairwise(given_out), strict=False):
            of_phase = counter.by_phase.setdefault(name, {})
            of_phase["allocations"] = of_phase.get("allocations", 0) + ended - begun


def _blocks_given_out(device: torch.device) -> int:
    """Return how many blocks the caching allocator has given out since the process began."""
    import torch

    return int(torch.cuda.memory_stats(device).get("allocation.all.allocated", 0))
