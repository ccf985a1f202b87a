"""The launch of the Hopper forward kernel: tensors behind descriptors, as many programs as run at once.

Shapes: q, out (B, H, N_q, D); k, v (B, H_kv, N_k, D); logsumexp (B, H, N_q), contiguous float32.

TMA reads rows that lie next to each other without gaps between their elements, and begin at multiples of 16 bytes.
Inputs that do not are copied first. This module imports Triton.
"""

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from perflab.lab.attention.inputs import BackendRefusedError
from perflab.lab.attention.scoring import Scoring
from perflab.lab.attention.triton_launches import common_arguments, may_see_nothing, rising_arguments
from perflab.lab.attention.triton_tiles import Tiles, padded_head_dim
from perflab.lab.attention.triton_tma_kernel import attention_forward_tma_kernel
from perflab.lab.launch import Launch, is_interpreted

_ALIGNED_BYTES = 16
# Enough that programs take several tiles each, where there is no GPU that says how many it runs at once.
INTERPRETED_PROGRAMS = 3
_NOT_TAKEN = ("scale", "problem_class", "HEAD_DIM", "sinks", "HAS_SINKS")


def tma_forward_launch(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    scoring: Scoring,
    tiles: Tiles,
    num_programs: int,
) -> Launch:
    """Write out and logsumexp. All of q, k, v and out must be `describable`."""
    columns = padded_head_dim(q.shape[-1])
    num_tiles = triton.cdiv(q.shape[-2], tiles.block_q) * q.shape[0] * q.shape[1]
    arguments = {
        "q_desc": _descriptor(q, tiles.block_q, columns),
        "k_desc": _descriptor(k, tiles.block_k, columns),
        "v_desc": _descriptor(v, tiles.block_k, columns),
        "out_desc": _descriptor(out, tiles.block_q, columns),
        "logsumexp_ptr": logsumexp,
        "num_tiles": num_tiles,
        **{name: it for name, it in common_arguments(q, k, scoring, tiles).items() if name not in _NOT_TAKEN},
        **rising_arguments(scoring),
        "MAY_SEE_NOTHING": may_see_nothing(q, k, scoring),
    }
    grid = (min(num_programs, num_tiles),)
    return Launch(attention_forward_tma_kernel, grid, arguments, q.device, tiles.num_warps, tiles.num_stages)


def describable(x: Tensor) -> bool:
    """Whether TMA can read and write it where it is."""
    row_starts = [stride * x.itemsize % _ALIGNED_BYTES == 0 and stride > 0 for stride in x.stride()[:-1]]
    at_start = x.device.type == "meta" or x.data_ptr() % _ALIGNED_BYTES == 0
    return x.stride(-1) == 1 and all(row_starts) and at_start


def aligned_like(x: Tensor) -> Tensor:
    """An empty tensor of its shape that is describable: rows padded to a multiple of 16 bytes."""
    head_dim, unit = x.shape[-1], _ALIGNED_BYTES // x.itemsize
    padded = torch.empty((*x.shape[:-1], -(-head_dim // unit) * unit), dtype=x.dtype, device=x.device)
    return padded[..., :head_dim]


def programs_at_once(device: torch.device) -> int:
    """One for each multiprocessor: registers and shared memory leave no room for a second."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def require_tma(device: torch.device) -> None:
    """BackendRefusedError where there is no TMA: Triton would quietly read by pointers there."""
    if is_interpreted():
        return
    capability = torch.cuda.get_device_capability(device)
    if capability < (9, 0):
        name = torch.cuda.get_device_name(device)
        raise BackendRefusedError(
            f"attention impl 'triton-tma' needs a GPU of compute capability 9.0 (Hopper) or later, but {name} has "
            f"{capability[0]}.{capability[1]}; choose impl='triton', the same algorithm without TMA"
        )


def _descriptor(x: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, rows, columns])
