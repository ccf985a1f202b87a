"""Makes a CPU build of PyTorch choose operators, dtypes and memory as CUDA does.

``as_cuda`` combines the modules of this package: autocast's lists (``autocast``), operators that one device decomposes
into others or refuses (``composites``, ``attention``), choices of a training step (``cuda_training``), and the device's
name (``devices``). The temporary memory of kernels is in ``kernels``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.amp
import torch.optim

from perflab.internals.of_torch import FakeTensor
from perflab.internals.of_torch.patched import (
    STEP_OF_GRAD_SCALER,
    Replacement,
    attributes_replaced,
    devices_of_foreach,
    initial_scale,
)
from perflab.internals.of_torch.tracing import foreach_types
from perflab.predicted.cuda.autocast import cuda_autocast
from perflab.predicted.cuda.composites import cuda_composites
from perflab.predicted.cuda.devices import cuda_means_cpu
from perflab.predicted.cuda.kernels import check_operators

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
        stack.enter_context(cuda_training())
        stack.enter_context(cuda_means_cpu(capability))
        yield


@contextmanager
def cuda_training() -> Iterator[None]:
    """Within the block, optimizers, ``clip_grad_norm_`` and ``GradScaler`` treat fake CPU tensors as CUDA tensors.

    ``GradScaler("cuda")`` is enabled, takes every step, and reports its initial scale.
    """
    scaler: Any = torch.amp.GradScaler
    initialise = scaler.__init__

    def initialise_here(self: Any, device: str = "cuda", *arguments: Any, **keywords: Any) -> None:
        initialise(self, "cpu" if device == "cuda" else device, *arguments, **keywords)

    def step(self: Any, optimizer: torch.optim.Optimizer, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return optimizer.step(*arguments, **keywords)

    def with_cpu(owner: Any, name: str) -> Replacement:
        usual = getattr(owner, name)
        return owner, name, lambda: [*usual(), "cpu"]

    lists = foreach_types()
    try:
        for types in lists:
            types.append(FakeTensor)
        replacements = [
            *(with_cpu(*one) for one in devices_of_foreach()),
            (scaler, "__init__", initialise_here),
            (*STEP_OF_GRAD_SCALER.target(), step),
            (scaler, "get_scale", initial_scale),
        ]
        with attributes_replaced(replacements):
            yield
    finally:
        for types in lists:
            types.remove(FakeTensor)
