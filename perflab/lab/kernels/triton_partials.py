"""The second half of a sum over rows: partial sums, one for each program, added up in a fixed order.

Shapes: partials (P, D), contiguous, float32; out (D,), contiguous, float32, bfloat16 or float16.

    out_d = sum_p partials_pd

Why in two halves: thousands of programs cannot all add into one vector without waiting for each other. Atomics
would let them, in an order that differs from run to run, and so would the last bits of every gradient. Here each
program of the first half owns one row of partials, and this kernel adds the rows up, always in the same order.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# Kernel arguments are pointers and tl values: Triton has no types for them.
# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.lab.attention.triton_pieces import rounded
from perflab.lab.kernels.tiles import power_of_two
from perflab.lab.launch import Launch, emulates_bf16

# Narrow, so that D = 4096 still gives 64 programs; and as high as it takes to keep four warps busy.
_COLUMNS = 64
_ROWS = 32


@triton.jit
def sum_partials_kernel(
    partials_ptr, out_ptr, num_partials, num_columns,
    EMULATE_BF16: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: BLOCK_D columns, over all partials."""
    columns = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    inside = columns < num_columns
    total = tl.zeros([BLOCK_P, BLOCK_D], tl.float32)
    for start in range(0, num_partials, BLOCK_P):
        rows = start + tl.arange(0, BLOCK_P)
        ptrs = partials_ptr + rows.to(tl.int64)[:, None] * num_columns + columns[None, :]
        total += tl.load(ptrs, mask=(rows < num_partials)[:, None] & inside[None, :], other=0.0)
    tl.store(out_ptr + columns, rounded(tl.sum(total, 0), out_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)


def sum_partials_launch(partials: Tensor, out: Tensor) -> Launch:
    """partials (P, D) float32 -> out (D,), both contiguous. P may be 0: the sum over nothing is 0."""
    num_partials, num_columns = partials.shape
    columns = min(_COLUMNS, power_of_two(num_columns))
    return Launch(
        sum_partials_kernel,
        grid=(triton.cdiv(num_columns, columns),),
        arguments={
            "partials_ptr": partials,
            "out_ptr": out,
            "num_partials": num_partials,
            "num_columns": num_columns,
            "EMULATE_BF16": emulates_bf16(out.dtype),
            "BLOCK_P": _ROWS,
            "BLOCK_D": columns,
        },
        device=out.device,
    )


def empty_partials(num_partials: int, num_columns: int, device: torch.device) -> Tensor:
    """Room for partial sums: (P, D) float32. 4 P D bytes, 4 MiB at D = 4096."""
    return torch.empty(num_partials, num_columns, dtype=torch.float32, device=device)
