"""Cross-entropy over a vocabulary in Triton, forward and backward, without a tensor of probabilities.

Shapes
    logits x, dx       (N, V); x with any strides
    targets t          (N,) int64: 0 <= t < V, or ignore_index
    losses, d_losses   (N,), float32
    row_max m          (N,), float32: max_v x_v
    row_sum z          (N,), float32: sum_v exp(x_v - m)

    l_n = log z_n + m_n - x_n,t_n           dx_nv = (exp(x_nv - m_n) / z_n - [v = t_n]) dl_n
    l_n = 0,  dx_nv = 0                     where t_n = ignore_index

The forward walks along a row and keeps the running maximum and sum (Milakov and Gimelshein 2018, "Online normalizer
calculation for softmax", Algorithm 3), so the logits are read once. What it saves is the log-sum-exp in two parts:
m + log z in one float32 would have lost three digits of the probabilities by the time logits are 1e4.

The backward writes into a tensor of its own. Some write over the logits, to save (N, V); the caller's tensor then
holds something else than the caller put there.
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
from perflab.lab.kernels.inputs import check_one_device, check_one_dtype, given
from perflab.lab.kernels.reference import IGNORE_INDEX
from perflab.lab.kernels.tiles import TILE_ELEMENTS, row_tile
from perflab.lab.launch import Launch, emulates_bf16, require_runnable, run_prepared

REDUCTIONS = ("mean", "sum", "none")


@triton.jit
def cross_entropy_kernel(
    logits_ptr, targets_ptr, losses_ptr, row_max_ptr, row_sum_ptr,
    stride_xn, stride_xv, stride_tn, num_rows, num_columns, ignore_index,
    BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: the losses of BLOCK_N rows, walking along them BLOCK_V columns at a time."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside_rows = rows < num_rows
    row_max = tl.full([BLOCK_N], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, num_columns, BLOCK_V):
        columns = start + tl.arange(0, BLOCK_V).to(tl.int64)
        ptrs = logits_ptr + rows[:, None] * stride_xn + columns[None, :] * stride_xv
        # Beyond the edge exp gives 0, and no maximum is there.
        inside = inside_rows[:, None] & (columns < num_columns)[None, :]
        x = tl.load(ptrs, mask=inside, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(row_max, tl.max(x, 1))
        # As long as a row has been -inf throughout (masked words), -inf - -inf would be NaN.
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        row_sum = row_sum * tl.exp(row_max - base) + tl.sum(tl.exp(x - base[:, None]), 1)
        row_max = new_max

    targets = tl.load(targets_ptr + rows * stride_tn, mask=inside_rows, other=ignore_index)
    ignored = targets == ignore_index
    known = (targets >= 0) & (targets < num_columns) & inside_rows & (ignored == 0)
    ptrs = logits_ptr + rows * stride_xn + targets * stride_xv
    # A target that is no word must not be looked up, and must not go unnoticed either.
    target_logit = tl.load(ptrs, mask=known, other=float("nan")).to(tl.float32)
    # The difference first: it is small where its two terms are large.
    losses = tl.where(ignored, 0.0, tl.log(row_sum) - (target_logit - row_max))
    tl.store(losses_ptr + rows, losses, mask=inside_rows)
    tl.store(row_max_ptr + rows, row_max, mask=inside_rows)
    tl.store(row_sum_ptr + rows, row_sum, mask=inside_rows)


@triton.jit
def cross_entropy_backward_kernel(
    d_losses_ptr, logits_ptr, targets_ptr, row_max_ptr, row_sum_ptr, d_logits_ptr,
    stride_ln, stride_xn, stride_xv, stride_tn, num_rows, num_columns, ignore_index,
    EMULATE_BF16: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """One program: one tile of the gradient."""
    tiles_across = tl.cdiv(num_columns, BLOCK_V)
    rows = (tl.program_id(0) // tiles_across).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    columns = (tl.program_id(0) % tiles_across).to(tl.int64) * BLOCK_V + tl.arange(0, BLOCK_V)
    inside_rows = rows < num_rows
    inside = inside_rows[:, None] & (columns < num_columns)[None, :]
    targets = tl.load(targets_ptr + rows * stride_tn, mask=inside_rows, other=ignore_index)
    ignored = targets == ignore_index
    known = (targets >= 0) & (targets < num_columns)
    row_max = tl.load(row_max_ptr + rows, mask=inside_rows, other=0.0)
    row_sum = tl.load(row_sum_ptr + rows, mask=inside_rows, other=1.0)
    d_losses = tl.load(d_losses_ptr + rows * stride_ln, mask=inside_rows, other=0.0).to(tl.float32)
    d_losses = tl.where(known, d_losses, float("nan"))

    ptrs = logits_ptr + rows[:, None] * stride_xn + columns[None, :] * stride_xv
    # Of ignored rows nothing is read: their gradient is zero whatever stands there.
    x = tl.load(ptrs, mask=inside & (ignored == 0)[:, None], other=0.0).to(tl.float32)
    probabilities = tl.exp(x - row_max[:, None]) / row_sum[:, None]
    hit = columns[None, :] == targets[:, None]
    gradient = tl.where(hit, probabilities - 1.0, probabilities) * d_losses[:, None]
    # Chosen, not multiplied by zero: where all rows are ignored the gradient of their mean is 0 / 0.
    gradient = tl.where(ignored[:, None], 0.0, gradient)
    out_ptrs = d_logits_ptr + rows[:, None] * num_columns + columns[None, :]
    tl.store(out_ptrs, rounded(gradient, d_logits_ptr.dtype.element_ty, EMULATE_BF16), mask=inside)


def cross_entropy_launch(
    logits: Tensor, targets: Tensor, losses: Tensor, row_max: Tensor, row_sum: Tensor, ignore_index: int
) -> Launch:
    """The forward for logits (N, V) and targets (N,) into losses, row_max and row_sum (N,), contiguous float32."""
    num_rows, num_columns = logits.shape
    tile = row_tile(num_columns, max_columns=TILE_ELEMENTS)
    return Launch(
        cross_entropy_kernel,
        grid=(triton.cdiv(num_rows, tile.rows),),
        arguments={
            "logits_ptr": logits,
            "targets_ptr": targets,
            "losses_ptr": losses,
            "row_max_ptr": row_max,
            "row_sum_ptr": row_sum,
            "stride_xn": logits.stride(0),
            "stride_xv": logits.stride(1),
            "stride_tn": targets.stride(0),
            "num_rows": num_rows,
            "num_columns": num_columns,
            "ignore_index": ignore_index,
            "BLOCK_N": tile.rows,
            "BLOCK_V": tile.columns,
        },
        device=logits.device,
        num_warps=tile.num_warps,
    )


def cross_entropy_backward_launch(
    d_losses: Tensor,
    logits: Tensor,
    targets: Tensor,
    row_max: Tensor,
    row_sum: Tensor,
    d_logits: Tensor,
    ignore_index: int,
) -> Launch:
    """The backward for d_losses (N,) and what the forward had and saved, into d_logits (N, V), contiguous."""
    num_rows, num_columns = logits.shape
    tile = row_tile(num_columns, max_columns=TILE_ELEMENTS)
    return Launch(
        cross_entropy_backward_kernel,
        grid=(triton.cdiv(num_rows, tile.rows) * triton.cdiv(num_columns, tile.columns),),
        arguments={
            "d_losses_ptr": d_losses,
            "logits_ptr": logits,
            "targets_ptr": targets,
            "row_max_ptr": row_max,
            "row_sum_ptr": row_sum,
            "d_logits_ptr": d_logits,
            "stride_ln": d_losses.stride(0),
            "stride_xn": logits.stride(0),
            "stride_xv": logits.stride(1),
            "stride_tn": targets.stride(0),
            "num_rows": num_rows,
            "num_columns": num_columns,
            "ignore_index": ignore_index,
            "EMULATE_BF16": emulates_bf16(logits.dtype),
            "BLOCK_N": tile.rows,
            "BLOCK_V": tile.columns,
        },
        device=logits.device,
        num_warps=tile.num_warps,
    )


def _check(logits: Tensor, targets: Tensor) -> None:
    if logits.dim() != 2 or logits.shape[1] == 0 or targets.shape != logits.shape[:1]:
        raise ValueError(
            f"cross_entropy wants logits (N, V) and targets (N,) with V >= 1; "
            f"got {given(logits=logits, targets=targets)}. Flatten batch and sequence into N"
        )
    if targets.dtype != torch.int64:
        raise TypeError(f"cross_entropy wants int64 targets; got {given(targets=targets)}. Cast with .long()")
    check_one_dtype("cross_entropy", logits=logits)
    check_one_device("cross_entropy", logits=logits, targets=targets)


def _run(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    instead = "perflab.lab.kernels.reference.plain_cross_entropy"
    require_runnable(logits.device, name="cross_entropy", instead=instead)
    losses, row_max, row_sum = _empty(logits, targets, ignore_index)
    run_prepared(cross_entropy_launch, logits, targets, losses, row_max, row_sum, ignore_index)
    return losses, row_max, row_sum


def _empty(logits: Tensor, targets: Tensor, ignore_index: int) -> tuple[Tensor, Tensor, Tensor]:
    _check(logits, targets)
    losses = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    row_max = torch.empty(targets.shape, dtype=torch.float32, device=logits.device)
    return losses, row_max, torch.empty(targets.shape, dtype=torch.float32, device=logits.device)


def _run_backward(
    d_losses: Tensor, logits: Tensor, targets: Tensor, row_max: Tensor, row_sum: Tensor, ignore_index: int
) -> Tensor:
    d_logits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    run_prepared(cross_entropy_backward_launch, d_losses, logits, targets, row_max, row_sum, d_logits, ignore_index)
    return d_logits


def _empty_gradients(
    d_losses: Tensor, logits: Tensor, targets: Tensor, row_max: Tensor, row_sum: Tensor, ignore_index: int
) -> Tensor:
    return torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor, Tensor]) -> None:
    logits, targets, ignore_index = inputs
    _, row_max, row_sum = output
    ctx.mark_non_differentiable(row_max, row_sum)
    ctx.save_for_backward(logits, targets, row_max, row_sum)
    ctx.ignore_index = ignore_index


def _gradient(ctx: Any, d_losses: Tensor, d_max: Tensor, d_sum: Tensor) -> tuple[Tensor, None, None]:
    return _cross_entropy_backward(d_losses, *ctx.saved_tensors, ctx.ignore_index), None, None


_cross_entropy_backward = operators.define(
    "cross_entropy_backward",
    "(Tensor d_losses, Tensor logits, Tensor targets, Tensor row_max, Tensor row_sum, int ignore_index) -> Tensor",
    run=_run_backward,
    fake=_empty_gradients,
)
_cross_entropy = operators.define(
    "cross_entropy",
    "(Tensor logits, Tensor targets, int ignore_index) -> (Tensor, Tensor, Tensor)",
    run=_run,
    fake=_empty,
    save=_save,
    gradient=_gradient,
)


def cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int = IGNORE_INDEX, reduction: str = "mean") -> Tensor:
    """l_n = log sum_v exp(x_nv) - x_n,target, for logits (N, V) and targets (N,) int64; returns float32.

    reduction "none": (N,), zero in ignored rows. "sum", "mean": a scalar; the mean is over the rows that are not
    ignored, and NaN if all are, with a gradient of zero, as in PyTorch. The loss is float32 whatever the logits are
    (PyTorch's is in their dtype: three digits in bfloat16). So autocast changes nothing, and needs no float32 copy of
    the logits. The gradient has the logits' dtype, and memory of its own: the logits stay as they are.

    Logits float32, bfloat16 or float16 of any strides, V >= 1. -inf is a masked word; a row of nothing else is NaN. A
    target outside of [0, V) gives NaN for its row, in loss and gradient: checking would make the host wait.
    The same inputs give the same bits. Differentiable once.

    Raises ValueError for shapes, devices and reductions that do not fit, TypeError for dtypes, RuntimeError where
    neither the device nor Triton's interpreter can run it, and for a second derivative.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"cross_entropy wants reduction 'mean', 'sum' or 'none', got {reduction!r}")
    losses: Tensor = _cross_entropy(logits, targets, ignore_index)[0]
    if reduction == "none":
        return losses
    return losses.sum() / (targets != ignore_index).sum() if reduction == "mean" else losses.sum()
