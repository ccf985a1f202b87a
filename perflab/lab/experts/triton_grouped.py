"""Grouped products in Triton: each row times the matrix of its expert; forward and both gradients.

Shapes
    x, dy      (R, K), (R, N), rows in the order of their experts; any strides
    weight     (E, K, N), any strides; d_weight (E, K, N), contiguous
    ends       (E,) int32, where the rows of each expert end
    y, dx      (R, N), (R, K), contiguous; rows behind ends[-1] are never written

    y_r = x_r W[e],   dx_r = dy_r W[e]^T   for ends[e - 1] <= r < ends[e]        dW[e] = sum over its rows of x_r^T dy_r

A program has one tile of rows of one expert. How many tiles an expert needs the device alone knows, so the grid has as
many as could be needed, R / BLOCK_M + E, and each program finds its own by adding up those of the experts before; the
host waits for nothing. dx is the same kernel, with W's strides exchanged. Sums are float32.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from perflab.lab.attention.triton_pieces import dot, rounded
from perflab.lab.experts.products import GRADIENT, PRODUCT, gradient_flops, product_flops
from perflab.lab.kernels import operators
from perflab.lab.kernels.inputs import check_one_device, check_one_dtype, given
from perflab.lab.kernels.tiles import power_of_two
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared

# (rows or first width, columns, depth) of a tile by bytes of a number. IEEE float32 products are unrolled into
# registers, and larger ones spill.
_TILES = {2: (64, 128, 32), 4: (32, 32, 16)}


@triton.jit
def grouped_product_kernel(
    x_ptr, weight_ptr, ends_ptr, y_ptr, stride_xr, stride_xk, stride_we, stride_wk, stride_wn,
    num_experts, depth, width,
    EMULATE_BF16: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one tile of y, of rows of one expert; beyond the last expert's, nothing."""
    # Columns of one tile of rows stand together; one axis, since the y axis ends at 65,535.
    tiles_across = tl.cdiv(width, BLOCK_N)
    tile = tl.program_id(0) // tiles_across
    experts = tl.arange(0, BLOCK_E)
    is_one = experts < num_experts
    ends = tl.load(ends_ptr + experts, mask=is_one, other=0)
    begins = tl.load(ends_ptr + experts - 1, mask=is_one & (experts > 0), other=0)
    tiles = tl.where(is_one, tl.cdiv(ends - begins, BLOCK_M), 0)
    tile_ends = tl.cumsum(tiles, 0)
    expert = tl.sum((is_one & (tile_ends <= tile)).to(tl.int32), 0)
    if expert < num_experts:
        begin = tl.sum(tl.where(experts == expert, begins, 0), 0)
        end = tl.sum(tl.where(experts == expert, ends, 0), 0)
        first_tile = tl.sum(tl.where(experts == expert, tile_ends - tiles, 0), 0)
        rows = begin.to(tl.int64) + (tile - first_tile) * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = (tl.program_id(0) % tiles_across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
        row_inside = (rows < end)[:, None]
        column_inside = (columns < width)[None, :]
        matrix_ptr = weight_ptr + expert.to(tl.int64) * stride_we
        acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
        for start in tl.range(0, depth, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K).to(tl.int64)
            inner_inside = inner < depth
            x_ptrs = x_ptr + rows[:, None] * stride_xr + inner[None, :] * stride_xk
            x = tl.load(x_ptrs, mask=row_inside & inner_inside[None, :], other=0.0)
            w_ptrs = matrix_ptr + inner[:, None] * stride_wk + columns[None, :] * stride_wn
            w = tl.load(w_ptrs, mask=inner_inside[:, None] & column_inside, other=0.0)
            acc = dot(x, w, acc, EMULATE_BF16)
        y = rounded(acc, y_ptr.dtype.element_ty, EMULATE_BF16)
        tl.store(y_ptr + rows[:, None] * width + columns[None, :], y, mask=row_inside & column_inside)


@triton.jit
def grouped_gradient_kernel(
    x_ptr, dy_ptr, ends_ptr, d_weight_ptr, stride_xr, stride_xk, stride_yr, stride_yn, depth, width,
    EMULATE_BF16: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one tile of one expert's gradient, over all its rows; without rows, zeros."""
    tiles_across = tl.cdiv(width, BLOCK_N)
    tiles_a_matrix = tl.cdiv(depth, BLOCK_M) * tiles_across
    expert = tl.program_id(0) // tiles_a_matrix
    within = tl.program_id(0) % tiles_a_matrix
    lines = (within // tiles_across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = (within % tiles_across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    line_inside = (lines < depth)[:, None]
    column_inside = (columns < width)[None, :]
    begin = tl.load(ends_ptr + expert - 1, mask=expert > 0, other=0)
    end = tl.load(ends_ptr + expert)
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in tl.range(begin, end, BLOCK_K):
        rows = start + tl.arange(0, BLOCK_K).to(tl.int64)
        row_inside = rows < end
        x_ptrs = x_ptr + rows[None, :] * stride_xr + lines[:, None] * stride_xk
        x = tl.load(x_ptrs, mask=line_inside & row_inside[None, :], other=0.0)
        y_ptrs = dy_ptr + rows[:, None] * stride_yr + columns[None, :] * stride_yn
        dy = tl.load(y_ptrs, mask=row_inside[:, None] & column_inside, other=0.0)
        acc = dot(x, dy, acc, EMULATE_BF16)
    at = (expert.to(tl.int64) * depth + lines[:, None]) * width + columns[None, :]
    d_weight = rounded(acc, d_weight_ptr.dtype.element_ty, EMULATE_BF16)
    tl.store(d_weight_ptr + at, d_weight, mask=line_inside & column_inside)


def grouped_product_launch(x: Tensor, weight: Tensor, ends: Tensor, y: Tensor) -> Launch:
    """y (R, N), contiguous, from x (R, K) and weight (E, K, N)."""
    num_experts, depth, width = weight.shape
    block_m, block_n, block_k = _TILES[x.dtype.itemsize]
    arguments: dict[str, Any] = {
        "x_ptr": x, "weight_ptr": weight, "ends_ptr": ends, "y_ptr": y,
        "stride_xr": x.stride(0), "stride_xk": x.stride(1),
        "stride_we": weight.stride(0), "stride_wk": weight.stride(1), "stride_wn": weight.stride(2),
        "num_experts": num_experts, "depth": depth, "width": width,
        "EMULATE_BF16": emulates_bf16(x.dtype), "BLOCK_E": power_of_two(num_experts),
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
    }  # fmt: skip
    grid = ((triton.cdiv(x.shape[0], block_m) + num_experts) * triton.cdiv(width, block_n),)
    return Launch(grouped_product_kernel, grid, arguments, x.device)


def grouped_gradient_launch(x: Tensor, dy: Tensor, ends: Tensor, d_weight: Tensor) -> Launch:
    """d_weight (E, K, N), contiguous, from x (R, K) and dy (R, N)."""
    num_experts, depth, width = d_weight.shape
    block_m, block_n, block_k = _TILES[x.dtype.itemsize]
    arguments: dict[str, Any] = {
        "x_ptr": x, "dy_ptr": dy, "ends_ptr": ends, "d_weight_ptr": d_weight,
        "stride_xr": x.stride(0), "stride_xk": x.stride(1), "stride_yr": dy.stride(0), "stride_yn": dy.stride(1),
        "depth": depth, "width": width, "EMULATE_BF16": emulates_bf16(x.dtype),
        "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
    }  # fmt: skip
    grid = (num_experts * triton.cdiv(depth, block_m) * triton.cdiv(width, block_n),)
    return Launch(grouped_gradient_kernel, grid, arguments, x.device)


def _run(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    require_runnable(x.device, name="expert_product='triton'", instead="expert_product='grouped'")
    y = _empty(x, weight, ends)
    if y.numel():
        run_prepared(grouped_product_launch, x, weight, ends, y)
    return y


def _empty(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    _check(x=x, weight=weight, ends=ends)
    return torch.empty(x.shape[0], weight.shape[2], dtype=x.dtype, device=x.device)


def _run_gradient(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    d_weight = _empty_gradient(x, dy, ends)
    if d_weight.numel():
        run_prepared(grouped_gradient_launch, x, dy, ends, d_weight)
    return d_weight


def _empty_gradient(x: Tensor, dy: Tensor, ends: Tensor) -> Tensor:
    return torch.empty(ends.shape[0], x.shape[1], dy.shape[1], dtype=x.dtype, device=x.device)


def _check(*, x: Tensor, weight: Tensor, ends: Tensor) -> None:
    if x.ndim != 2 or weight.ndim != 3 or x.shape[1] != weight.shape[1] or ends.shape != weight.shape[:1]:
        raise ValueError(
            f"a grouped product wants x (R, K), weight (E, K, N) and ends (E,); got "
            f"{given(x=x, weight=weight, ends=ends)}"
        )
    if ends.dtype != torch.int32:
        raise TypeError(f"a grouped product wants int32 ends; got {given(ends=ends)}. Cast with .int()")
    check_one_dtype("expert_product='triton'", x=x, weight=weight)
    check_one_device("expert_product='triton'", x=x, ends=ends)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight, ends = ctx.saved_tensors
    dx = _once(dy, weight.mT, ends) if ctx.needs_input_grad[0] else None
    d_weight = _grouped_gradient(x, dy, ends) if ctx.needs_input_grad[1] else None
    return dx, d_weight, None


_once = operators.define("grouped_product_backward", PRODUCT, run=_run, fake=_empty)
_grouped_gradient = operators.define("grouped_gradient_backward", GRADIENT, run=_run_gradient, fake=_empty_gradient)
_grouped_product = operators.define(
    "grouped_product", PRODUCT, run=_run, fake=_empty, save=_save, gradient=_gradient
)  # fmt: skip
for _product in (_once, _grouped_product):
    register_flop_formula(_product.overloadpacket)(product_flops)
register_flop_formula(_grouped_gradient.overloadpacket)(gradient_flops)


def triton_grouped_product(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """y (R, N) for x (R, K), weight (E, K, N) and ends (E,) int32; rows behind ends[-1] are undefined, in dx too.

    float32, bfloat16 or float16, one dtype and one device; any strides. The same inputs give the same bits.
    Differentiable once. Raises ValueError for shapes and devices that do not fit, TypeError for dtypes, RuntimeError
    where neither the device nor Triton's interpreter can run it.
    """
    y: Tensor = _grouped_product(x, weight, ends)
    return y
