"""Sums the bytes of the tensors that a callable reaches: parameters, optimizer state, inputs."""

from __future__ import annotations

from collections.abc import Iterable
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
    return sum(held_storages(reachable(roots), device).values())


def held_storages(found: Iterable[Any], device: torch.device) -> dict[int, int]:
    """By address, the size of each storage on ``device`` that tensors among these objects have."""
    storages = dict(storage for value in found if (storage := storage_of(value, device)) is not None)
    block_bytes = _CUDA_BLOCK_BYTES if device.type == "cuda" else 1
    return {address: -(-size_bytes // block_bytes) * block_bytes for address, size_bytes in storages.items()}


def storage_of(value: Any, device: torch.device) -> tuple[int, int] | None:
    """Address and bytes of a tensor's storage; None of what takes no memory on that device."""
    import torch

    if not (isinstance(value, torch.Tensor) and _is_there(value, device) and value.layout is torch.strided):
        return None
    storage = value.untyped_storage()
    return (storage.data_ptr(), storage.nbytes()) if storage.nbytes() else None


def _is_there(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether the tensor takes memory on that device; a fake tensor takes none anywhere."""
    if is_fake(tensor):
        return False
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)
