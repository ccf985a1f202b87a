"""The one call that reaches every attention variant. What is asked for runs, or raises; nothing falls back.

Shapes: q (B, H, N_q, D); k, v (B, H, N_k, D); out (B, H, N_q, D); logsumexp (B, H, N_q).

    out = softmax(scale * q k^T + mask) v,    logsumexp = log sum_j exp(scale * q k^T + mask)
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from perflab.lab.attention.inputs import accumulation_dtype, check_inputs
from perflab.lab.attention.naive import naive_attention, naive_attention_with_logsumexp
from perflab.lab.attention.reference import reference_attention
from perflab.lab.attention.registry import IMPLEMENTATIONS, get_implementation
from perflab.lab.attention.tiled import FlashAttentionPyTorch


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool = False,
    impl: str = "sdpa",
    scale: float | None = None,
) -> Tensor:
    """Attention of q (B, H, N_q, D) over k, v (B, H, N_k, D), by the variant that `impl` names.

    One floating dtype and one device; any strides. Causal means that query i sees the keys j <= i,
    also where N_q != N_k. scale None means 1 / sqrt(D). Returns (B, H, N_q, D) in the inputs' dtype.

    Under autocast the inputs are first cast to its dtype, as PyTorch does for its own attention, and
    the variant itself runs without autocast: its precision is its own affair.

    Raises ValueError for an unknown impl and for shapes and devices that do not fit, TypeError for
    dtypes, RuntimeError where "triton" can't run on that device, ImportError where Triton is missing.
    """
    q, k, v = _cast_as_autocast_does(q, k, v)
    check_inputs(q, k, v, name=impl, dtypes=get_implementation(impl).dtypes)
    with _without_autocast(q.device.type):
        if impl == "reference":
            return reference_attention(q, k, v, is_causal=is_causal, scale=scale)[0].to(q.dtype)
        if impl == "naive":
            return naive_attention(q, k, v, is_causal=is_causal, scale=scale)
        if impl == "sdpa":
            return scaled_dot_product_attention(q, k, v, is_causal=is_causal, scale=scale)
        out: Tensor = _flash_function(impl).apply(q, k, v, is_causal, scale)
        return out


def attention_with_logsumexp(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool = False,
    impl: str = "tiled",
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Like `attention`, and the natural log-sum-exp of each row of scores; both are differentiable.

    logsumexp is (B, H, N_q) in float32, in float64 for float64 inputs. Raises as `attention` does, and
    ValueError where the variant gives no log-sum-exp.
    """
    if not get_implementation(impl).logsumexp:
        able = ", ".join(name for name, claims in IMPLEMENTATIONS.items() if claims.logsumexp)
        raise ValueError(f"attention impl {impl!r} gives no log-sum-exp; choose one of: {able}")
    q, k, v = _cast_as_autocast_does(q, k, v)
    check_inputs(q, k, v, name=impl, dtypes=get_implementation(impl).dtypes)
    with _without_autocast(q.device.type):
        if impl == "reference":
            out, logsumexp = reference_attention(q, k, v, is_causal=is_causal, scale=scale)
            return out.to(q.dtype), logsumexp.to(accumulation_dtype(q.dtype))
        if impl == "naive":
            return naive_attention_with_logsumexp(q, k, v, is_causal=is_causal, scale=scale)
        out, logsumexp = _flash_function(impl).apply(q, k, v, is_causal, scale, True)
        return out, logsumexp


def import_triton_variant() -> Any:
    """FlashAttentionTriton, importing Triton now. ImportError says what to do where there is none."""
    try:
        from perflab.lab.attention.triton_function import FlashAttentionTriton
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "triton":
            raise
        raise ImportError(
            "attention impl 'triton' needs Triton, which is not installed: install the package 'triton' "
            "(Linux), or choose impl='tiled', the same algorithm in PyTorch"
        ) from error
    return FlashAttentionTriton


def _flash_function(impl: str) -> Any:
    return import_triton_variant() if impl == "triton" else FlashAttentionPyTorch


def _without_autocast(device_type: str) -> AbstractContextManager[object]:
    # `meta` tensors, on which shapes are tried out, have no autocast, and naming it raises.
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def _cast_as_autocast_does(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    device_type = q.device.type
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return q, k, v
    dtype = torch.get_autocast_dtype(device_type)
    # float64 is left alone, as autocast leaves it.
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in (q, k, v))  # type: ignore[return-value]
