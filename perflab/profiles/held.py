"""Memory that a callable holds before it runs, by module and by use: parameters, gradients, optimizer state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perflab.measure.live_tensors import held_storages, storages_of
from perflab.profiles.records import INPUTS, PeakPart

if TYPE_CHECKING:
    import torch


def held_by_address(found: Sequence[Any], names: Mapping[int, str], device: torch.device) -> dict[int, PeakPart]:
    """Return the storages of these objects on the device, each once, by address; their sizes add up to ``held_bytes``.

    ``names`` are the names of modules, by ``id``.
    """
    sizes = held_storages(found, device)
    owners: dict[int, tuple[str, str]] = {}
    for category, module, tensor in (*_of_modules(found, names), *((INPUTS, "", one) for one in found)):
        for address, _ in storages_of(tensor, device):
            owners.setdefault(address, (category, module))
    return {
        address: PeakPart(category=owners[address][0], module=owners[address][1], size_bytes=size_bytes, blocks=1)
        for address, size_bytes in sizes.items()
    }


def _of_modules(found: Sequence[Any], names: Mapping[int, str]) -> Iterator[tuple[str, str, Any]]:
    """Yield category, module name and tensor; parameters come first, since one tensor may be in several categories."""
    import torch
    from torch import nn

    owner: dict[int, str] = {}
    for module in found:
        if isinstance(module, nn.Module):
            for parameter in module.parameters(recurse=False):
                owner.setdefault(id(parameter), names.get(id(module), ""))
                yield "parameters", owner[id(parameter)], parameter
    loose = [one for one in found if isinstance(one, nn.Parameter) and id(one) not in owner]
    yield from (("parameters", "", one) for one in loose)
    for one in found:
        if isinstance(one, torch.Tensor) and one.is_leaf and one.grad is not None:
            yield "gradients", owner.get(id(one), ""), one.grad
    for optimizer in found:
        if isinstance(optimizer, torch.optim.Optimizer):
            for key, state in optimizer.state.items():
                for tensor in state.values() if isinstance(state, dict) else ():
                    yield "optimizer state", owner.get(id(key), ""), tensor
    for module in found:
        if isinstance(module, nn.Module):
            for buffer in module.buffers(recurse=False):
                yield "buffers", names.get(id(module), ""), buffer
