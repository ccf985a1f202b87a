"""Makes a CPU build of PyTorch choose operators, dtypes and memory as CUDA does.

``as_cuda`` combines the modules of this package: autocast's lists (``autocast``), operators that decompose into others
on one device only (``composites``, ``attention``), operators that a CPU refuses (``histograms``), choices of a training
step (``training``), and the device's name (``devices``). The temporary memory of kernels is in ``kernels``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from perflab.predicted.cuda.autocast import cuda_autocast
from perflab.predicted.cuda.composites import cuda_composites
from perflab.predicted.cuda.devices import cuda_means_cpu
from perflab.predicted.cuda.histograms import cuda_histograms
from perflab.predicted.cuda.kernels import check_operators
from perflab.predicted.cuda.training import cuda_training

AMPERE = (8, 0)

_within: list[tuple[int, int]] = []


@contextmanager
def as_cuda(capability: tuple[int, int] = AMPERE) -> Iterator[None]:
    """Within the block, PyTorch treats fake CPU tensors as it treats tensors on CUDA with this compute capability.

    Run only fake tensors in the block: operators that exist on CUDA alone are registered without a working kernel. The
    block changes the whole process, and restores everything at its end, also after an error. Blocks can be nested with
    the same capability; another capability raises ``ValueError``, since a process stands for one GPU.
    """
    if _within:
        if capability != _within[0]:
            raise ValueError(
                f"as_cuda{capability} within as_cuda{_within[0]}: a process is one GPU; leave the outer one first"
            )
        yield
        return
    with ExitStack() as stack:
        check_operators()
        _within.append(capability)
        stack.callback(_within.clear)
        stack.enter_context(cuda_autocast())
        stack.enter_context(cuda_composites(capability))
        stack.enter_context(cuda_histograms())
        stack.enter_context(cuda_training())
        stack.enter_context(cuda_means_cpu(capability))
        yield
