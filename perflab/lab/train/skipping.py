"""A step that must not be taken: its loss is not finite, or its gradient where that is looked at.

    found = any value that was watched since the last update is infinite or NaN
    found      weights, moments and AdamW's step counts stay as they are; one more step is counted as skipped
    not found  AdamW's step

    watched    the loss of every micro-batch; with `max_grad_norm` the norm of the gradient; with loss scaling (fp16)
               whether a gradient overflowed

One bad batch is forgotten that way, where one NaN in the weights never is. But without clipping or loss scaling the
loss alone is watched: a finite loss whose gradient is not finite spoils the weights, and every later step is skipped,
since no loss is finite any more. To look at the gradient is to read all of it; `max_grad_norm=1e30` does so, and clips
nothing that could be trained with.

Two ways to know. `WatchOnHost` reads each value, which on a GPU waits until the device has come so far; loops over
parameters have to know before they launch. `WatchOnDevice` keeps the answer where the values are: PyTorch's fused AdamW
reads `found_inf` there and launches a kernel that does nothing (the protocol of `torch.amp.GradScaler`), so the host
never waits.

`Unwatched` is plain PyTorch: nothing is looked at, no step is skipped, and the host waits for nothing.

Of several processes that train together (`perflab.lab.parallel`) all skip a step that one of them has to skip: its
gradient is part of everybody's mean.

A fake tensor (`torch._subclasses.FakeTensorMode`), with which shapes and memory are predicted and nothing is computed,
has no value to be read: it counts as finite, and fused AdamW keeps its answer on the device, as it would on a GPU.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

if TYPE_CHECKING:
    from perflab.lab.parallel.exchange import Exchange


class WatchOnHost:
    """Reads at once whether a value is finite."""

    def __init__(self) -> None:
        self._found = False
        self._skipped = 0

    def watch(self, value: Tensor) -> None:
        """Look at a scalar tensor: the loss, or the norm of the gradient."""
        self._found |= has_numbers(value) and not math.isfinite(value.item())

    def overflow(self, found_inf: Tensor) -> None:
        """Take over from loss scaling that gradients overflowed: a scalar, 0 or 1."""
        self._found |= has_numbers(found_inf) and bool(found_inf.item())

    def agree(self, exchange: Exchange, device: torch.device) -> None:
        """Skip the step in all processes if any of them has found a value that is not finite."""
        found = torch.tensor(float(self._found), device=device)
        exchange.agree(found)
        self.overflow(found)

    def update(self, adamw: torch.optim.AdamW) -> None:
        """Take the step or skip it, and begin the next."""
        if self._found:
            self._skipped += 1
        else:
            adamw.step()
        self._found = False

    @property
    def skipped(self) -> int:
        """Steps skipped so far."""
        return self._skipped


class WatchOnDevice:
    """Keeps on the device whether all values were finite; for fused AdamW only."""

    def __init__(self, device: torch.device) -> None:
        self._found = torch.zeros((), device=device)  # 0 or 1 in float32: what the fused kernel compares with 1
        self._skipped = torch.zeros((), device=device, dtype=torch.float64)  # whole numbers, exact up to 2^53

    @torch.no_grad()
    def watch(self, value: Tensor) -> None:
        """Look at a scalar tensor: the loss, or the norm of the gradient."""
        self._found.masked_fill_(~torch.isfinite(value), 1.0)

    def overflow(self, found_inf: Tensor) -> None:
        """Take over from loss scaling that gradients overflowed: a scalar, 0 or 1."""
        torch.maximum(self._found, found_inf, out=self._found)

    def agree(self, exchange: Exchange, device: torch.device) -> None:
        """Skip the step in all processes if any of them has found a value that is not finite."""
        exchange.agree(self._found)

    def update(self, adamw: torch.optim.AdamW) -> None:
        """Let the kernel take the step or skip it, and begin the next."""
        adamw.found_inf = self._found  # type: ignore[attr-defined]
        try:
            adamw.step()
        finally:
            del adamw.found_inf  # type: ignore[attr-defined]
        self._skipped += self._found
        self._found.zero_()

    @property
    def skipped(self) -> int:
        """Steps skipped so far. Waits for the device."""
        return int(self._skipped.item())


class Unwatched:
    """Looks at nothing, and takes every step."""

    skipped = 0

    def watch(self, value: Tensor) -> None:
        """Let it be what it is."""

    def overflow(self, found_inf: Tensor) -> NoReturn:
        """Refuse loss scaling, whose scaled gradients overflow now and then and need steps to be skipped.

        Raises:
            RuntimeError: always.
        """
        raise RuntimeError("loss scaling has to skip steps that overflow; give skip_non_finite=True")

    def agree(self, exchange: Exchange, device: torch.device) -> None:
        """Skip nothing in any process."""

    def update(self, adamw: torch.optim.AdamW) -> None:
        """Take the step."""
        adamw.step()


Watch = WatchOnHost | WatchOnDevice | Unwatched


def watch_for(optimizer: str, parameter: Tensor) -> Watch:
    """Return a watch on the device where that saves a wait, else one on the host, which has a CPU's values."""
    if optimizer == "fused" and (parameter.device.type != "cpu" or not has_numbers(parameter)):
        return WatchOnDevice(parameter.device)
    return WatchOnHost()


def has_numbers(tensor: Tensor) -> bool:
    """Whether there is a value to be read: a fake tensor has none."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is None or not isinstance(tensor, fake.FakeTensor)
