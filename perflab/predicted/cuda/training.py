"""What a training step chooses by device: multi-tensor optimizers, clipping, gradient scaling.

On CUDA an optimizer that is not told otherwise takes the ``_foreach_`` operators, for parameters that are plain tensors
on a CUDA device (``torch/optim/optimizer.py``, ``_default_to_fused_or_foreach``). Fake tensors are neither.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.amp
import torch.optim
import torch.utils._foreach_utils as foreach_utils
from torch._subclasses.fake_tensor import FakeTensor

from perflab.predicted.cuda.patching import attributes_replaced


@contextmanager
def cuda_training() -> Iterator[None]:
    """Within, optimizers, ``clip_grad_norm_`` and ``GradScaler`` treat fake tensors on the CPU as tensors on CUDA."""
    lists = _lists_of_types()
    try:
        for types in lists:
            types.append(FakeTensor)
        with attributes_replaced([*_supported_devices(), *_grad_scaler()]):
            yield
    finally:
        for types in lists:
            types.remove(FakeTensor)


def _lists_of_types() -> list[list[type]]:
    """Each is a list that is asked whether it holds a tensor's type."""
    name = "_foreach_supported_types"
    found = [getattr(owner, name, None) for owner in (foreach_utils, sys.modules.get("torch.optim.optimizer"))]
    return [one for one in found if isinstance(one, list)]


def _supported_devices() -> Iterator[tuple[Any, str, Any]]:
    name = "_get_foreach_kernels_supported_devices"
    usual = getattr(foreach_utils, name, None)
    if usual is None:
        return
    # By name in every module that has imported it.
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith(("torch.optim", "torch.utils._foreach_utils")) and hasattr(module, name):
            yield module, name, lambda: [*usual(), "cpu"]


def _grad_scaler() -> list[tuple[Any, str, Any]]:
    """``GradScaler`` of ``"cuda"`` is enabled, takes every step, and knows its scale only as it began."""
    scaler: Any = torch.amp.GradScaler
    initialise = scaler.__init__

    def initialise_here(self: Any, device: str = "cuda", *arguments: Any, **keywords: Any) -> None:
        initialise(self, "cpu" if device == "cuda" else device, *arguments, **keywords)

    def step(self: Any, optimizer: torch.optim.Optimizer, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return optimizer.step(*arguments, **keywords)

    def scale(self: Any) -> float:
        return float(self._init_scale) if self._enabled else 1.0

    return [(scaler, "__init__", initialise_here), (scaler, "_maybe_opt_step", step), (scaler, "get_scale", scale)]
