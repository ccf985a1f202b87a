"""Sums the bytes of the tensors that a callable reaches: parameters, optimizer state, inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from perflab.base.reachable import reachable
from perflab.devices.kinds import block_bytes_on
from perflab.internals.of_torch.fakes import is_fake
from perflab.internals.of_torch.tracing import parts_of

if TYPE_CHECKING:
    import torch


def held_bytes(roots: tuple[Any, ...], device: torch.device) -> int:
    """Return the bytes of the storages on ``device`` that the roots reach, each counted once.

    ``reachable`` defines how far the roots reach. On CUDA each storage counts as large as its block, as in the counts
    of memory that a call allocates, so held and added memory are comparable.
    """
    return sum(held_storages(reachable(roots), device).values())


def held_storages(found: Iterable[Any], device: torch.device) -> dict[int, int]:
    """Return the bytes of each storage on ``device`` that tensors among these objects have, by address."""
    storages = {address: size_bytes for value in found for address, size_bytes in storages_of(value, device)}
    block_bytes = block_bytes_on(device.type)
    return {address: -(-size_bytes // block_bytes) * block_bytes for address, size_bytes in storages.items()}


def storages_of(value: Any, device: torch.device) -> Iterator[tuple[int, int]]:
    """Yield address and bytes of each storage of a tensor; nothing for a value that takes no memory on the device."""
    import torch

    for part in parts_of(value) if isinstance(value, torch.Tensor) else ():
        if _is_there(part, device) and (storage := part.untyped_storage()).nbytes():
            yield storage.data_ptr(), storage.nbytes()


def _is_there(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether the tensor takes memory on that device; a fake tensor takes none anywhere."""
    if is_fake(tensor):
        return False
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def tensors_kept_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a value and in its lists, tuples and dicts, in order. A container is entered once."""
    import torch

    seen: set[int] = set()  # a container may hold itself
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, dict | list | tuple) and id(one) not in seen:
            seen.add(id(one))
            waiting += reversed(list(one.values()) if isinstance(one, dict) else one)
