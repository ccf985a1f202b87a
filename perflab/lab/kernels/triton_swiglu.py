"""SwiGLU's gate in Triton, forward and backward: one kernel where PyTorch has two and holds a tensor between them.

Shapes
    gate, up, dy       (..., D), seen as (R, D); any strides: gate and up are often halves of one tensor
    y, d_gate, d_up    (..., D), contiguous

    s = 1 / (1 + exp(-gate))        y = gate s up            Shazeer (2020), "GLU Variants Improve Transformer",
                                                             section 2; the two projections before it are not here
    d_gate = dy up s (1 + gate (1 - s))                      d_up = dy gate s

The backward computes s again from the gate: reading a saved one would cost more than the exponential. Everything
between a load and a store is float32.
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
from perflab.lab.kernels.inputs import as_rows, check_one_dtype, given
from perflab.lab.kernels.tiles import row_tile
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared


@triton.jit
def _tile(num_rows, num_columns, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the rows and the columns of this program, an int64 matrix of each, and the mask of those that exist."""
    # One grid axis for both: the y axis ends at 65,535.
    tiles_across = tl.cdiv(num_columns, BLOCK_D)
    rows = (tl.program_id(0) // tiles_across).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)[:, None]
    columns = (tl.program_id(0) % tiles_across).to(tl.int64) * BLOCK_D + tl.arange(0, BLOCK_D)[None, :]
    return rows, columns, (rows < num_rows) & (columns < num_columns)


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def swiglu_kernel(
    gate_ptr, up_ptr, y_ptr, stride_gr, stride_gd, stride_ur, stride_ud, num_rows, num_columns,
    EMULATE_BF16: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile."""
    rows, columns, inside = _tile(num_rows, num_columns, BLOCK_R, BLOCK_D)
    gate = tl.load(gate_ptr + rows * stride_gr + columns * stride_gd, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + rows * stride_ur + columns * stride_ud, mask=inside, other=0.0).to(tl.float32)
    y = rounded(gate * _sigmoid(gate) * up, y_ptr.dtype.element_ty, EMULATE_BF16)
    tl.store(y_ptr + rows * num_columns + columns, y, mask=inside)


@triton.jit
def swiglu_backward_kernel(
    dy_ptr, gate_ptr, up_ptr, d_gate_ptr, d_up_ptr,
    stride_yr, stride_yd, stride_gr, stride_gd, stride_ur, stride_ud, num_rows, num_columns,
    EMULATE_BF16: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: one tile of both gradients."""
    rows, columns, inside = _tile(num_rows, num_columns, BLOCK_R, BLOCK_D)
    dy = tl.load(dy_ptr + rows * stride_yr + columns * stride_yd, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + rows * stride_gr + columns * stride_gd, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(up_ptr + rows * stride_ur + columns * stride_ud, mask=inside, other=0.0).to(tl.float32)
    sigmoid = _sigmoid(gate)
    d_gate = dy * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
    d_up = dy * gate * sigmoid
    offsets = rows * num_columns + columns
    tl.store(d_gate_ptr + offsets, rounded(d_gate, d_gate_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)
    tl.store(d_up_ptr + offsets, rounded(d_up, d_up_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)


def swiglu_launch(gate: Tensor, up: Tensor, y: Tensor) -> Launch:
    """The forward for gate and up (R, D) into y (R, D), contiguous."""
    strides = {
        "stride_gr": gate.stride(0),
        "stride_gd": gate.stride(1),
        "stride_ur": up.stride(0),
        "stride_ud": up.stride(1),
    }
    return _launch(swiglu_kernel, {"gate_ptr": gate, "up_ptr": up, "y_ptr": y, **strides}, like=y)


def swiglu_backward_launch(dy: Tensor, gate: Tensor, up: Tensor, d_gate: Tensor, d_up: Tensor) -> Launch:
    """The backward for dy, gate and up (R, D) into d_gate and d_up (R, D), both contiguous."""
    tensors = {"dy_ptr": dy, "gate_ptr": gate, "up_ptr": up, "d_gate_ptr": d_gate, "d_up_ptr": d_up}
    strides = {
        "stride_yr": dy.stride(0),
        "stride_yd": dy.stride(1),
        "stride_gr": gate.stride(0),
        "stride_gd": gate.stride(1),
        "stride_ur": up.stride(0),
        "stride_ud": up.stride(1),
    }
    return _launch(swiglu_backward_kernel, {**tensors, **strides}, like=d_gate)


def _launch(kernel: Any, arguments: dict[str, Any], *, like: Tensor) -> Launch:
    num_rows, num_columns = like.shape
    tile = row_tile(num_columns)
    sizes = {
        "num_rows": num_rows,
        "num_columns": num_columns,
        "EMULATE_BF16": emulates_bf16(like.dtype),
        "BLOCK_R": tile.rows,
        "BLOCK_D": tile.columns,
    }
    grid = (triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_columns, tile.columns),)
    return Launch(kernel, grid, {**arguments, **sizes}, device=like.device, num_warps=tile.num_warps)


def _check(gate: Tensor, up: Tensor) -> None:
    if gate.dim() == 0 or gate.shape[-1] == 0 or gate.shape != up.shape:
        raise ValueError(
            f"swiglu wants gate and up of one shape (..., D) with D >= 1; got {given(gate=gate, up=up)}. "
            f"Expand the smaller one (tensor.expand costs no memory)"
        )
    check_one_dtype("swiglu", gate=gate, up=up)


def _run(gate: Tensor, up: Tensor) -> Tensor:
    require_runnable(gate.device, name="swiglu", instead="perflab.lab.kernels.reference.plain_swiglu")
    y = _empty(gate, up)
    run_prepared(swiglu_launch, as_rows(gate), as_rows(up), as_rows(y))
    return y


def _empty(gate: Tensor, up: Tensor) -> Tensor:
    _check(gate, up)
    return torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


def _run_backward(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    d_gate, d_up = _empty_gradients(dy, gate, up)
    run_prepared(swiglu_backward_launch, *(as_rows(x) for x in (dy, gate, up, d_gate, d_up)))
    return d_gate, d_up


def _empty_gradients(dy: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    d_gate = torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)
    return d_gate, torch.empty(gate.shape, dtype=gate.dtype, device=gate.device)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _gradient(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
    d_gate, d_up = _swiglu_backward(dy, *ctx.saved_tensors)
    return d_gate, d_up


_swiglu_backward = operators.define(
    "swiglu_backward",
    "(Tensor dy, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    run=_run_backward,
    fake=_empty_gradients,
)
_swiglu = operators.define(
    "swiglu",
    "(Tensor gate, Tensor up) -> Tensor",
    run=_run,
    fake=_empty,
    save=_save,
    gradient=_gradient,
)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """y = silu(gate) * up, for gate and up (..., D); returns their shape and dtype, contiguous.

    float32, bfloat16 or float16, one dtype and one device; any strides, D >= 1. The same inputs give the same bits.
    Differentiable once. Autocast leaves it alone, as it does silu and a product: it runs in the dtype that it is
    given. -inf in the gate gives NaN, as in PyTorch.

    Raises ValueError for shapes and devices that do not fit, TypeError for dtypes, RuntimeError where neither the
    device nor Triton's interpreter can run it, and for a second derivative.
    """
    y: Tensor = _swiglu(gate, up)
    return y
