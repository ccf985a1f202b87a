"""Attention, several ways, behind one call.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D), H a multiple of H_kv; out (B, H, N_q, D); logsumexp (B, H, N_q).

    out = softmax(scale * q k^T + mask) v,    logsumexp = log sum_j exp(scale * q k^T + mask)

    from perflab.lab.attention import attention
    out = attention(q, k, v, is_causal=True, impl="tiled")

`IMPLEMENTATIONS` names the variants and what each claims, `PROVEN` those whose kernels have run; `scoring` says what
causal, window, soft cap and grouped heads mean. `FlashAttentionPyTorch` is the autograd function behind "tiled",
`FlashAttentionTriton` the operator behind "triton" with the same face, and `flash_attention` that by keywords.
`decode_attention` reads a cache: few queries, other lengths for each sequence, pages, int8. Triton is imported when a
Triton variant is first asked for, and not before.
"""

from typing import TYPE_CHECKING, Any

from perflab.lab.attention.decode_cache import decode_attention
from perflab.lab.attention.dispatch import attention, attention_with_logsumexp, import_triton_variant
from perflab.lab.attention.inputs import BackendRefusedError
from perflab.lab.attention.reference import reference_attention
from perflab.lab.attention.registry import IMPLEMENTATIONS, PROVEN, Implementation
from perflab.lab.attention.tiled import FlashAttentionPyTorch

if TYPE_CHECKING:
    from perflab.lab.attention.triton_function import FlashAttentionTriton, flash_attention

__all__ = [
    "IMPLEMENTATIONS",
    "PROVEN",
    "BackendRefusedError",
    "FlashAttentionPyTorch",
    "FlashAttentionTriton",
    "Implementation",
    "attention",
    "attention_with_logsumexp",
    "decode_attention",
    "flash_attention",
    "reference_attention",
]


def __getattr__(name: str) -> Any:
    if name in ("FlashAttentionTriton", "flash_attention"):
        return getattr(import_triton_variant(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
