"""A scaled sum over rows, autotuned, with faults that show in one configuration only; each on purpose.

    y_r = factor * sum_d x_rd        x (R, D) contiguous float32, y (R,)

Configurations: BLOCK_R rows and BLOCK_D columns a step. Their autotuner is the real one; in the interpreter it would
choose the first. This module imports Triton.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def"
# ruff: noqa: N803

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.correctness import Operator

CONFIGS = [
    triton.Config({"BLOCK_R": 4, "BLOCK_D": 16}, num_warps=4, num_stages=2),
    triton.Config({"BLOCK_R": 8, "BLOCK_D": 16}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_R": 4, "BLOCK_D": 64}, num_warps=8, num_stages=2),
]
ROW_SUM = Operator(
    "row_sum",
    definition=lambda x: 0.5 * x.sum(-1),
    plain=lambda x: 0.5 * x.sum(-1),
    inputs=lambda case, generator: {"x": torch.randn(case["rows"], 48, generator=generator, device=generator.device)},
    factors={"rows": (16, 13)},
    gradient_of=(),
)


@triton.autotune(CONFIGS, key=["num_columns"])
@triton.jit
def right(x_ptr, y_ptr, num_rows, num_columns, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    sums = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(0, num_columns, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        sums += tl.load(x_ptr + rows[:, None] * num_columns + columns[None, :], mask=inside, other=0.0)
    tl.store(y_ptr + rows, 0.5 * tl.sum(sums, 1), mask=rows < num_rows)


@triton.autotune(CONFIGS, key=["num_columns"])
@triton.jit
def unmasked(x_ptr, y_ptr, num_rows, num_columns, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """No mask on columns: 48 is a multiple of 16, and of 64 it is not."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    sums = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(0, num_columns, BLOCK_D):
        at = rows[:, None] * num_columns + (start + tl.arange(0, BLOCK_D))[None, :]
        sums += tl.load(x_ptr + at, mask=(rows < num_rows)[:, None] & (at < num_rows * num_columns), other=0.0)
    tl.store(y_ptr + rows, 0.5 * tl.sum(sums, 1), mask=rows < num_rows)


@triton.autotune(CONFIGS, key=["num_columns"])
@triton.jit
def not_reset(x_ptr, y_ptr, num_rows, num_columns, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """Programs of 8 rows take them in two halves, and the second half's sums begin with the first's."""
    sums = tl.zeros([4, BLOCK_D], tl.float32)
    for half in range(BLOCK_R // 4):
        rows = tl.program_id(0) * BLOCK_R + half * 4 + tl.arange(0, 4)
        for start in range(0, num_columns, BLOCK_D):
            columns = start + tl.arange(0, BLOCK_D)
            inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
            sums += tl.load(x_ptr + rows[:, None] * num_columns + columns[None, :], mask=inside, other=0.0)
        tl.store(y_ptr + rows, 0.5 * tl.sum(sums, 1), mask=rows < num_rows)


@triton.autotune(CONFIGS, key=["num_columns"])
@triton.jit
def unwritten(x_ptr, y_ptr, num_rows, num_columns, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr):
    """Programs of 8 rows write four of them; in a shared output, rows of another configuration hide that."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    sums = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    for start in range(0, num_columns, BLOCK_D):
        columns = start + tl.arange(0, BLOCK_D)
        inside = (rows < num_rows)[:, None] & (columns < num_columns)[None, :]
        sums += tl.load(x_ptr + rows[:, None] * num_columns + columns[None, :], mask=inside, other=0.0)
    tl.store(y_ptr + rows, 0.5 * tl.sum(sums, 1), mask=(rows < num_rows) & (tl.arange(0, BLOCK_R) < 4))


def summed(kernel: Any) -> Callable[[Tensor], Tensor]:
    """A form of the operator, which keeps one output buffer for all of its calls to avoid allocations."""
    kept: dict[tuple[int, torch.dtype], Tensor] = {}

    def form(x: Tensor) -> Tensor:
        rows, columns = x.shape
        y = kept.setdefault((rows, x.dtype), torch.zeros(rows, dtype=x.dtype, device=x.device))
        grid = lambda meta: (triton.cdiv(rows, meta["BLOCK_R"]),)  # noqa: E731
        kernel[grid](x.contiguous(), y, rows, columns)
        return y.clone()

    return form
