"""Naive attention under torch.compile: what PyTorch's compiler makes of the textbook's.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D), H a multiple of H_kv; out (B, H, N_q, D); logsumexp (B, H, N_q).

    out = softmax(scale * q k^T + mask) v

The matrix products stay library calls, what stands between them becomes one or two kernels, and the N_q x N_k scores
are still held. Compiled for each shape, dtype, device and setting anew, at the first call: seconds on a GPU, up to
twenty on a CPU; the backward at the first backward pass.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, Unpack

import torch
from torch import Tensor

from perflab.lab.attention.compiling import compiled_apart, require_compiler
from perflab.lab.attention.naive import naive_attention, naive_attention_with_logsumexp
from perflab.lab.attention.scoring import Settings


def compiled_attention(
    q: Tensor, k: Tensor, v: Tensor, *, with_logsumexp: bool, **settings: Unpack[Settings]
) -> tuple[Tensor, Tensor | None]:
    """Out, and the log-sum-exp where it is asked for. RuntimeError where there is no C++ compiler for a CPU."""
    require_compiler(q.device, name="attention impl 'compiled'", instead="impl='naive', the same uncompiled")
    asked = tuple((name, tuple(x) if isinstance(x, list) else x) for name, x in sorted(settings.items()))
    run = _compiled(with_logsumexp, asked, q.shape, k.shape, q.dtype, q.device)
    found: Any = run(q, k, v)
    return found if with_logsumexp else (found, None)


@cache
def _compiled(
    with_logsumexp: bool,
    settings: tuple[tuple[str, Any], ...],
    query_shape: torch.Size,
    key_shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> Callable[..., Any]:
    """Return one configuration's compiled function. Arguments that it does not read tell configurations apart."""
    asked: Any = dict(settings)
    function = naive_attention_with_logsumexp if with_logsumexp else naive_attention

    def run(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return function(q, k, v, **asked)

    return compiled_apart(run)  # type: ignore[arg-type]
