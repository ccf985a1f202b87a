"""Root-mean-square normalisation in Triton, forward and backward.

Shapes
    x, y, dx, dy       (..., D), seen as (R, D); x and dy with any strides
    weight w, dw       (D,)
    rstd               (R,), float32: 1 / sqrt(mean_d x_d² + eps), saved for the backward
    partials           (P, D), float32

    y_rd = x_rd rstd_r w_d                                Zhang and Sennrich (2019), "Root Mean Square Layer
                                                          Normalization", equation 4
    with n_rd = x_rd rstd_r and g_rd = dy_rd w_d
    dx_rd = rstd_r (g_rd - n_rd mean_d(g_rd n_rd))        dw_d = sum_r dy_rd n_rd

Everything between a load and a store is float32: unlike models that round n before they multiply by w, the result
is rounded once. The mean is over the D columns that there are, not over the tile's.

A row that fits into one tile is read once, and the backward makes dx and partial sums of dw in one pass. A longer row
is walked over twice, and dw has a kernel of its own.
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

from perflab.lab.attention.triton_pieces import rounded
from perflab.lab.kernels import operators
from perflab.lab.kernels.inputs import as_rows, check_rows_and_weight
from perflab.lab.kernels.tiles import WALKING_COLUMNS, Tile, num_partials, row_tile
from perflab.lab.kernels.triton_partials import empty_partials, sum_partials_launch
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared

# The longest row that one tile holds. The backward has x, dy, the sum for dw and the weight in registers at once:
# 16 elements of each in every thread, at 16 warps, make 8192.
WHOLE_ROW_COLUMNS = 8192
_BACKWARD_ELEMENTS_PER_THREAD = 16


@triton.jit
def _load(ptr, rows, columns, stride_r, stride_d, inside):
    """A tile in float32; beyond the edges it reads as zero."""
    return tl.load(ptr + rows[:, None] * stride_r + columns[None, :] * stride_d, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def rms_norm_kernel(
    x_ptr, weight_ptr, y_ptr, rstd_ptr, stride_xr, stride_xd, stride_wd, num_rows, num_columns, eps,
    WHOLE_ROW: tl.constexpr, EMULATE_BF16: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_R rows."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    first_columns = tl.arange(0, BLOCK_D).to(tl.int64)
    inside_rows = (rows < num_rows)[:, None]
    x = _load(x_ptr, rows, first_columns, stride_xr, stride_xd, inside_rows & (first_columns < num_columns)[None, :])
    squares = x * x
    if not WHOLE_ROW:
        for start in range(BLOCK_D, num_columns, BLOCK_D):
            columns = start + first_columns
            x = _load(x_ptr, rows, columns, stride_xr, stride_xd, inside_rows & (columns < num_columns)[None, :])
            squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, 1) / num_columns + eps)
    tl.store(rstd_ptr + rows, rstd, mask=rows < num_rows)
    for start in range(0, BLOCK_D if WHOLE_ROW else num_columns, BLOCK_D):
        columns = start + first_columns
        inside = inside_rows & (columns < num_columns)[None, :]
        if not WHOLE_ROW:
            x = _load(x_ptr, rows, columns, stride_xr, stride_xd, inside)
        weight = tl.load(weight_ptr + columns * stride_wd, mask=columns < num_columns, other=0.0).to(tl.float32)
        y = rounded(x * rstd[:, None] * weight[None, :], y_ptr.dtype.element_ty, EMULATE_BF16)
        tl.store(y_ptr + rows[:, None] * num_columns + columns[None, :], y, mask=inside)


def rms_norm_launch(x: Tensor, weight: Tensor, y: Tensor, rstd: Tensor, eps: float) -> Launch:
    """The forward for x (R, D) and weight (D,) into y (R, D) and rstd (R,) float32, both contiguous."""
    num_rows, num_columns = x.shape
    tile = row_tile(num_columns, max_columns=_columns_at_once(num_columns))
    return Launch(
        rms_norm_kernel,
        grid=(triton.cdiv(num_rows, tile.rows),),
        arguments={
            "x_ptr": x,
            "weight_ptr": weight,
            "y_ptr": y,
            "rstd_ptr": rstd,
            "stride_xr": x.stride(0),
            "stride_xd": x.stride(1),
            "stride_wd": weight.stride(0),
            "num_rows": num_rows,
            "num_columns": num_columns,
            "eps": eps,
            "WHOLE_ROW": num_columns <= tile.columns,
            "EMULATE_BF16": emulates_bf16(x.dtype),
            "BLOCK_R": tile.rows,
            "BLOCK_D": tile.columns,
        },
        device=x.device,
        num_warps=tile.num_warps,
    )


@triton.jit
def rms_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, partials_ptr,
    stride_gr, stride_gd, stride_xr, stride_xd, stride_wd, num_rows, num_columns, num_partials,
    EMULATE_BF16: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Rows that fit into a tile. One program: every num_partials-th tile; dx of it, and one partial sum of dw."""
    columns = tl.arange(0, BLOCK_D).to(tl.int64)
    inside_columns = columns < num_columns
    weight = tl.load(weight_ptr + columns * stride_wd, mask=inside_columns, other=0.0).to(tl.float32)
    d_weight = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for tile in range(tl.program_id(0), tl.cdiv(num_rows, BLOCK_R), num_partials):
        rows = tile * BLOCK_R + tl.arange(0, BLOCK_R).to(tl.int64)
        inside = (rows < num_rows)[:, None] & inside_columns[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=rows < num_rows, other=0.0)[:, None]
        dy = _load(dy_ptr, rows, columns, stride_gr, stride_gd, inside)
        normed = _load(x_ptr, rows, columns, stride_xr, stride_xd, inside) * rstd
        scaled = dy * weight[None, :]
        mean = tl.sum(scaled * normed, 1)[:, None] / num_columns
        dx = rounded((scaled - normed * mean) * rstd, dx_ptr.dtype.element_ty, EMULATE_BF16)
        tl.store(dx_ptr + rows[:, None] * num_columns + columns[None, :], dx, mask=inside)
        d_weight += dy * normed
    partial_ptrs = partials_ptr + tl.program_id(0).to(tl.int64) * num_columns + columns
    tl.store(partial_ptrs, tl.sum(d_weight, 0), mask=inside_columns)


