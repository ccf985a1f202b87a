"""Times replays of a CUDA graph, without launches by the host between them.

As ``triton.testing.do_bench_cudagraph`` does it: all calls of a sample are captured in one graph, and replaying it is
timed by CUDA events. Capturing follows https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs. With cold
caches the graph holds one call, and each replay of it has an eviction before it: one in the graph would be timed too.
"""

from __future__ import annotations

import warnings
from itertools import repeat
from typing import TYPE_CHECKING, Any

from perflab.errors import CaptureError
from perflab.measure.clock import Sample, Stopwatch
from perflab.measure.cold import ColdCudaStopwatch
from perflab.measure.devices import collector_off
from perflab.measure.span import DeviceSpan, elapsed_ns, timing_events
from perflab.measure.workload import Workload

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

CALLS_BEFORE = 3
"""Calls on the capturing stream before the first capture: libraries and Triton set themselves up in the first ones.
``torch.cuda.make_graphed_callables`` makes as many."""
_EMPTY = "The CUDA Graph is empty"
"""How PyTorch's warning of it begins."""


class GraphStopwatch(Stopwatch):
    """CUDA events around replays of what was captured."""

    name = "cuda events"

    def __init__(self, device: torch.device, cold: ColdCudaStopwatch | None = None) -> None:
        self._device = device
        self._cold = cold
        self._stream: Any = None
        self._captured: tuple[Workload, int, Any] | None = None
        self.evicted_bytes = cold.evicted_bytes if cold is not None else None

    def time(self, workload: Workload, repetitions: int) -> Sample:
        """Replay the calls. What they do anew at each call, they do anew in each replay, and on the same memory.

        Raises:
            CaptureError: the callable does what no graph can hold, or launches nothing.
        """
        if self._cold is not None:
            replay = self._graph_of(workload, 1).replay
            return self._cold.time(Workload(replay, (), {}), repetitions)
        import torch

        graph = self._graph_of(workload, repetitions)
        stream = torch.cuda.current_stream(self._device)
        span = DeviceSpan(self._device, stream)
        bounds = timing_events(2, stream)
        span.begin()
        graph.replay()  # not timed: the device is busy with it while the one that is timed is launched
        bounds[0].record(stream)
        graph.replay()
        bounds[1].record(stream)
        span.end()
        return Sample(elapsed_ns(*bounds) + span.others_ns, reading=span.reading())

    def empty_call_ns(self) -> float | None:
        """Of cold calls, what two events in a row are apart."""
        return self._cold.empty_call_ns() if self._cold is not None else None

    def release(self) -> None:
        """Give back the graph, with all memory that its calls use, and what evicts."""
        self._captured = None
        if self._cold is not None:
            self._cold.release()

    def _graph_of(self, workload: Workload, calls: int) -> Any:
        """The graph that holds so many calls. The last one is kept: a graph holds all memory that its calls use."""
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

    from perflab.measure.limits import as_out_of_memory

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
                except Exception as error:  # to end a capture that has failed raises again, and says less
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
