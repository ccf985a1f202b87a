"""Named ranges: NVTX for Nsight Systems on CUDA, PyTorch's profiler everywhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def nvtx_range(name: str, device: torch.device) -> Iterator[None]:
    """Open a range for the length of the block.

    It shows as an NVTX range in Nsight Systems on a CUDA device, and as a ``record_function`` range in
    ``torch.profiler`` on any. Backward kernels are launched from another thread, so a range around
    ``backward()`` contains their launches on the timeline, though not in that thread.
    """
    import torch

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.profiler.record_function(name))
        if device.type == "cuda":
            torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call]
            stack.callback(torch.cuda.nvtx.range_pop)
        yield
