"""PyTorch's own fused attention, its backend chosen by PyTorch or pinned to one.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D), H a multiple of H_kv; out (B, H, N_q, D).

    out = softmax(scale * q k^T + mask) v

A pinned backend runs or raises: `torch.nn.attention.sdpa_kernel` leaves PyTorch nothing else to choose. Sliding
windows and bottom-right masks would go in as a whole (N_q, N_k) tensor, which three of the four backends turn down or
read in full; so they are not claimed here. PyTorch's CPU kernel has no dropout of the
weights: there `sdpa` takes the unfused backend for it.
"""

import warnings
from typing import Unpack

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from perflab.lab.attention.inputs import BackendRefusedError
from perflab.lab.attention.scoring import Settings, dropout_probability

BACKENDS = {
    "sdpa-math": SDPBackend.MATH,
    "sdpa-flash": SDPBackend.FLASH_ATTENTION,
    "sdpa-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa-cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""The variants that pin a backend. What PyTorch chooses by itself differs between versions and GPUs."""

_REFUSALS = ("No available kernel", "No viable backend")
"""The beginning of PyTorch's message (2.11 to 2.13) that no backend that it may choose takes these inputs."""


def sdpa_attention(q: Tensor, k: Tensor, v: Tensor, **settings: Unpack[Settings]) -> Tensor:
    """Attention by the backend that PyTorch chooses, or by one that the caller has pinned."""
    return scaled_dot_product_attention(
        q, k, v,
        dropout_p=dropout_probability(**settings),
        is_causal=settings.get("is_causal", False), scale=settings.get("scale"), enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip


def pinned_sdpa_attention(impl: str, q: Tensor, k: Tensor, v: Tensor, **settings: Unpack[Settings]) -> Tensor:
    """Attention by the backend that `impl`, out of BACKENDS, names; BackendRefusedError where it can't."""
    try:
        with sdpa_kernel(BACKENDS[impl]):
            return sdpa_attention(q, k, v, **settings)
    except RuntimeError as error:
        if not str(error).startswith(_REFUSALS):
            raise
        reasons = "; ".join(_reasons(impl, q, k, v, settings)) or str(error)
        given = f"q {tuple(q.shape)}, k {tuple(k.shape)}, {str(q.dtype).removeprefix('torch.')} on {q.device}"
        raise BackendRefusedError(
            f"attention impl {impl!r}: PyTorch's {BACKENDS[impl].name} does not take {given}. "
            f"PyTorch says: {reasons.rstrip('. ')}. "
            f"Choose impl='sdpa', where PyTorch chooses the backend, or 'sdpa-math', which takes everything"
        ) from error


def _reasons(impl: str, q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> list[str]:
    """Why PyTorch turns the inputs down; it says so in warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with sdpa_kernel(BACKENDS[impl]):
                sdpa_attention(q, k, v, **settings)
        except RuntimeError:
            pass
    said = (str(warning.message).partition(" (Triggered internally")[0] for warning in caught)
    # The first of them is a heading.
    return list(dict.fromkeys(text for text in said if not text.endswith("kernel not used because:")))
