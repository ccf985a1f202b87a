"""The selective scan's kernels in the configurations that matter, as launches on `meta` tensors: nothing is run.

Shapes: x (8, 2048, 4096), as a mixer of width 2048 has it; N = 16 numbers of state a channel.

For whoever compiles ahead of time. This module imports Triton.
"""

from typing import Any

import torch
from torch import Tensor

from perflab.lab.launch import Launch
from perflab.lab.scan.triton_scan import kept_shape, part_shapes, scan_backward_launch, scan_launch, scratch_shape

_BATCH, _LENGTH, _CHANNELS, _STATES = 8, 2048, 4096, 16


def scan_launches(short: str, dtype: torch.dtype) -> dict[str, Launch]:
    """Name -> launch: forward and backward in `dtype`, plain as a mixer calls them, and with a state and boundaries."""

    def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    x, b = meta(_BATCH, _LENGTH, _CHANNELS, dtype=dtype), meta(_BATCH, _LENGTH, _STATES, dtype=dtype)
    dt, a, d = meta(_BATCH, _LENGTH, _CHANNELS), meta(_CHANNELS, _STATES), meta(_CHANNELS)
    state = meta(_BATCH, _CHANNELS, _STATES)
    kept, starts = meta(*kept_shape(x, a)), meta(_BATCH, _LENGTH, dtype=torch.uint8)
    parts = {name: meta(*shape) for name, shape in part_shapes(x, a).items()}
    gradients = {"dx": x, "d_dt": dt, "dz": x, "d_state": state, **parts}
    found: dict[str, Launch] = {}
    configurations: dict[str, tuple[Any, ...]] = {"mixer": (None, None), "packed": (state, starts)}
    for name, (given, begins) in configurations.items():
        inputs = (x, dt, a, b, b, d, x, given, begins)
        found[f"selective_scan-{short}-{name}"] = scan_launch(inputs, x, kept, state)
        found[f"selective_scan_backward-{short}-{name}"] = scan_backward_launch(
            inputs, kept, meta(*scratch_shape(x, a)), x, given, gradients
        )
    return found
