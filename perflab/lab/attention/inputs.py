"""What every attention variant asks of its inputs.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D), H a multiple of H_kv. The autograd functions also take (B, N, D).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and of the log-sum-exp: float64 for float64 inputs, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, *, name: str, dtypes: Sequence[torch.dtype], dims: Sequence[int] = (4,)
) -> None:
    """Refuse what `name` cannot compute: ValueError for shapes and devices, TypeError for dtypes."""
    given = f"got q {_describe(q)}, k {_describe(k)}, v {_describe(v)}"
    layouts = " or ".join("(batch, heads, seq, head_dim)" if n == 4 else "(batch, seq, head_dim)" for n in dims)
    if q.dim() not in dims:
        raise ValueError(f"{name} attention wants q, k and v as {layouts}; {given}. Reshape or transpose them")
    if k.shape != v.shape:
        raise ValueError(f"{name} attention wants k and v of one shape; {given}")
    if q.dim() != k.dim() or q.shape[0] != k.shape[0]:
        raise ValueError(
            f"{name} attention wants the same batch in q, k and v; {given}. "
            f"Expand the smaller one (tensor.expand costs no memory)"
        )
    if q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{name} attention wants one head dimension (the last) in q, k and v; {given}")
    if 0 in q.shape or 0 in k.shape:
        raise ValueError(f"{name} attention wants every dimension to be 1 at least; {given}")
    if q.dim() == 4 and q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"{name} attention wants as many heads in q as in k and v, or a multiple of them (grouped heads); {given}"
        )
    if not q.device == k.device == v.device:
        raise ValueError(f"{name} attention wants q, k and v on one device; {given}. Move them with .to(device)")
    if not q.dtype == k.dtype == v.dtype or q.dtype not in dtypes:
        choices = ", ".join(_short(dtype) for dtype in dtypes)
        raise TypeError(
            f"{name} attention wants q, k and v of one dtype out of {choices}; {given}. Cast with .to(dtype)"
        )


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {_short(tensor.dtype)} on {tensor.device}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
