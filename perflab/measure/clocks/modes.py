"""Times calls in other modes than the default: with cold caches, and as replays of a CUDA graph.

*Cold caches* are evicted before each call, outside of its span. Calls do not share a reading of the clock, so the time
of each call includes the cost of a reading; ``empty_call_ns`` measures that cost.

*CUDA graphs* are replayed without launches by the host between the calls. All calls of a sample are captured in one
graph, and CUDA events time its replay, as in ``triton.testing.do_bench_cudagraph``. Capturing follows
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs. With cold caches the graph holds one call, and caches
are evicted before each replay: an eviction in the graph would be timed too.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from itertools import repeat
from statistics import median
from typing import TYPE_CHECKING, Any

from perflab.attribution.reachable import collector_off
from perflab.base.errors import CaptureError
from perflab.devices.kinds import backend_of
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import HostStopwatch, Sample, Stopwatch
from perflab.measure.clocks.device_clock import DeviceSpan, elapsed_ns, timing_events
from perflab.measure.machine.devices import Eviction

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


EMPTY_READINGS = 5
_WHOLE = ("",)
"""The names of the spans of a workload without phases: a single unnamed span."""


_EMPTY = Workload(lambda: None, (), {})
"""A workload whose calls do nothing."""


class _ColdStopwatch(Stopwatch):
    """Base class of the stopwatches that evict caches before each call."""

    def __init__(self, eviction: Eviction) -> None:
        self._evict = eviction
        self.evicted_bytes = eviction.size_bytes

    def empty_call_ns(self) -> float:
        """Return the median time of a few empty calls with cold caches, in nanoseconds."""
        return float(median(self.time(_EMPTY, 1).total_ns for _ in range(EMPTY_READINGS)))

    def release(self) -> None:
        """Free the eviction buffer."""
        self._evict.release()


class ColdHostStopwatch(_ColdStopwatch):
    """A stopwatch that reads the host's clock around each call.

    Eviction removes instructions from the caches together with the data, both PyTorch's and the case's own.
    """

    name = "host"

    def __init__(self, eviction: Eviction, wait: Callable[[], None] | None = None) -> None:
        """``wait`` as in ``HostStopwatch``."""
        super().__init__(eviction)
        self._wait = wait

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Evict caches before each call and time the calls; nothing is evicted between the phases of a step."""
        inner = HostStopwatch(self._wait)
        total_ns = apart_ns = cpu_ns = 0
        spent = dict.fromkeys(workload.phases, 0)
        for _ in repeat(None, repetitions):
            began_ns = clock.read_ns()
            self._evict()
            inner.time(_EMPTY, 1)  # loads the clock's own instructions, which are not to be measured
            cpu_before_ns = time.process_time_ns()
            sample = inner.time(workload, 1)
            cpu_ns += time.process_time_ns() - cpu_before_ns
            total_ns += sample.total_ns
            apart_ns += clock.read_ns() - began_ns - sample.total_ns
            for name, phase_ns in sample.phases_ns.items():
                spent[name] += phase_ns
        return Sample(total_ns, spent, apart_ns, cpu_ns)


class ColdDeviceStopwatch(_ColdStopwatch):
    """A stopwatch that records events around each call, after the eviction, as in Triton's ``do_bench``.

    The host does not wait between calls: while the device evicts, the call is launched, and it follows at once.
    """

    def __init__(self, device: torch.device, eviction: Eviction) -> None:
        super().__init__(eviction)
        self._backend = backend_of(device)
        self.name = f"{device.type} events"

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Queue all calls with their evictions, wait once, and read the events."""
        spans = workload.spans or _WHOLE
        stream = self._backend.current_stream()
        span = DeviceSpan(self._backend, stream)
        calls = [timing_events(len(spans) + 1, self._backend, stream) for _ in range(repetitions)]
        span.begin()
        for events in calls:
            self._evict()
            self._record(workload, events, stream)
        span.end()

        spent = dict.fromkeys(spans, 0)
        for events in calls:
            for name, begin, end in zip(spans, events, events[1:], strict=False):
                spent[name] += elapsed_ns(begin, end)
        reading = span.reading()
        # Other streams worked after each call as they did after the last, hidden behind the next call's eviction.
        total_ns = sum(spent.values()) + repetitions * span.others_ns
        apart_ns = max(0, reading.device_ns - total_ns)
        return Sample(total_ns, spent if workload.phases else {}, apart_ns, reading=reading)

    def _record(self, workload: Workload, events: list[Any], stream: Any) -> None:
        """Run one call, recording events at its beginning and at the end of each span."""
        upcoming = iter(events)

        def mark() -> None:
            next(upcoming).record(stream)

        mark()
        if workload.phases:
            workload.run(after_phase=mark)
        else:
            workload.run()
            mark()


CALLS_BEFORE = 3
"""Number of calls on the capturing stream before the first capture: libraries and Triton set themselves up in the first
calls. ``torch.cuda.make_graphed_callables`` makes as many."""
_EMPTY_GRAPH = "The CUDA Graph is empty"
"""Beginning of PyTorch's warning about an empty graph."""


