"""Dtypes, the layouts in which tensors reach a kernel in practice, and upstream gradients in them.

Shapes: any; rows are the last dimension. A tensor that is too small for a layout stays as it is. An expanded tensor has
other values: its first slice, over and over.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from perflab.correctness.verify import expanded_ones, random_upstream

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
UPSTREAMS = ("", "dones", "dtransposed", "doffset", "dcolumnwise")


def contiguous(x: Tensor) -> Tensor:
    """Return `x` in the layout of torch.empty."""
    return x.contiguous()


def transposed(x: Tensor) -> Tensor:
    """Return `x` in the layout that a projection leaves: (B, N, H, D) in memory, seen as (B, H, N, D)."""
    return x.transpose(1, 2).contiguous().transpose(1, 2) if x.dim() > 2 else x.contiguous()


def offset(x: Tensor) -> Tensor:
    """Return `x` as a view of a larger tensor, with an offset, and with gaps after each row and head."""
    *outer, rows, columns = (1, *x.shape) if x.dim() < 2 else x.shape
    larger = torch.zeros(*outer, rows + 3, columns + 5, dtype=x.dtype, device=x.device)
    view = larger[..., 2:-1, 4:-1].view(x.shape) if x.dim() < 2 else larger[..., 2:-1, 4:-1]
    view.copy_(x)
    return view


def expanded(x: Tensor) -> Tensor:
    """Return the first head of `x` for all heads, with stride 0; if there is one head, the first batch for all."""
    if x.dim() < 2:
        return x.contiguous()
    dimension = 1 if x.dim() > 2 and x.shape[1] > 1 else 0
    return x.narrow(dimension, 0, 1).expand(x.shape)


def columnwise(x: Tensor) -> Tensor:
    """Return `x` with its last two dimensions exchanged in memory: columns are contiguous."""
    return x.mT.contiguous().mT if x.dim() > 1 else x.contiguous()


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "": contiguous,
    "transposed": transposed,
    "offset": offset,
    "expanded": expanded,
    "columnwise": columnwise,
}


def upstream_in(layout: str) -> Callable[[Tensor, int], Tensor]:
    """Return upstream(output, seed) -> a gradient for the output.

    The layout is `dones`, the gradient of `output.sum()`; or "d" and the name of a layout, for a random gradient.
    """
    if layout == "dones":
        return expanded_ones
    return lambda output, seed: LAYOUTS[layout.removeprefix("d")](random_upstream(output, seed))
