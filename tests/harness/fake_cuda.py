"""A CUDA device that is played: streams, events and graphs, on a clock of its own, with a log of what it was asked."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch


class FakeCuda:
    """A device that works through its queue on a clock of its own, and logs what it is asked.

    Work is given to the current stream. While a graph is captured nothing is done: the graph keeps it.
    """

    def __init__(self) -> None:
        self.log: list[str] = []
        self.device_ns = 0
        """What the current stream has come to."""
        self.elsewhere_ns = 0
        """What all other streams have come to."""
        self.host_ns = 0
        """The host's clock: it launches in no time, and waits."""
        self.idle = True
        self.default = FakeStream(self)
        self.stream: object = self.default
        self.capturing: FakeGraph | None = None

    def work(self, duration_ns: int, name: str = "work") -> None:
        if self.capturing is not None:
            self.capturing.kernels.append((duration_ns, name))
            return
        self.device_ns += duration_ns
        self.idle = False
        self.log.append(name)

    def work_elsewhere(self, duration_ns: int) -> None:
        """Work on a stream that the current one never waits for, beside whatever that does."""
        self.elsewhere_ns = max(self.elsewhere_ns, self.device_ns) + duration_ns

    def read_ns(self) -> int:
        return self.host_ns

    def synchronize(self, _device: object = None) -> None:
        if self.capturing is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nand what to set")
        self.idle = True
        self.device_ns = self.host_ns = max(self.device_ns, self.elsewhere_ns, self.host_ns)
        self.log.append("synchronize")

    def current_stream(self, _device: object = None) -> object:
        return self.stream

    def set_stream(self, stream: object) -> None:
        self.stream = stream

    @contextlib.contextmanager
    def on_stream(self, stream: object) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def new_event(self, *, enable_timing: bool) -> FakeEvent:
        assert enable_timing
        return FakeEvent(self)

    def graph(self, graph: FakeGraph, stream: object) -> FakeCapture:
        return FakeCapture(self, graph, stream)

    def installed(self, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
        """The same, in the place of PyTorch's."""
        for name, value in {
            "synchronize": self.synchronize,
            "current_stream": self.current_stream,
            "set_stream": self.set_stream,
            "stream": self.on_stream,
            "Stream": lambda _device: FakeStream(self),
            "Event": self.new_event,
            "CUDAGraph": lambda: FakeGraph(self),
            "graph": self.graph,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr("perflab.measure.clocks.clock.read_ns", self.read_ns)
        return self


class FakeStream:
    """A stream beside the current one."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda

    def wait_stream(self, _other: object) -> None:
        self.cuda.log.append("wait")


class FakeEvent:
    """An event that knows the device's time once it was recorded, and tells it once the stream has come so far.

    As PyTorch has it, the device's event behind it is created when it is first recorded, and a later record counts.
    """

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.at_ns: int | None = None

    def record(self, stream: object) -> None:
        assert stream is self.cuda.default
        self.cuda.log.append("create" if self.at_ns is None else "record")
        self.at_ns = self.cuda.device_ns

    def synchronize(self) -> None:
        assert self.at_ns is not None
        self.cuda.host_ns = max(self.cuda.host_ns, self.at_ns)
        self.cuda.log.append("wait for event")

    def elapsed_time(self, end: FakeEvent) -> float:
        assert self.cuda.idle, "a time was read before the device had finished"
        assert self.at_ns is not None
        assert end.at_ns is not None
        self.cuda.log.append("read")
        return (end.at_ns - self.at_ns) / 1e6


class FakeGraph:
    """Holds what was captured, and does it when it is replayed."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda = cuda
        self.kernels: list[tuple[int, str]] = []

    def replay(self) -> None:
        self.cuda.log.append("replay")
        for duration_ns, name in self.kernels:
            self.cuda.work(duration_ns, name)


class FakeCapture:
    """``torch.cuda.graph``, with its ways: a failed capture fails again at its end, and leaves its stream current."""

    def __init__(self, cuda: FakeCuda, graph: FakeGraph, stream: object) -> None:
        self.cuda, self.captured, self.stream = cuda, graph, stream

    def __enter__(self) -> None:
        self.cuda.log.append("capture")
        self.before, self.cuda.stream = self.cuda.stream, self.stream
        self.cuda.capturing = self.captured

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self.cuda.capturing = None
        if kind is not None:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
        if not self.captured.kernels:
            import warnings

            warnings.warn("The CUDA Graph is empty. This usually means that ...", stacklevel=2)
        self.cuda.stream = self.before


def taking(advance: Callable[[int], None], cost_ns: int) -> Callable[..., None]:
    """A callable that takes so long."""
    return lambda *_args: advance(cost_ns)