@triton.jit
def rms_norm_dx_kernel(
    dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr,
    stride_gr, stride_gd, stride_xr, stride_xd, stride_wd, num_rows, num_columns,
    EMULATE_BF16: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Longer rows. One program: dx of BLOCK_R rows, walking over them twice."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    inside_rows = (rows < num_rows)[:, None]
    rstd = tl.load(rstd_ptr + rows, mask=rows < num_rows, other=0.0)[:, None]
    products = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(0, num_columns, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D).to(tl.int64)
        inside = inside_rows & (columns < num_columns)[None, :]
        weight = tl.load(weight_ptr + columns * stride_wd, mask=columns < num_columns, other=0.0).to(tl.float32)
        dy = _load(dy_ptr, rows, columns, stride_gr, stride_gd, inside)
        products += dy * weight[None, :] * (_load(x_ptr, rows, columns, stride_xr, stride_xd, inside) * rstd)
    mean = tl.sum(products, 1)[:, None] / num_columns
    for start in range(0, num_columns, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D).to(tl.int64)
        inside = inside_rows & (columns < num_columns)[None, :]
        weight = tl.load(weight_ptr + columns * stride_wd, mask=columns < num_columns, other=0.0).to(tl.float32)
        scaled = _load(dy_ptr, rows, columns, stride_gr, stride_gd, inside) * weight[None, :]
        normed = _load(x_ptr, rows, columns, stride_xr, stride_xd, inside) * rstd
        dx = rounded((scaled - normed * mean) * rstd, dx_ptr.dtype.element_ty, EMULATE_BF16)
        tl.store(dx_ptr + rows[:, None] * num_columns + columns[None, :], dx, mask=inside)


@triton.jit
def rms_norm_d_weight_kernel(
    dy_ptr, x_ptr, rstd_ptr, partials_ptr,
    stride_gr, stride_gd, stride_xr, stride_xd, num_rows, num_columns, num_partials,
    BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Longer rows. One program: BLOCK_D columns of every num_partials-th tile of rows, one partial sum of dw."""
    partial = tl.program_id(0) % num_partials
    columns = (tl.program_id(0) // num_partials).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)
    d_weight = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for tile in range(partial, tl.cdiv(num_rows, BLOCK_R), num_partials):
        rows = tile * BLOCK_R + tl.arange(0, BLOCK_R).to(tl.int64)
        inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        rstd = tl.load(rstd_ptr + rows, mask=rows < num_rows, other=0.0)[:, None]
        dy = _load(dy_ptr, rows, columns, stride_gr, stride_gd, inside)
        d_weight += dy * (_load(x_ptr, rows, columns, stride_xr, stride_xd, inside) * rstd)
    partial_ptrs = partials_ptr + partial.to(tl.int64) * num_columns + columns
    tl.store(partial_ptrs, tl.sum(d_weight, 0), mask=columns < num_columns)


def rms_norm_backward_launches(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, dx: Tensor, partials: Tensor
) -> tuple[Launch, ...]:
    """The launches that make dx (R, D) and partials (P, D) of dy, x (R, D), weight (D,) and rstd (R,), in their order.

    One launch where a tile holds a row, else two. P is `backward_partials(R, D)`.
    """
    num_rows, num_columns = x.shape
    tile = _backward_tile(num_columns)
    tensors = {"dy_ptr": dy, "x_ptr": x, "rstd_ptr": rstd}
    strides = {"stride_gr": dy.stride(0), "stride_gd": dy.stride(1), "stride_xr": x.stride(0), "stride_xd": x.stride(1)}
    sizes = {"num_rows": num_rows, "num_columns": num_columns, "BLOCK_R": tile.rows, "BLOCK_D": tile.columns}
    of_dx = {
        "weight_ptr": weight,
        "dx_ptr": dx,
        "stride_wd": weight.stride(0),
        "EMULATE_BF16": emulates_bf16(x.dtype),
    }
    of_d_weight = {"partials_ptr": partials, "num_partials": partials.shape[0]}
    shared = tensors | strides | sizes
    if num_columns <= tile.columns:
        both = shared | of_dx | of_d_weight
        grid = (partials.shape[0],)
        return (Launch(rms_norm_backward_kernel, grid, both, device=x.device, num_warps=tile.num_warps),)
    grid = (triton.cdiv(num_rows, tile.rows),)
    partial_grid = (partials.shape[0] * triton.cdiv(num_columns, tile.columns),)
    return (
        Launch(rms_norm_dx_kernel, grid, shared | of_dx, device=x.device, num_warps=tile.num_warps),
        Launch(rms_norm_d_weight_kernel, partial_grid, shared | of_d_weight, device=x.device, num_warps=tile.num_warps),
    )


def backward_partials(num_rows: int, num_columns: int) -> int:
    """Return the number of partial sums of dw."""
    return num_partials(num_rows, _backward_tile(num_columns).rows)


def _backward_tile(num_columns: int) -> Tile:
    return row_tile(num_columns, max_columns=_columns_at_once(num_columns), per_thread=_BACKWARD_ELEMENTS_PER_THREAD)


def _columns_at_once(num_columns: int) -> int:
    return WHOLE_ROW_COLUMNS if num_columns <= WHOLE_ROW_COLUMNS else WALKING_COLUMNS


def _check(x: Tensor, weight: Tensor, eps: float) -> None:
    check_rows_and_weight("rms_norm", x, weight)
    if eps < 0.0:
        raise ValueError(f"rms_norm wants eps >= 0, got {eps}; 1e-6 and 1e-5 are usual")


def _run(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    require_runnable(x.device, name="rms_norm", instead="perflab.lab.kernels.reference.plain_rms_norm")
    y, rstd = _empty(x, weight, eps)
    rows = as_rows(x)
    run_prepared(rms_norm_launch, rows, weight, y.view(rows.shape), rstd, eps)
    return y, rstd


def _empty(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    _check(x, weight, eps)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return y, torch.empty(x.shape[:-1].numel(), dtype=torch.float32, device=x.device)


def _run_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    rows = as_rows(x)
    dx, d_weight = _empty_gradients(dy, x, weight, rstd)
    partials = empty_partials(backward_partials(*rows.shape), rows.shape[1], x.device)
    for launch in rms_norm_backward_launches(as_rows(dy), rows, weight, rstd, dx.view(rows.shape), partials):
        launch()
    run_prepared(sum_partials_launch, partials, d_weight)
    return dx, d_weight


def _empty_gradients(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    d_weight = torch.empty(weight.shape, dtype=weight.dtype, device=x.device)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), d_weight


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    _, rstd = output
    ctx.mark_non_differentiable(rstd)
    ctx.save_for_backward(x, weight, rstd)


def _gradient(ctx: Any, dy: Tensor, d_rstd: Tensor) -> tuple[Tensor, Tensor, None]:
    dx, d_weight = _rms_norm_backward(dy, *ctx.saved_tensors)
    return dx, d_weight, None


_rms_norm_backward = operators.define(
    "rms_norm_backward",
    "(Tensor dy, Tensor x, Tensor weight, Tensor rstd) -> (Tensor, Tensor)",
    run=_run_backward,
    fake=_empty_gradients,
)
_rms_norm = operators.define(
    "rms_norm",
    "(Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    run=_run,
    fake=_empty,
    save=_save,
    gradient=_gradient,
    autocast=torch.float32,
)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """y = x / sqrt(mean_d x_d² + eps) * w, for x (..., D) and weight (D,); returns x's shape and dtype, contiguous.

    float32, bfloat16 or float16, one dtype and one device; any strides, any number of rows, D >= 1, eps >= 0. A row
    of zeros gives zeros if eps > 0, and NaN if eps = 0, as in PyTorch; a row whose squares add up to more than
    float32 holds, 3e38, gives zeros. The same inputs give the same bits, gradients included. Differentiable once.
    Under autocast it runs in float32 and returns it, as PyTorch's own does on CUDA.

    Raises ValueError for shapes, devices and eps that do not fit, TypeError for dtypes, RuntimeError where neither
    the device nor Triton's interpreter can run it, and for a second derivative.
    """
    y: Tensor = _rms_norm(x, weight, eps)[0]
    return y