class GraphStopwatch(Stopwatch):
    """A stopwatch that records CUDA events around replays of a captured CUDA graph."""

    name = "cuda events"

    def __init__(self, device: torch.device, cold: ColdDeviceStopwatch | None = None) -> None:
        self._device = device
        self._cold = cold
        self._stream: Any = None
        self._captured: tuple[Workload, int, Any] | None = None
        self.evicted_bytes = cold.evicted_bytes if cold is not None else None

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Replay the captured calls and time the replay, which repeats their GPU work on the same memory.

        Raises:
            CaptureError: no graph can hold what the callable does, or the callable launches nothing.
        """
        if self._cold is not None:
            replay = self._graph_of(workload, 1).replay
            return self._cold.time(Workload(replay, (), {}), repetitions)
        graph = self._graph_of(workload, repetitions)
        backend = backend_of(self._device)
        stream = backend.current_stream()
        span = DeviceSpan(backend, stream)
        bounds = timing_events(2, backend, stream)
        span.begin()
        graph.replay()  # not timed: it keeps the device busy while the timed replay is launched
        bounds[0].record(stream)
        graph.replay()
        bounds[1].record(stream)
        span.end()
        return Sample(elapsed_ns(*bounds) + span.others_ns, reading=span.reading())

    def empty_call_ns(self) -> float | None:
        """Return the nanoseconds between two successive CUDA events with cold caches; None with warm caches."""
        return self._cold.empty_call_ns() if self._cold is not None else None

    def release(self) -> None:
        """Free the graph, with all memory that its calls use, and the eviction buffer."""
        self._captured = None
        if self._cold is not None:
            self._cold.release()

    def _graph_of(self, workload: Workload, calls: int) -> Any:
        """Return a graph of ``calls`` calls; only the last one is kept: a graph holds all memory that its calls use."""
        if self._captured is not None and self._captured[:2] == (workload, calls):
            return self._captured[2]
        is_new = self._captured is None or self._captured[0] is not workload
        self._captured = None
        if is_new:
            self._warm(workload)
        graph = _captured(workload, calls, self._device, self._stream)
        graph.replay()  # the first one also brings the graph to the device
        self._captured = (workload, calls, graph)
        return graph

    def _warm(self, workload: Workload) -> None:
        import torch

        if self._stream is None:
            new_stream: Any = torch.cuda.Stream
            self._stream = new_stream(self._device)
        current: Any = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            for _ in repeat(None, CALLS_BEFORE):
                workload.run()
        current.wait_stream(self._stream)


def _captured(workload: Workload, calls: int, device: torch.device, stream: Any) -> Any:
    import torch

    from perflab.measure.machine.devices import as_out_of_memory

    graph: Any = torch.cuda.CUDAGraph()
    current: Any = torch.cuda.current_stream(device)
    failed: list[Exception] = []
    try:
        # a Triton kernel that the collector finds unloads its module, which ends a capture
        with collector_off(), warnings.catch_warnings():
            warnings.filterwarnings("error", message=_EMPTY_GRAPH)
            with torch.cuda.graph(graph, stream=stream):
                try:
                    for _ in repeat(None, calls):
                        workload.run()
                except Exception as error:  # ending a failed capture raises again, with a less precise error
                    failed.append(error)
                    raise
    except Warning as warning:
        if failed or not str(warning).startswith(_EMPTY_GRAPH):
            raise
        raise CaptureError(
            "a CUDA graph of its callable is empty: it launches no kernel on the current stream",
            "measure a callable whose work is on the GPU, or leave cuda_graph out",
        ) from warning
    except RuntimeError as error:
        first = failed[0] if failed else error
        if as_out_of_memory(first) is not None:
            raise first from None
        said = " ".join(str(first).split("\n")[0].split())
        raise CaptureError(
            f"its callable cannot be captured in a CUDA graph: {type(first).__name__}: {said}",
            "take out of it what waits for the GPU or copies to the host (.item(), .cpu(), print), and what was "
            "compiled with CUDA graphs of its own; or leave cuda_graph out",
        ) from first
    finally:
        torch.cuda.set_stream(current)  # a capture that fails leaves its own stream behind as the current one
    return graph
