"""Makes a CPU build of PyTorch choose as CUDA does: operators, dtypes and memory.

``as_cuda`` puts together what stands in files of its own: autocast's lists (``autocast``), operators that are made
of others on one device only (``composites``, ``attention``), those that a CPU refuses (``histograms``), what a training
step chooses (``training``), and the name of the device (``devices``). What a kernel takes in passing is
``kernels``.
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
    """Within, PyTorch does to fake tensors on the CPU what it would do on a CUDA device of that compute capability.

    Only for what runs on fake tensors: kernels that exist on CUDA alone are registered, not there. It holds for the
    whole process, may be entered again within itself (with the same capability, which is all that a process can have;
    ``ValueError`` otherwise), and puts everything back, whatever is raised.
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
