"""FlashAttention-2 in Triton as one calls it: inputs checked, the operator called.

Shapes: q (B, H, N_q, D) with k, v (B, H_kv, N_k, D), or q (B, N_q, D) with k, v (B, N_k, D); logsumexp (B, H, N_q) or
(B, N_q). This module imports Triton.
"""

from torch import Tensor

from perflab.lab.attention.inputs import cast_as_autocast_does, check_inputs
from perflab.lab.attention.registry import IMPLEMENTATIONS, require_features
from perflab.lab.attention.scoring import make_scoring
from perflab.lab.attention.triton_operator import (
    flash_attention_gluon_op,
    flash_attention_one_pass_op,
    flash_attention_op,
    flash_attention_tma_op,
)
from perflab.lab.attention.triton_tiles import check_head_dim


class FlashAttentionTriton:
    """`FlashAttentionTriton.apply(q, k, v, is_causal=False, scale=None, return_logsumexp=False, ...)`.

    Takes, returns, saves and raises what `FlashAttentionPyTorch` does, save that float64 is refused; head_dim is 256 at
    most, and RuntimeError says where the kernels cannot run. It is the operator `perflab::flash_attention`, whose
    derivative PyTorch keeps: torch.compile, fake tensors and FLOP counting see through it.
    """

    operator = flash_attention_op
    name = "triton"

    @classmethod
    def apply(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        return_logsumexp: bool = False,
        window_size: tuple[int, int] | None = None,
        softcap: float | None = None,
        causal_alignment: str = "top-left",
        sinks: int = 0,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """See the class."""
        q, k, v = cast_as_autocast_does(q, k, v)
        check_inputs(q, k, v, name=cls.name, dtypes=IMPLEMENTATIONS[cls.name].dtypes, dims=(3, 4))
        check_head_dim(q.shape[-1])
        scoring = make_scoring(
            q, k, is_causal=is_causal, scale=scale,
            window_size=window_size, softcap=softcap, causal_alignment=causal_alignment, sinks=sinks,
        )  # fmt: skip
        if scoring.sinks:
            require_features(IMPLEMENTATIONS[cls.name], frozenset(("sinks",)))
        out, logsumexp = cls.operator(
            q, k, v, scoring.scale, scoring.softcap, scoring.lower, scoring.upper, scoring.sinks
        )
        return (out, logsumexp) if return_logsumexp else out


class FlashAttentionTritonTMA(FlashAttentionTriton):
    """The same with a forward by way of Hopper's TMA; RuntimeError on a GPU without it."""

    operator = flash_attention_tma_op
    name = "triton-tma"


class FlashAttentionTritonOnePass(FlashAttentionTriton):
    """The same with a backward in one pass where that takes fewer cycles; bits of dq may differ from run to run."""

    operator = flash_attention_one_pass_op
    name = "triton-one-pass"


class FlashAttentionTritonGluon(FlashAttentionTriton):
    """`FlashAttentionTritonOnePass` with the backward's kernel in Gluon, on an A100 at head dimension 128."""

    operator = flash_attention_gluon_op
    name = "triton-gluon"


def flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    causal_alignment: str = "top-left",
    sinks: int = 0,
    return_logsumexp: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """FlashAttention-2 in Triton, by keywords; what they mean, and what is raised, `attention` says.

    Under autocast the inputs are cast to its dtype first. The log-sum-exp is float32, natural, and differentiable.
    """
    return FlashAttentionTriton.apply(
        q, k, v, is_causal, scale, return_logsumexp, window_size, softcap, causal_alignment, sinks
    )  # fmt: skip
