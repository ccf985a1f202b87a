"""Makes the choices of a training step that depend on the device: multi-tensor optimizers, clipping, gradient scaling.

On CUDA an optimizer uses the ``_foreach_`` operators by default, if its parameters are plain tensors on a CUDA device
(``torch/optim/optimizer.py``, ``_default_to_fused_or_foreach``). Fake tensors are neither plain nor on a CUDA device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.amp
import torch.optim

from perflab.predicted.cuda.patching import attributes_replaced
from perflab.torch_internals import FakeTensor
from perflab.torch_internals.patched import devices_of_foreach, initial_scale, steps_of_grad_scaler
from perflab.torch_internals.tracing import foreach_types


@contextmanager
def cuda_training() -> Iterator[None]:
    """Within the block, optimizers, ``clip_grad_norm_`` and ``GradScaler`` treat fake CPU tensors as CUDA tensors."""
    lists = foreach_types()
    try:
        for types in lists:
            types.append(FakeTensor)
        devices = [(owner, name, _with_cpu(getattr(owner, name))) for owner, name in devices_of_foreach()]
        with attributes_replaced([*devices, *_grad_scaler()]):
            yield
    finally:
        for types in lists:
            types.remove(FakeTensor)


def _with_cpu(usual: Callable[[], list[str]]) -> Callable[[], list[str]]:
    return lambda: [*usual(), "cpu"]


def _grad_scaler() -> list[tuple[Any, str, Any]]:
    """Return replacements that enable ``GradScaler("cuda")``, let it take every step, and report its initial scale."""
    scaler: Any = torch.amp.GradScaler
    initialise = scaler.__init__

    def initialise_here(self: Any, device: str = "cuda", *arguments: Any, **keywords: Any) -> None:
        initialise(self, "cpu" if device == "cuda" else device, *arguments, **keywords)

    def step(self: Any, optimizer: torch.optim.Optimizer, state: Any, *arguments: Any, **keywords: Any) -> Any:
        return optimizer.step(*arguments, **keywords)

    return [
        (scaler, "__init__", initialise_here),
        (*steps_of_grad_scaler(), step),
        (scaler, "get_scale", initial_scale),
    ]
