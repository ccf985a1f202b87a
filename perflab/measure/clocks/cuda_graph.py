"""Times replays of a CUDA graph, without launches by the host between them.

All calls of a sample are captured in one graph, and CUDA events time its replay, as in
``triton.testing.do_bench_cudagraph``. Capturing follows
https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs. With cold caches the graph holds one call, and caches
are evicted before each replay: an eviction in the graph would be timed too.
"""

from __future__ import annotations

import warnings
from itertools import repeat
from typing import TYPE_CHECKING, Any

from perflab.base.errors import CaptureError
from perflab.devices.kinds import backend_of
from perflab.measure.calls.workload import Workload
from perflab.measure.clocks.clock import Sample, Stopwatch
from perflab.measure.clocks.cold import ColdDeviceStopwatch
from perflab.measure.clocks.device_clock import DeviceSpan, elapsed_ns, timing_events
from perflab.measure.machine.devices import collector_off

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

CALLS_BEFORE = 3
"""Number of calls on the capturing stream before the first capture: libraries and Triton set themselves up in the first
calls. ``torch.cuda.make_graphed_callables`` makes as many."""
_EMPTY = "The CUDA Graph is empty"
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
            warnings.filterwarnings("error", message=_EMPTY)
            with torch.cuda.graph(graph, stream=stream):
                try:
                    for _ in repeat(None, calls):
                        workload.run()
                except Exception as error:  # ending a failed capture raises again, with a less precise error
                    failed.append(error)
                    raise
    except Warning as warning:
        if failed or not str(warning).startswith(_EMPTY):
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
