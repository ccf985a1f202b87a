"""Fused kernels that are wrong on purpose, one fault each: what their suite has to catch.

Shapes: x, gate, up (..., D); weight (D,); logits (N, V); targets (N,).
Two are Triton kernels, because what they forget (a mask, a program) exists only there. The others are PyTorch with a
switch for each fault; with none switched on they are right, which is tested too.
"""

# ruff: noqa: N803
# Compile-time constants are upper case, as Triton code has them.

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from perflab.lab.kernels.tiles import power_of_two


@triton.jit
def _row_sums_kernel(
    x_ptr, out_ptr, num_rows, num_columns,
    MASKED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program: the sums of one tile of rows, over its columns, of a (num_rows, num_columns) matrix."""
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    columns = tl.arange(0, BLOCK_D)
    inside = (rows < num_rows)[:, None]
    if MASKED:
        inside = inside & (columns < num_columns)[None, :]
    x = tl.load(x_ptr + rows[:, None] * num_columns + columns[None, :], mask=inside, other=0.0)
    tl.store(out_ptr + rows, tl.sum(x, 1), mask=rows < num_rows)


def row_sums(x: Tensor, *, masked: bool) -> Tensor:
    """(R, D) float32 -> (R,), by tiles. Without the mask a row ends with the start of the next one."""
    num_rows, num_columns = x.shape
    width = power_of_two(num_columns)
    memory = torch.zeros(x.numel() + width, device=x.device)  # room behind the last row: the fault must not crash
    memory[: x.numel()] = x.flatten()
    out = torch.empty(num_rows, device=x.device)
    grid = (triton.cdiv(num_rows, 4),)
    _row_sums_kernel[grid](memory, out, num_rows, num_columns, MASKED=masked, BLOCK_R=4, BLOCK_D=width)
    return out


class _WeightedSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, mask_tail: bool, accumulator: torch.dtype, lost: int, transposed: bool
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.lost, ctx.expects_contiguous = lost, transposed
        if accumulator != torch.float32:
            total = torch.zeros(x.shape[:-1], dtype=accumulator, device=x.device)
            for column in range(x.shape[-1]):
                total = total + (x[..., column] * weight[column]).to(accumulator)
            return total.to(x.dtype)
        return row_sums(x.float() * weight.float(), masked=mask_tail).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if ctx.expects_contiguous and dy.stride(0) == 0:  # it would read what lies behind the one element
            dy = torch.cat([dy[:1], torch.zeros_like(dy[1:])])
        tiles = torch.split(dy.float()[:, None] * x.float(), 4)
        partials = torch.stack([tile.sum(0) for tile in tiles])
        d_weight = partials[: len(tiles) - ctx.lost].sum(0).to(weight.dtype)
        return (dy.float()[:, None] * weight.float()).to(x.dtype), d_weight, None, None, None, None


def weighted_sum(
    x: Tensor,
    weight: Tensor,
    *,
    mask_tail: bool = True,
    accumulator: torch.dtype = torch.float32,
    lost_partials: int = 0,
    contiguous_upstream: bool = False,
) -> Tensor:
    """Right as long as no fault is switched on."""
    return _WeightedSum.apply(x, weight, mask_tail, accumulator, lost_partials, contiguous_upstream)


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, padded: bool, inside: bool, with_mean: bool) -> Tensor:
        columns = power_of_two(x.shape[-1]) if padded else x.shape[-1]
        squares = x.float().square().sum(-1, keepdim=True) / columns
        rstd = torch.rsqrt(squares + eps) if inside else 1.0 / (squares.sqrt() + eps)
        ctx.save_for_backward(x, weight, rstd)
        ctx.with_mean = with_mean
        return (x.float() * rstd * weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, rstd = ctx.saved_tensors
        normed, scaled = x.float() * rstd, dy.float() * weight.float()
        mean = (scaled * normed).mean(-1, keepdim=True) if ctx.with_mean else 0.0
        d_weight = (dy.float() * normed).sum(0).to(weight.dtype)
        return ((scaled - normed * mean) * rstd).to(x.dtype), d_weight, None, None, None, None


def rms_norm(
    x: Tensor,
    weight: Tensor,
    eps: float = 1e-6,
    *,
    padded_mean: bool = False,
    eps_inside: bool = True,
    projected: bool = True,
) -> Tensor:
    """Right as long as no fault is switched on."""
    return _RmsNorm.apply(x, weight, eps, padded_mean, eps_inside, projected)


class _Swiglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor, full_derivative: bool) -> Tensor:
        ctx.save_for_backward(gate, up)
        ctx.full_derivative = full_derivative
        return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        gate, up = (x.float() for x in ctx.saved_tensors)
        sigmoid = torch.sigmoid(gate)
        slope = sigmoid * (1 + gate * (1 - sigmoid)) if ctx.full_derivative else sigmoid
        return (dy.float() * up * slope).to(dy.dtype), (dy.float() * gate * sigmoid).to(dy.dtype), None


def swiglu(gate: Tensor, up: Tensor, *, full_derivative: bool = True) -> Tensor:
    """Right as long as no fault is switched on."""
    return _Swiglu.apply(gate, up, full_derivative)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, ignore_index: int, shift: bool, count_all: bool,
        scale: bool, in_place: bool, one_number: bool,
    ) -> Tensor:  # fmt: skip
        kept = targets != ignore_index
        x = logits.float()
        base = x.amax(1, keepdim=True) if shift else torch.zeros_like(x[:, :1])
        log_sum = torch.log(torch.exp(x - base).sum(1, keepdim=True))
        if one_number:  # the textbook's log-sum-exp, which at 1000 has lost a digit of its small part
            base, log_sum = base + log_sum, torch.zeros_like(log_sum)
        picked = torch.gather(x, 1, torch.where(kept, targets, 0)[:, None])
        losses = torch.where(kept, (log_sum - (picked - base)).squeeze(1), 0.0)
        ctx.save_for_backward(logits, targets, base, log_sum, kept)
        ctx.count = (torch.ones_like(kept) if count_all else kept).sum()
        ctx.scale, ctx.in_place = scale, in_place
        return losses.sum() / ctx.count

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        logits, targets, base, log_sum, kept = ctx.saved_tensors
        gradient = torch.exp(logits.float() - base - log_sum)
        gradient[torch.arange(len(targets), device=targets.device)[kept], targets[kept]] -= 1.0
        gradient = torch.where(kept[:, None], gradient, 0.0) / ctx.count
        if ctx.scale:
            gradient = gradient * d_loss
        d_logits = gradient.to(logits.dtype)
        if ctx.in_place:
            d_logits = logits.detach().copy_(d_logits)
        return d_logits, None, None, None, None, None, None, None


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    ignore_index: int = -100,
    *,
    subtract_max: bool = True,
    count_ignored: bool = False,
    scale_gradient: bool = True,
    in_place: bool = False,
    one_number: bool = False,
) -> Tensor:
    """The mean; right as long as no fault is switched on."""
    faults = subtract_max, count_ignored, scale_gradient, in_place, one_number
    return _CrossEntropy.apply(logits, targets, ignore_index, *faults)


@dataclass(frozen=True)
class WrongKernel:
    """A fault by name, of which operator, the candidate that has it, and what the report must say."""

    name: str
    operator: str
    candidate: Callable[..., Tensor]
    clue: str


RIGHT = {"weighted_sum": weighted_sum, "rms_norm": rms_norm, "swiglu": swiglu, "cross_entropy": cross_entropy}
WRONG_KERNELS = tuple(
    WrongKernel(name, operator, partial(RIGHT[operator], **fault), clue)
    for name, operator, clue, fault in (
        ("tail-mask-missing", "weighted_sum", "out is wrong", {"mask_tail": False}),
        ("bf16-accumulator", "weighted_sum", "out is wrong", {"accumulator": torch.bfloat16}),
        ("one-partial-lost", "weighted_sum", "dweight is wrong", {"lost_partials": 1}),
        ("upstream-taken-for-contiguous", "weighted_sum", "dx is wrong", {"contiguous_upstream": True}),
        ("mean-over-the-padded-row", "rms_norm", "out is wrong", {"padded_mean": True}),
        ("eps-outside-of-the-root", "rms_norm", "out is wrong", {"eps_inside": False}),
        ("backward-without-the-mean", "rms_norm", "dx is wrong", {"projected": False}),
        ("slope-of-the-sigmoid-forgotten", "swiglu", "dgate is wrong", {"full_derivative": False}),
        ("maximum-not-subtracted", "cross_entropy", "out is wrong", {"subtract_max": False}),
        ("logsumexp-in-one-number", "cross_entropy", "dlogits is wrong", {"one_number": True}),
        ("ignored-rows-counted", "cross_entropy", "out is wrong", {"count_ignored": True}),
        ("upstream-not-multiplied", "cross_entropy", "dlogits is wrong", {"scale_gradient": False}),
        ("writes-over-the-logits", "cross_entropy", "changed logits", {"in_place": True}),
    )
)
