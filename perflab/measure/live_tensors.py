"""Sums the bytes of the tensors that a callable reaches: parameters, optimizer state, inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perflab.reachable import reachable
from perflab.torch_internals.fakes import is_fake

if TYPE_CHECKING:
    import torch


_CUDA_BLOCK_BYTES = 512
"""PyTorch's CUDA allocator gives out multiples of it, and counts them so (``kMinBlockSize``); a CPU's does not."""


def held_bytes(roots: tuple[Any, ...], device: torch.device) -> int:
    """Sum of the storages on ``device`` that the roots reach, each counted once; ``reachable`` says how far that is.

    On CUDA each is as large as its block, as what a call allocates is: what is held and what is added are one kind.
    """
    import torch

    storages: dict[int, int] = {}
    for value in reachable(roots):
        if isinstance(value, torch.Tensor) and _is_there(value, device) and value.layout is torch.strided:
            storage = value.untyped_storage()
            if storage.nbytes():
                storages[storage.data_ptr()] = storage.nbytes()
    block_bytes = _CUDA_BLOCK_BYTES if device.type == "cuda" else 1
    return sum(-(-size_bytes // block_bytes) * block_bytes for size_bytes in storages.values())


def _is_there(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether the tensor takes memory on that device; a fake tensor takes none anywhere."""
    if is_fake(tensor):
        return False
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)
