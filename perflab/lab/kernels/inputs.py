"""The requirements of the fused kernels on their inputs; leading dimensions become rows.

Shapes: x (..., D) is seen as (R, D), R being the product of the leading dimensions.

This module runs nothing, and needs no Triton.
"""

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def as_rows(x: Tensor) -> Tensor:
    """(..., D) as (R, D): a view wherever one stride can lead from row to row, and otherwise a copy.

    A view: anything contiguous, sliced or transposed in two dimensions, or expanded as a whole; a chunk of the
    last dimension. A copy: leading dimensions in another order than memory has them, `x.transpose(0, 1)` of
    (B, N, D), say.
    """
    return x.reshape(-1, x.shape[-1])


def check_one_dtype(name: str, **tensors: Tensor) -> None:
    """TypeError unless all have one dtype out of DTYPES, ValueError unless they are on one device."""
    dtypes = {x.dtype for x in tensors.values()}
    if len(dtypes) > 1 or not dtypes <= set(DTYPES):
        wanted = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise TypeError(
            f"{name} wants {' and '.join(tensors)} of one dtype out of {wanted}; got {given(**tensors)}. "
            f"Cast with .to(dtype)"
        )
    check_one_device(name, **tensors)


def check_one_device(name: str, **tensors: Tensor) -> None:
    """ValueError unless all are on one device."""
    if len({x.device for x in tensors.values()}) > 1:
        raise ValueError(
            f"{name} wants {' and '.join(tensors)} on one device; got {given(**tensors)}. Move them with .to(device)"
        )


def check_rows_and_weight(name: str, x: Tensor, weight: Tensor) -> None:
    """Refuse all but x (..., D) and weight (D,), D >= 1: ValueError for shapes and devices, TypeError for dtypes."""
    if x.dim() == 0 or x.shape[-1] == 0 or weight.dim() != 1 or weight.shape[0] != x.shape[-1]:
        raise ValueError(
            f"{name} wants x (..., D) and weight (D,) with D >= 1; got {given(x=x, weight=weight)}. "
            f"Reshape or transpose them until x's last dimension is the weight's"
        )
    check_one_dtype(name, x=x, weight=weight)


def given(**tensors: Tensor) -> str:
    """The tensors in words, for an error."""
    return ", ".join(
        f"{name} {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')} on {x.device}" for name, x in tensors.items()
    )
