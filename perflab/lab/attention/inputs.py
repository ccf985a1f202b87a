"""The requirements of every attention variant on its inputs.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D), H a multiple of H_kv. The autograd functions also take (B, N, D).
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums and of the log-sum-exp: float64 for float64 inputs, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class BackendRefusedError(RuntimeError):
    """The pinned backend is missing or does not take these inputs; the message gives reasons. Nothing was computed."""


def cast_as_autocast_does(*inputs: Tensor) -> tuple[Tensor, ...]:
    """Inputs in the dtype of an enabled autocast, as PyTorch casts those of its own products; else as they are."""
    device_type = inputs[0].device.type
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return inputs
    dtype = torch.get_autocast_dtype(device_type)
    # float64 is left alone, as autocast leaves it.
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in inputs)


def check_inputs(
    q: Tensor, k: Tensor, v: Tensor, *, name: str, dtypes: Sequence[torch.dtype], dims: Sequence[int] = (4,)
) -> None:
    """Refuse what `name` cannot compute: ValueError for shapes and devices, TypeError for dtypes."""
    problem = _problem(q, k, v, dtypes, dims)
    if problem is not None:
        error, wanted, remedy = problem
        given = f"got q {_describe(q)}, k {_describe(k)}, v {_describe(v)}"
        raise error(f"{name} attention wants {wanted}; {given}{remedy}")


def _problem(
    q: Tensor, k: Tensor, v: Tensor, dtypes: Sequence[torch.dtype], dims: Sequence[int]
) -> tuple[type[Exception], str, str] | None:
    """Return what is wrong with the inputs: error type, wanted values, remedy. Each call runs this: texts come last."""
    if q.dim() not in dims:
        layouts = " or ".join("(batch, heads, seq, head_dim)" if n == 4 else "(batch, seq, head_dim)" for n in dims)
        return ValueError, f"q, k and v as {layouts}", ". Reshape or transpose them"
    if k.shape != v.shape:
        return ValueError, "k and v of one shape", ""
    if q.dim() != k.dim() or q.shape[0] != k.shape[0]:
        remedy = ". Expand the smaller one (tensor.expand costs no memory)"
        return ValueError, "the same batch in q, k and v", remedy
    if q.shape[-1] != k.shape[-1]:
        return ValueError, "one head dimension (the last) in q, k and v", ""
    if 0 in q.shape or 0 in k.shape:
        return ValueError, "every dimension to be 1 at least", ""
    if q.dim() == 4 and q.shape[1] % k.shape[1] != 0:
        return ValueError, "as many heads in q as in k and v, or a multiple of them (grouped heads)", ""
    if not q.device == k.device == v.device:
        return ValueError, "q, k and v on one device", ". Move them with .to(device)"
    if not q.dtype == k.dtype == v.dtype or q.dtype not in dtypes:
        choices = ", ".join(_short(dtype) for dtype in dtypes)
        return TypeError, f"q, k and v of one dtype out of {choices}", ". Cast with .to(dtype)"
    return None


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {_short(tensor.dtype)} on {tensor.device}"


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
