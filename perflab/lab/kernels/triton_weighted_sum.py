"""A weighted row sum in Triton, forward and backward: the worked example. Read it from top to bottom.

    y_r = sum_d w_d x_rd          dx_rd = w_d dy_r          dw_d = sum_r dy_r x_rd

Shapes
    x, dx              (..., D), seen as (R, D): R rows of D columns; any strides
    weight w, dw       (D,)
    y, dy              (...), seen as (R,)
    partials           (P, D), float32: one row for each program of the backward
    all                float32, bfloat16 or float16; sums and products are float32

**Programs and tiles.** A Triton kernel is the code of one *program*; thousands of them run at once, each knowing
only its number. A program works on a *tile*, a small block of the matrix whose sides are powers of two. Tiles rather
than single elements, because memory comes in lines of 128 bytes, and because what a tile shares (here the weight) is
loaded once for all its rows. Tiles rather than whole rows, because a row may be longer than a program has registers.

**Masks.** R and D are seldom powers of two, so tiles stick out over the edges. What lies beyond must not be read (it
is somebody else's memory, or nobody's), must not count in a sum, and must not be written. The mask says which
elements are inside; `other` is what the rest reads as. For a sum that has to be 0. Forgetting it often goes unnoticed:
freshly allocated memory is full of zeros. `tests/correctness/wrong_fused_kernels.py` forgets it on purpose.

**Precision.** 16-bit inputs are widened as they are loaded, and results are rounded once, as they are stored. A sum
kept in bfloat16 stops growing at 256 times its terms.

**Backward.** dx is one product for each element. dw is a sum over all rows, that is over all programs: each writes
its own partial sum, and a second kernel adds these up (`triton_partials` says why). Both come out of one pass
over x. Nothing is saved but the inputs.

**For PyTorch** the two become operators (`operators` says how), and a formula that leads from one to the other: so
autograd, torch.compile, fake tensors and autocast treat them as they do its own.

docs/writing-a-kernel.md goes on from here: proving the kernel, timing it, and what it compiles to.
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

from perflab.lab.attention.triton_pieces import rounded
from perflab.lab.kernels import operators
from perflab.lab.kernels.inputs import as_rows, check_rows_and_weight
from perflab.lab.kernels.tiles import Tile, num_partials, row_tile
from perflab.lab.kernels.triton_partials import empty_partials, sum_partials_launch
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared

# --- Forward -----------------------------------------------------------------------------------------------------


@triton.jit
def weighted_sum_kernel(
    x_ptr, weight_ptr, y_ptr, stride_xr, stride_xd, stride_wd, num_rows, num_columns,
    EMULATE_BF16: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: y of BLOCK_R rows, walking along them BLOCK_D columns at a time."""
    # Which rows? 64 bit: the offset of a row, its number times the stride, may pass 2**31 elements.
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    # A whole tile of sums, one for each lane. Adding up across lanes needs the threads to talk to each other,
    # so that is left for the end, once, instead of being done in each round.
    sums = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(0, num_columns, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D).to(tl.int64)
        inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        # A matrix of pointers: first row + row number * stride + column number * stride.
        x = tl.load(x_ptr + rows[:, None] * stride_xr + columns[None, :] * stride_xd, mask=inside, other=0.0)
        weight = tl.load(weight_ptr + columns * stride_wd, mask=columns < num_columns, other=0.0)
        sums += x.to(tl.float32) * weight.to(tl.float32)[None, :]
    y = rounded(tl.sum(sums, 1), y_ptr.dtype.element_ty, EMULATE_BF16)
    tl.store(y_ptr + rows, y, mask=rows < num_rows)


def weighted_sum_launch(x: Tensor, weight: Tensor, y: Tensor) -> Launch:
    """The forward for x (R, D), weight (D,) and y (R,), the last contiguous.

    A launch is data: called, it runs; with tensors on `meta` it can be compiled without a GPU.
    """
    num_rows, num_columns = x.shape
    tile = row_tile(num_columns)
    return Launch(
        weighted_sum_kernel,
        grid=(triton.cdiv(num_rows, tile.rows),),
        arguments={
            "x_ptr": x,
            "weight_ptr": weight,
            "y_ptr": y,
            "stride_xr": x.stride(0),
            "stride_xd": x.stride(1),
            "stride_wd": weight.stride(0),
            "num_rows": num_rows,
            "num_columns": num_columns,
            "EMULATE_BF16": emulates_bf16(x.dtype),
            "BLOCK_R": tile.rows,
            "BLOCK_D": tile.columns,
        },
        device=x.device,
        num_warps=tile.num_warps,
    )


# --- Backward ----------------------------------------------------------------------------------------------------


