"""Opens PyTorch's profiler: in one place, because the first profile of a process decides what later ones see."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from perflab.measure.nvtx import ranges_asked


def profiler(device: str, **asked: Any) -> Any:
    """PyTorch's profiler, to be entered; afterwards ``kineto_results`` reads what it saw.

    Kineto is set up once a process, by its first profile: without CUDA if that one watches the CPU alone. Later ones
    then see neither kernels nor calls of CUDA, and say nothing. So where there is a GPU, an empty profile that
    watches it comes first.

    Args:
        device: what is watched besides the host, ``cuda``; ``cpu``: nothing.
        asked: what else is recorded, as ``torch.autograd.profiler.profile`` names it.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it greets on standard error
    # Not torch.profiler's class around it, which loads the whole compiler (two seconds) to read one setting.
    from torch.autograd.profiler import profile

    if device != "cuda":
        _set_up_with_cuda()
    return profile(use_cpu=True, use_device="cuda" if device == "cuda" else None, use_kineto=True, **asked)


@cache
def _set_up_with_cuda() -> None:
    import torch
    from torch.autograd.profiler import profile

    if ranges_asked() or not torch.cuda.is_available():  # under Nsight Systems CUPTI is taken
        return
    empty = profile(use_cpu=True, use_device="cuda", use_kineto=True)
    empty.use_device = None  # or it waits for the device at its end, and that makes a context on it
    with empty:
        pass
