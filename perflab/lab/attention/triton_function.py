"""The autograd function over the Triton kernels, forward and backward.

Shapes: q (B, H, N_q, D) or (B, N_q, D); k, v likewise with N_k; logsumexp (B, H, N_q) or (B, N_q).
"""

from typing import Any

from torch import Tensor

from perflab.lab.attention.inputs import check_inputs
from perflab.lab.attention.registry import IMPLEMENTATIONS
from perflab.lab.attention.scoring import default_scale
from perflab.lab.attention.tiled import FlashAttentionPyTorch, refuse_second_derivative
from perflab.lab.attention.triton_backward import triton_backward
from perflab.lab.attention.triton_forward import triton_forward


class FlashAttentionTriton(FlashAttentionPyTorch):
    """`FlashAttentionTriton.apply(q, k, v, is_causal=False, scale=None, return_logsumexp=False)`.

    Takes, returns, saves and raises what `FlashAttentionPyTorch` does, save that float64 is refused;
    head_dim is 256 at most, and RuntimeError says where the kernel cannot run. Gradients are Triton kernels' too.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        return_logsumexp: bool = False,
        *others: Any,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See the class."""
        check_inputs(q, k, v, name="triton", dtypes=IMPLEMENTATIONS["triton"].dtypes, dims=(3, 4))
        scale = default_scale(q.shape[-1]) if scale is None else scale
        if q.dim() == 4:
            out, logsumexp = triton_forward(q, k, v, is_causal=is_causal, scale=scale)
        else:  # one head
            heads = (x.unsqueeze(1) for x in (q, k, v))
            out, logsumexp = (x.squeeze(1) for x in triton_forward(*heads, is_causal=is_causal, scale=scale))
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.is_causal, ctx.scale = is_causal, scale
        return (out, logsumexp) if return_logsumexp else out

    @staticmethod
    def backward(
        ctx: Any, d_out: Tensor, d_logsumexp: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor, None, None, None]:
        """Gradients of q, k and v; d_logsumexp is None unless `apply` returned the log-sum-exp."""
        refuse_second_derivative()
        saved = ctx.saved_tensors  # read once: activation checkpointing recomputes them for that reading alone
        tensors, d_ends = [d_out, *saved], d_logsumexp
        if d_out.dim() == 3:  # one head
            tensors = [x.unsqueeze(1) for x in tensors]
            d_ends = None if d_logsumexp is None else d_logsumexp.unsqueeze(1)
        found = triton_backward(*tensors, is_causal=ctx.is_causal, scale=ctx.scale, d_logsumexp=d_ends)
        dq, dk, dv = (x.reshape(like.shape) for x, like in zip(found, saved, strict=False))
        return dq, dk, dv, *[None] * 6
