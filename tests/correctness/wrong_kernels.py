"""Attention that is wrong on purpose, one fault each: what the correctness suite has to catch.

Shapes: q (B, H, N_q, D); k, v (B, H, N_k, D) -> out (B, H, N_q, D), logsumexp (B, H, N_q).
All but one fault are switches of a small tiled forward; with none of them it is right, which is tested too.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

TILE = 32


def online_softmax(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    mask_tail: bool = True,
    rescale: bool = True,
    sees_ahead: int = 0,
    padded_scale: bool = False,
    base_2_logsumexp: bool = False,
    accumulator: torch.dtype = torch.float32,
    skip_tail: bool = False,
) -> tuple[Tensor, Tensor]:
    """Attention by tiles of keys, differentiable by autograd; right as long as no fault is switched on."""
    num_queries, num_keys, head_dim = q.shape[-2], k.shape[-2], q.shape[-1]
    if padded_scale:
        head_dim = 1 << (head_dim - 1).bit_length()
    scale = 1.0 / math.sqrt(head_dim) if scale is None else scale
    padding = -num_keys % TILE
    k, v = (torch.nn.functional.pad(x, (0, 0, 0, padding)) for x in (k, v))
    i = torch.arange(num_queries, device=q.device)[:, None]

    acc = torch.zeros(q.shape, dtype=accumulator, device=q.device)
    row_sum = torch.zeros(q.shape[:-1], dtype=accumulator, device=q.device)
    row_max = torch.full(q.shape[:-1], -torch.inf, device=q.device)
    for start in range(0, num_keys, TILE):
        keys = slice(start, start + TILE)
        j = torch.arange(start, start + TILE, device=q.device)[None, :]
        scores = q.float() @ k[..., keys, :].float().mT * scale
        if mask_tail:
            scores = scores.masked_fill(j >= num_keys, -torch.inf)
        if is_causal:
            scores = scores.masked_fill(j > i + sees_ahead, -torch.inf)
        new_max = torch.maximum(row_max, scores.amax(dim=-1))
        weights = torch.exp(scores - new_max[..., None])
        factor = torch.exp(row_max - new_max) if rescale else torch.ones_like(row_max)
        row_sum = (row_sum * factor + weights.sum(dim=-1)).to(accumulator)
        acc = (acc * factor[..., None] + weights @ v[..., keys, :].float()).to(accumulator)
        row_max = new_max

    logsumexp = row_max + torch.log(row_sum.float())
    if base_2_logsumexp:
        logsumexp = logsumexp * math.log2(math.e)
    result = (acc / row_sum[..., None]).to(q.dtype)
    if not skip_tail:
        return result, logsumexp
    out = torch.empty_like(result)
    whole = num_queries // TILE * TILE
    out[..., :whole, :] = result[..., :whole, :]
    return out, logsumexp


class CachedByShape:
    """Returns what it computed the first time it saw these shapes."""

    def __init__(self) -> None:
        self._kept: dict[Any, tuple[Tensor, Tensor]] = {}

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
    ) -> tuple[Tensor, Tensor]:
        key = (q.shape, k.shape, q.dtype, is_causal)
        if key not in self._kept:
            self._kept[key] = online_softmax(q, k, v, is_causal=is_causal, scale=scale)
        return tuple(x.clone() for x in self._kept[key])  # type: ignore[return-value]


class OneBuffer:
    """Right each time, in the same memory each time."""

    def __init__(self) -> None:
        self._buffer: dict[Any, Tensor] = {}

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
    ) -> tuple[Tensor, Tensor]:
        out, logsumexp = online_softmax(q, k, v, is_causal=is_causal, scale=scale)
        buffer = self._buffer.setdefault((q.shape, q.dtype), torch.empty_like(q))
        return buffer.copy_(out), logsumexp


def all_zero(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """No answer at all. For long sequences that is close to the right one."""
    return torch.zeros_like(q), online_softmax(q, k, v, is_causal=is_causal, scale=scale)[1]


def scales_its_input(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Folds the scale into the caller's q."""
    q *= 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return online_softmax(q, k, v, is_causal=is_causal, scale=1.0)


class _NoDelta(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool, scale: float | None
    ) -> tuple[Tensor, Tensor]:
        out, logsumexp = online_softmax(q, k, v, is_causal=is_causal, scale=scale)
        ctx.save_for_backward(q, k, v, logsumexp)
        ctx.is_causal, ctx.scale = is_causal, 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
        return out, logsumexp

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (q, k, v), logsumexp = (x.float() for x in ctx.saved_tensors[:3]), ctx.saved_tensors[3]
        weights = torch.exp(q @ k.mT * ctx.scale - logsumexp[..., None])
        if ctx.is_causal:
            weights = weights.tril()
        d_scores = weights * (d_out.float() @ v.mT) * ctx.scale
        dq, dk, dv = d_scores @ k, d_scores.mT @ q, weights.mT @ d_out.float()
        return dq.to(d_out.dtype), dk.to(d_out.dtype), dv.to(d_out.dtype), None, None


def no_delta(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool = False, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Right forward; its backward forgets the row sum of do and o."""
    out, logsumexp = _NoDelta.apply(q, k, v, is_causal, scale)
    return out, logsumexp


@dataclass(frozen=True)
class WrongKernel:
    """A fault by name, a fresh candidate that has it, and what the report must say."""

    name: str
    make: Callable[[], Callable[..., tuple[Tensor, Tensor]]]
    clue: str
    differentiable: bool = True


def _faulty(name: str, clue: str, **fault: Any) -> WrongKernel:
    return WrongKernel(name, lambda: partial(online_softmax, **fault), clue)


WRONG_KERNELS = (
    _faulty("tail-mask-missing", "out is wrong", mask_tail=False),
    _faulty("no-rescale", "out is wrong", rescale=False),
    _faulty("causal-mask-off-by-one", "out is wrong", sees_ahead=1),
    _faulty("scale-of-the-padded-head-dim", "out is wrong", padded_scale=True),
    _faulty("base-2-logsumexp", "logsumexp is wrong", base_2_logsumexp=True),
    _faulty("bf16-accumulator", "out is wrong", accumulator=torch.bfloat16),
    _faulty("unwritten-tail", "never written", skip_tail=True),
    WrongKernel("cached-output", CachedByShape, "is it cached?", differentiable=False),
    WrongKernel("one-output-buffer", OneBuffer, "run 2 overwrote", differentiable=False),
    WrongKernel("all-zero-output", lambda: all_zero, "out is wrong", differentiable=False),
    WrongKernel("scales-its-input", lambda: scales_its_input, "changed q", differentiable=False),
    WrongKernel("backward-without-delta", lambda: no_delta, "dq is wrong"),
)