@triton.jit
def weighted_sum_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, dx_ptr, partials_ptr,
    stride_gr, stride_xr, stride_xd, stride_wd, num_rows, num_columns, num_partials,
    EMULATE_BF16: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_D columns of every num_partials-th tile of rows. Writes dx there, and one partial of dw."""
    partial = tl.program_id(0) % num_partials
    columns = (tl.program_id(0) // num_partials).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside_columns = columns < num_columns
    weight = tl.load(weight_ptr + columns * stride_wd, mask=inside_columns, other=0.0).to(tl.float32)
    d_weight = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for tile in range(partial, tl.cdiv(num_rows, BLOCK_R), num_partials):
        rows = tile * BLOCK_R + tl.arange(0, BLOCK_R).to(tl.int64)
        inside = (rows < num_rows)[:, None] & inside_columns[None, :]
        # The stride may be 0: the gradient of y.sum() is a single element, seen R times.
        dy = tl.load(dy_ptr + rows * stride_gr, mask=rows < num_rows, other=0.0).to(tl.float32)[:, None]
        x = tl.load(x_ptr + rows[:, None] * stride_xr + columns[None, :] * stride_xd, mask=inside, other=0.0)
        dx = rounded(dy * weight[None, :], dx_ptr.dtype.element_ty, EMULATE_BF16)
        tl.store(dx_ptr + rows[:, None] * num_columns + columns[None, :], dx, mask=inside)
        d_weight += dy * x.to(tl.float32)
    partial_ptrs = partials_ptr + partial.to(tl.int64) * num_columns + columns
    tl.store(partial_ptrs, tl.sum(d_weight, 0), mask=inside_columns)


def weighted_sum_backward_launch(dy: Tensor, x: Tensor, weight: Tensor, dx: Tensor, partials: Tensor) -> Launch:
    """The backward for dy (R,), x (R, D) and weight (D,) into dx (R, D) and partials (P, D), both contiguous.

    P is `backward_partials(R, D)`.
    """
    num_rows, num_columns = x.shape
    tile = row_tile(num_columns)
    return Launch(
        weighted_sum_backward_kernel,
        grid=(partials.shape[0] * triton.cdiv(num_columns, tile.columns),),
        arguments={
            "dy_ptr": dy,
            "x_ptr": x,
            "weight_ptr": weight,
            "dx_ptr": dx,
            "partials_ptr": partials,
            "stride_gr": dy.stride(0),
            "stride_xr": x.stride(0),
            "stride_xd": x.stride(1),
            "stride_wd": weight.stride(0),
            "num_rows": num_rows,
            "num_columns": num_columns,
            "num_partials": partials.shape[0],
            "EMULATE_BF16": emulates_bf16(x.dtype),
            "BLOCK_R": tile.rows,
            "BLOCK_D": tile.columns,
        },
        device=x.device,
        num_warps=tile.num_warps,
    )


def backward_partials(num_rows: int, num_columns: int) -> int:
    """Return the number of partial sums of dw."""
    tile: Tile = row_tile(num_columns)
    return num_partials(num_rows, tile.rows)


# --- For PyTorch -------------------------------------------------------------------------------------------------


# What the results look like, and room for them. With fake tensors that is all there is; a run fills it.
def _empty(x: Tensor, weight: Tensor) -> Tensor:
    check_rows_and_weight("weighted_sum", x, weight)
    return torch.empty(x.shape[:-1], dtype=x.dtype, device=x.device)


def _run(x: Tensor, weight: Tensor) -> Tensor:
    require_runnable(x.device, name="weighted_sum", instead="perflab.lab.kernels.reference.plain_weighted_sum")
    y = _empty(x, weight)
    run_prepared(weighted_sum_launch, as_rows(x), weight, y.view(-1))
    return y


def _empty_gradients(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    d_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), d_weight


# Only the gradient below calls it, with what the forward has checked.
def _run_backward(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    rows = as_rows(x)
    dx, d_weight = _empty_gradients(dy, x, weight)
    partials = empty_partials(backward_partials(*rows.shape), rows.shape[1], x.device)
    run_prepared(weighted_sum_backward_launch, dy.reshape(-1), rows, weight, dx.view(rows.shape), partials)
    run_prepared(sum_partials_launch, partials, d_weight)
    return dx, d_weight


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
    dx, d_weight = _weighted_sum_backward(dy, *ctx.saved_tensors)
    return dx, d_weight


_weighted_sum_backward = operators.define(
    "weighted_sum_backward",
    "(Tensor dy, Tensor x, Tensor weight) -> (Tensor, Tensor)",
    run=_run_backward,
    fake=_empty_gradients,
)
_weighted_sum = operators.define(
    "weighted_sum",
    "(Tensor x, Tensor weight) -> Tensor",
    run=_run,
    fake=_empty,
    save=_save,
    gradient=_gradient,
    autocast=torch.float32,
)


@register_flop_formula(torch.ops.perflab.weighted_sum)
def _flops(x_shape: Any, weight_shape: Any, *_: Any, **__: Any) -> int:
    """2 R D: what PyTorch counts for the product of an (R, D) with a (D, 1) matrix."""
    return 2 * int(torch.Size(x_shape).numel())


@register_flop_formula(torch.ops.perflab.weighted_sum_backward)
def _backward_flops(dy_shape: Any, x_shape: Any, *_: Any, **__: Any) -> int:
    """4 R D, as for the two products that are its gradients."""
    return 4 * int(torch.Size(x_shape).numel())


def weighted_sum(x: Tensor, weight: Tensor) -> Tensor:
    """y = sum_d w_d x_d, for x (..., D) and weight (D,); returns (...), in their dtype, contiguous.

    float32, bfloat16 or float16, one dtype and one device; any strides, any number of rows, D >= 1. Sums are
    float32, and the same inputs give the same bits, gradients included. Differentiable once. Under autocast it runs
    in float32, as `(x * weight).sum(-1)` does on CUDA.

    Raises ValueError for shapes and devices that do not fit, TypeError for dtypes, RuntimeError where neither the
    device nor Triton's interpreter can run it, and for a second derivative.
    """
    y: Tensor = _weighted_sum(x, weight)
    return y
