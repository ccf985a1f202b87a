"""x Q^T with Q read as it is packed, int8 or int4 with scales, as one Triton kernel.

Shapes
    x, y               (M, d_in), (M, d_out); float16, bfloat16 or float32; leading dimensions become rows
    weight             int8 (d_out, d_in), or uint8 (d_out, d_in / 2) as `quantised.pack` has it
    scales             (d_out, groups) float32
    one program        a (BLOCK_M, BLOCK_N) tile of y, over all of d_in

    y_mn = sum_g scale_ng sum_(j in g) x_mj q_nj        each product q x exact in float32, sums float32

The numbers are exact in x's dtype, so tensor cores multiply them, and a scale is applied to a group's sum: once for
a row with int8, after every group with int4. This module imports Triton.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

import math
from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from perflab.lab.attention.triton_pieces import dot, rounded
from perflab.lab.kernels import operators
from perflab.lab.kernels.inputs import DTYPES, as_rows, check_one_device, given
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared

# Few rows of x, so weights are what is read: narrow tiles make programs enough for every multiprocessor (4096 outputs:
# 128), and 64 bytes of a row of weights are two sectors of memory.
_BLOCK_N = 32
_MOST_ROWS = {2: 64, 4: 32}  # by bytes of x's numbers
# Bytes of a row of weights at a time, by bytes of x's numbers. With 128, 64 rows spill on sm_80; IEEE float32 products
# are unrolled into registers, and with 32 they spill.
_MOST_COLUMNS = {2: 64, 4: 16}


@triton.jit
def _x_tile(x_ptr, rows, columns, num_rows, d_in, stride_m, stride_d):
    """x at int64 rows and columns; zero beyond the ends."""
    inside = (rows < num_rows)[:, None] & (columns < d_in)[None, :]
    return tl.load(x_ptr + rows[:, None] * stride_m + columns[None, :] * stride_d, mask=inside, other=0.0)


@triton.jit
def quantised_product_kernel(
    x_ptr, weight_ptr, scales_ptr, y_ptr, stride_m, stride_d, num_rows, d_in, d_out,
    BITS: tl.constexpr, HALF: tl.constexpr, EMULATE_BF16: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One program: one tile of y, by BLOCK_K bytes of a row of weights at a time.

    A group of int4 is HALF bytes, of two numbers each; BLOCK_K divides HALF.
    """
    # Outputs of one tile of rows stand together; one axis, since the y axis ends at 65,535.
    tiles_across = tl.cdiv(d_out, BLOCK_N)
    rows = (tl.program_id(0) // tiles_across).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = (tl.program_id(0) % tiles_across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    output_inside = outputs < d_out
    width = d_in * BITS // 8  # bytes of a row of weights
    acc = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
    for start in tl.range(0, width, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K).to(tl.int64)
        inside = (columns < width)[:, None] & output_inside[None, :]
        packed = tl.load(weight_ptr + outputs[None, :] * width + columns[:, None], mask=inside, other=0)
        if BITS == 8:
            x = _x_tile(x_ptr, rows, columns, num_rows, d_in, stride_m, stride_d)
            acc = dot(x, rounded(packed.to(tl.float32), x.dtype, EMULATE_BF16), acc, EMULATE_BF16)
        else:
            of_group = start // HALF
            columns += of_group * HALF
            low = _x_tile(x_ptr, rows, columns, num_rows, d_in, stride_m, stride_d)
            high = _x_tile(x_ptr, rows, columns + HALF, num_rows, d_in, stride_m, stride_d)
            of_low = (packed & 15).to(tl.float32) - 8.0
            of_high = (packed >> 4).to(tl.float32) - 8.0
            sums = tl.zeros([BLOCK_M, BLOCK_N], dtype=tl.float32)
            sums = dot(low, rounded(of_low, low.dtype, EMULATE_BF16), sums, EMULATE_BF16)
            sums = dot(high, rounded(of_high, high.dtype, EMULATE_BF16), sums, EMULATE_BF16)
            at = outputs * (width // HALF) + of_group
            acc += sums * tl.load(scales_ptr + at, mask=output_inside, other=0.0)[None, :]
    if BITS == 8:
        acc *= tl.load(scales_ptr + outputs, mask=output_inside, other=0.0)[None, :]
    inside = (rows < num_rows)[:, None] & output_inside[None, :]
    y = rounded(acc, y_ptr.dtype.element_ty, EMULATE_BF16)
    tl.store(y_ptr + rows[:, None] * d_out + outputs[None, :], y, mask=inside)


def quantised_product_launch(x: Tensor, weight: Tensor, scales: Tensor, y: Tensor, bits: int) -> Launch:
    """Write y (M, d_out), contiguous, from x (M, d_in)."""
    (num_rows, d_in), d_out = x.shape, weight.shape[0]
    block_m = min(_MOST_ROWS[x.dtype.itemsize], max(16, triton.next_power_of_2(num_rows)))  # tl.dot takes 16 at least
    half = d_in if bits == 8 else d_in // scales.shape[1] // 2
    block_k = _MOST_COLUMNS[x.dtype.itemsize]
    arguments: dict[str, Any] = {
        "x_ptr": x, "weight_ptr": weight, "scales_ptr": scales, "y_ptr": y,
        "stride_m": x.stride(0), "stride_d": x.stride(1), "num_rows": num_rows, "d_in": d_in, "d_out": d_out,
        "BITS": bits, "HALF": half, "EMULATE_BF16": emulates_bf16(x.dtype),
        "BLOCK_M": block_m, "BLOCK_N": _BLOCK_N, "BLOCK_K": block_k if bits == 8 else min(block_k, half),
    }  # fmt: skip
    grid = (triton.cdiv(num_rows, block_m) * triton.cdiv(d_out, _BLOCK_N),)
    return Launch(quantised_product_kernel, grid, arguments, x.device)


def _run(x: Tensor, weight: Tensor, scales: Tensor, bits: int) -> Tensor:
    require_runnable(x.device, name="product='triton'", instead="product='torch', which dequantises first")
    y = _empty(x, weight, scales, bits)
    if y.numel():
        run_prepared(quantised_product_launch, as_rows(x), weight, scales, as_rows(y), bits)
    return y


def _empty(x: Tensor, weight: Tensor, scales: Tensor, bits: int) -> Tensor:
    return torch.empty(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device)


def _flops(x_shape: Sequence[int], weight_shape: Sequence[int], *rest: Any, **others: Any) -> int:
    return 2 * math.prod(x_shape) * weight_shape[0]


_product = operators.define(
    "quantised_product", "(Tensor x, Tensor weight, Tensor scales, int bits) -> Tensor", run=_run, fake=_empty
)
register_flop_formula(_product.overloadpacket)(_flops)


def quantised_product(x: Tensor, weight: Tensor, scales: Tensor, bits: int) -> Tensor:
    """x (..., d_in) times the packed weight of `quantised.pack`: (..., d_out) in x's dtype.

    The same inputs give the same bits. Raises ValueError for shapes and devices that do not fit, TypeError for dtypes,
    RuntimeError where neither the device nor Triton's interpreter can run it, and for a derivative.
    """
    if x.dim() == 0 or x.shape[-1] * bits != weight.shape[-1] * 8 or scales.shape[0] != weight.shape[0]:
        raise ValueError(
            f"the product wants x (..., d_in) of the weight's d_in {weight.shape[-1] * 8 // bits}; got "
            f"{given(x=x, weight=weight, scales=scales)}"
        )
    if x.dtype not in DTYPES:
        raise TypeError(
            f"product='triton' wants x of float32, bfloat16 or float16, got {x.dtype}; cast with .to(dtype)"
        )
    check_one_device("product='triton'", x=x, weight=weight, scales=scales)
    y: Tensor = _product(x, weight, scales, bits)
    return y
