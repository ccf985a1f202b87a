"""Grouped products: each row times the matrix of its expert, rows in the order of experts.

R rows, E experts, K and N widths.

    y_r = x_r W[e]    for ends[e - 1] <= r < ends[e], (R, K) and (E, K, N) -> (R, N)
    dx  = the same with dy and W transposed          dW[e] = sum over its rows of x_r^T dy_r

Rows of y and dx behind `ends[-1]` are undefined. dW of an expert without rows is zero: PyTorch's own product has left
there what was in memory (pytorch#172439), so here it is zeroed whatever that does.

    loop      an expert at a time, by plain products: the reference, in any dtype; waits for the device
    grouped   `torch.nn.functional.grouped_mm`, one kernel; float32, bfloat16 and float16
    triton    `triton_grouped.py`, the same dtypes
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from perflab.lab.attention.inputs import cast_as_autocast_does
from perflab.lab.kernels import operators

# Public in torch 2.13; before that with the same arguments, under a private name.
grouped_mm: Any = getattr(F, "grouped_mm", None) or getattr(torch, "_grouped_mm", None)


def grouped_product(x: Tensor, weight: Tensor, ends: Tensor, how: str) -> Tensor:
    """y (R, N) for x (R, K), weight (E, K, N) and ends (E,) int32, by one of `ExpertConfig.expert_product`.

    Under autocast x and weight are cast as for any product. Differentiable once.

    Raises:
        ValueError: shapes or dtypes that do not fit, or an unknown way.
        ImportError, RuntimeError: Triton is not installed, or cannot run on the device.
    """
    if x.ndim != 2 or weight.ndim != 3 or x.shape[1] != weight.shape[1] or ends.shape != weight.shape[:1]:
        raise ValueError(
            f"a grouped product of x {tuple(x.shape)}, weight {tuple(weight.shape)} and ends {tuple(ends.shape)}: "
            f"wanted (R, K), (E, K, N) and (E,)"
        )
    x, weight = cast_as_autocast_does(x, weight)
    if how == "loop":
        return _by_loop(x, weight, ends)
    if how == "grouped":
        y: Tensor = _grouped(x, weight, ends)
        return y
    if how == "triton":
        from perflab.lab.experts.triton_grouped import triton_grouped_product

        return triton_grouped_product(x, weight, ends)
    raise ValueError(f"expert_product={how!r}: wanted one of loop, grouped, triton")


def _by_loop(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    bounds = [0, *ends.tolist()]
    parts = [x[start:end] @ weight[e] for e, (start, end) in enumerate(pairwise(bounds))]
    return torch.cat([*parts, x.new_zeros(len(x) - bounds[-1], weight.shape[2])])


def _run(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    _check_grouped(x)
    y: Tensor = grouped_mm(x, weight, offs=ends)
    return y


def _empty(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[2])


def _run_gradient(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    d_weight: Tensor = grouped_mm(x.mT, dy, offs=ends)
    return d_weight.masked_fill_(empty_groups(ends)[:, None, None], 0.0)


def _empty_gradient(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    return x.new_empty(ends.shape[0], x.shape[1], dy.shape[1])


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    dy = dy.contiguous()
    dx = _once(dy, weight.mT, ends) if ctx.needs_input_grad[0] else None
    d_weight = _grouped_gradient(x, dy, ends) if ctx.needs_input_grad[1] else None
    return dx, d_weight, None


def product_flops(x_shape: Sequence[int], weight_shape: Sequence[int], *rest: Any, **others: Any) -> int:
    """Operations of a product, as PyTorch's counter asks for them: every row counts, whoever it is."""
    return 2 * x_shape[0] * weight_shape[1] * weight_shape[2]


def gradient_flops(x_shape: Sequence[int], dy_shape: Sequence[int], *rest: Any, **others: Any) -> int:
    """Operations of the gradient of all matrices."""
    return 2 * x_shape[0] * x_shape[1] * dy_shape[1]


# An operator of ours, since on fake tensors PyTorch's asks for what CUDA's kernel takes, bfloat16 alone.
PRODUCT = "(Tensor x, Tensor weight, Tensor ends) -> Tensor"
GRADIENT = "(Tensor x, Tensor dy, Tensor ends) -> Tensor"
_once = operators.define("grouped_mm_backward", PRODUCT, run=_run, fake=_empty)
_grouped_gradient = operators.define("grouped_mm_gradient_backward", GRADIENT, run=_run_gradient, fake=_empty_gradient)
_grouped = operators.define("grouped_mm", PRODUCT, run=_run, fake=_empty, save=_save, gradient=_gradient)
for _product in (_once, _grouped):
    register_flop_formula(_product.overloadpacket)(product_flops)
register_flop_formula(_grouped_gradient.overloadpacket)(gradient_flops)


def empty_groups(ends: Tensor) -> Tensor:
    """(E,) whether an expert has no row."""
    return torch.diff(ends, prepend=ends.new_zeros(1)) == 0


def _check_grouped(x: Tensor) -> None:
    if grouped_mm is None:
        raise RuntimeError(
            f"expert_product='grouped' needs torch.nn.functional.grouped_mm, which PyTorch {torch.__version__} has "
            f"not; install a newer one, or give expert_product='loop' or 'triton'"
        )
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(
            f"expert_product='grouped' in {x.dtype}: wanted float32, bfloat16 or float16; give expert_product='loop'"
        )
