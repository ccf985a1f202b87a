"""The recurrence's kernels in the configurations that they are shipped in, as launches on `meta` tensors.

Shapes: q, k (8, 16, 4096, K); v (8, 16, 4096, V): heads of 64 (RWKV-6), 128 and 64 (Mamba-2). Nothing is
allocated or run. For whoever compiles ahead of time: the functions that make these launches are those that a GPU's
calls go through, and the chunks are all that may be chosen there. This module imports Triton.
"""

import torch
from torch import Tensor

from perflab.lab.launch import Launch
from perflab.lab.recurrence.recurrence import TRITON_CHUNKS
from perflab.lab.recurrence.triton_recurrence import gradients_launch, states_launch, values_launch

_BATCH, _HEADS, _LENGTH = 8, 16, 4096
_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_DEFAULT_CHUNK = 64


def launches(shared_limit_bytes: int) -> dict[str, Launch]:
    """Name -> launch, such as "recurrence_values-bf16-64x64-c64": every chunk at one width, the default at another.

    shared_limit_bytes: what one program may have. Tiles are 64 wide at most and fit everywhere; it is here because
    every room's examples are asked for in the same way.
    """
    found: dict[str, Launch] = {}
    for dtype_name in _DTYPES:
        for chunk in TRITON_CHUNKS:
            found |= _all(dtype_name, 64, 64, chunk)
    return found | _all("bf16", 128, 64, _DEFAULT_CHUNK)


def _all(dtype_name: str, width_k: int, width_v: int, chunk: int) -> dict[str, Launch]:
    dtype = _DTYPES[dtype_name]
    q, v = (_meta(_LENGTH, width, dtype=dtype) for width in (width_k, width_v))
    log_decay = _meta(_LENGTH, width_k, dtype=torch.float32)
    states = _meta(_LENGTH // chunk, width_k, width_v, dtype=torch.float32)
    last = states[:, :, 0]
    made = {
        "states": states_launch(q, v, log_decay, last, states, last, backward=False, chunk=chunk),
        "states_backward": states_launch(q, v, log_decay, last, states, last, backward=True, chunk=chunk),
        "values": values_launch(q, q, v, log_decay, states, v, backward=False, chunk=chunk),
        "values_backward": values_launch(q, q, v, log_decay, states, v, backward=True, chunk=chunk),
        "gradients": gradients_launch(
            q, q, v, v, log_decay, states, states, q, q, log_decay, chunk=chunk
        ),
    }  # fmt: skip
    return {f"recurrence_{name}-{dtype_name}-{width_k}x{width_v}-c{chunk}": launch for name, launch in made.items()}


def _meta(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(_BATCH, _HEADS, *shape, dtype=dtype, device="meta")
