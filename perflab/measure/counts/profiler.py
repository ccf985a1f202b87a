"""Opens PyTorch's profiler: in one place, because the first profile of a process decides what later ones see."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from perflab.measure.calls.nvtx import ranges_asked


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
