"""The tensors of a case: values that make errors show, in the layouts that reach a kernel in practice.

Shapes: q, and the gradient of out (B, H, N_q, D); k, v (B, H_kv, N_k, D); the gradient of logsumexp (B, H, N_q).
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from perflab.attention.grid import Case
from perflab.correctness.operator import DTYPES, LAYOUTS, upstream_in
from perflab.lab.attention.scoring import expand_heads

# With a score of 4 |k|^2 / sqrt(D), and |k|^2 near D, one key takes all of a row.
PEAK = 4.0
LARGE_Q, LARGE_KV = 5.0, 3.0


def inputs_of(case: Case, device: torch.device) -> Callable[[int], Mapping[str, Tensor]]:
    """Return make_inputs(seed) -> q, k and v of a case."""

    def make(seed: int) -> Mapping[str, Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        q, k, v = (torch.randn(shape, generator=generator, device=device) for shape in case.shapes.values())
        if case.data == "large":
            q, k, v = LARGE_Q * q, LARGE_KV * k, LARGE_KV * v
        elif case.data == "peaked":
            chosen = torch.randint(case.n_k, (case.n_q,), generator=generator, device=device)
            q = q + PEAK * expand_heads(k, q)[..., chosen, :]
        elif case.data == "constant":
            k = k[..., :1, :].expand(k.shape)
        return {name: LAYOUTS[case.layout](x.to(DTYPES[case.dtype])) for name, x in zip("qkv", (q, k, v), strict=True)}

    return make


def upstream_of(case: Case) -> Callable[[Tensor, int], Tensor]:
    """Return upstream(output, seed) -> a gradient for the output, in the layout of the case."""
    return upstream_in(case.upstream)
