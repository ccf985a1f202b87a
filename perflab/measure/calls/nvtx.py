"""Named ranges: NVTX for Nsight Systems on CUDA, PyTorch's profiler everywhere.

A case always has a range for warm-up, samples and memory. Ranges within these, for each call and its phases, would be
timed with the calls. They are opened only where ``ASKED`` is set, as ``perflab nsys`` does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.measure.calls.workload import Wrapped

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

ASKED = "PERFLAB_NVTX"
"""Environment variable: ``1`` opens a range for each call, phase and operator."""
CALL, PHASE = "call", "phase "
"""Name of the range of a call, and prefix of the name of the range of a phase."""
WARM_UP, SAMPLES, MEMORY, OPERATORS = "warm-up", "samples", "memory", "operators"
"""Parts of a case, which name its ranges: ``<case>: samples``."""
OPERATOR_CALLS = 6
"""Number of calls with a range for each operator; the first is cut off, since nothing says when its work began."""


def ranges_asked() -> bool:
    """Whether calls, phases and operators have ranges too."""
    return os.environ.get(ASKED, "") not in ("", "0")


@contextlib.contextmanager
def nvtx_range(name: str, device: torch.device) -> Iterator[None]:
    """Open a range for the length of the block.

    The range shows as an NVTX range in Nsight Systems on a CUDA device, and as a ``record_function`` range in
    ``torch.profiler`` on any device. The NVTX range is a start/end range of the process: a push/pop range belongs to
    one thread, and would miss the backward, which another thread launches (NVIDIA/NVTX#101).
    """
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.profiler.record_function(name))
        if backend_of(device).tells(Quantity.RANGES):
            stack.callback(_opened(name))
        yield


class RangedWorkload(Wrapped):
    """A workload with a range around each call, and around each of its phases."""

    def run(self, after_phase: Callable[[], None] = lambda: None) -> Any:
        """Do the work once and return its result."""
        upcoming = iter(self.spans)
        close = [_opened(CALL)]

        def open_next() -> None:
            name = next(upcoming, None)
            if name is not None:
                close.append(_opened(PHASE + name))

        def at_end_of_phase() -> None:
            close.pop()()
            after_phase()
            open_next()

        try:
            open_next()
            return self.inner.run(at_end_of_phase)
        finally:
            while close:
                close.pop()()


def _opened(name: str) -> Callable[[], None]:
    """Open a range of the process; return the function that closes it."""
    from torch.cuda import nvtx

    handle = nvtx.range_start(name)

    def close() -> None:
        nvtx.range_end(handle)

    return close
