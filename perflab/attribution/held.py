"""The tensors that a callable reaches: their bytes, what each is for before a call, and the module that holds it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perflab.attribution.reachable import reachable
from perflab.devices.kinds import block_bytes_on
from perflab.internals.of_torch.tracing import is_fake, parts_of
from perflab.results.peak import INPUTS, PeakPart

if TYPE_CHECKING:
    import torch
    from torch import nn


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


class Held(NamedTuple):
    """One tensor that is alive before a call."""

    tensor: torch.Tensor
    category: str
    """``parameters``, ``buffers``, ``gradients``, ``optimizer state`` or ``inputs``."""
    module: nn.Module | None = None
    """The first module that has the tensor itself, or has its ``owner``; None: no module has it."""
    owner: torch.Tensor | None = None
    """The parameter that a gradient or an optimizer's state belongs to; None for all other tensors."""


def held_tensors(found: Sequence[Any], modules: Sequence[nn.Module]) -> Iterator[Held]:
    """Yield the tensors among the objects ``found``, with the gradients, states and attributes of these objects.

    A tensor with several uses is yielded with the first of these: parameter or buffer of a module, loose parameter,
    gradient, optimizer state, other attribute of a module (such as a cache of keys and values), and the rest, which the
    call was given: ``inputs``.

    Args:
        found: objects that a callable reaches.
        modules: the modules among them, in the order in which modules that share a tensor claim it.
    """
    import torch
    from torch import nn

    ours: dict[int, Held] = {}
    for module in modules:
        for category, tensors in (("parameters", module.parameters(False)), ("buffers", module.buffers(False))):
            for tensor in tensors:
                ours.setdefault(id(tensor), Held(tensor, category, module))
    for one in found:
        if isinstance(one, nn.Parameter):
            ours.setdefault(id(one), Held(one, "parameters"))

    def others() -> Iterator[Held]:
        leaves = [one.tensor for one in ours.values() if one.category == "parameters"]
        leaves += [one for one in found if isinstance(one, torch.Tensor) and one.is_leaf]
        for leaf in leaves:
            if leaf.grad is not None:
                yield Held(leaf.grad, "gradients", _module_of(leaf, ours), leaf)
        for parameter, tensor in optimizer_states(found):
            yield Held(tensor, "optimizer state", _module_of(parameter, ours), parameter)
        for module in modules:
            for tensor in tensors_kept_in(vars(module)):
                yield Held(tensor, INPUTS, module)
        for one in found:
            if isinstance(one, torch.Tensor):
                yield Held(one, INPUTS)

    yield from ours.values()
    listed = {*ours}
    for one in others():
        if id(one.tensor) not in listed:
            listed.add(id(one.tensor))
            yield one


def _module_of(parameter: torch.Tensor, ours: Mapping[int, Held]) -> nn.Module | None:
    owner = ours.get(id(parameter))
    return owner.module if owner is not None else None


def optimizer_states(found: Iterable[Any]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each parameter with each tensor that an optimizer keeps for it, in the order of the optimizer's groups."""
    import torch

    for optimizer in found:
        if isinstance(optimizer, torch.optim.Optimizer):
            listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for parameter in dict.fromkeys([*listed, *optimizer.state]):
                for tensor in tensors_kept_in(optimizer.state.get(parameter, {})):
                    yield parameter, tensor


def held_by_address(found: Sequence[Any], names: Mapping[int, str], device: torch.device) -> dict[int, PeakPart]:
    """Return the storages of these objects on the device, each once, by address; their sizes add up to ``held_bytes``.

    ``names`` are the names of modules, by ``id``.
    """
    from torch import nn

    owners: dict[int, Held] = {}
    for one in held_tensors(found, [module for module in found if isinstance(module, nn.Module)]):
        for address, _ in storages_of(one.tensor, device):
            owners.setdefault(address, one)
    return {
        address: PeakPart(
            category=owners[address].category,
            module=names.get(id(owners[address].module), ""),
            size_bytes=size_bytes,
            blocks=1,
        )
        for address, size_bytes in held_storages(found, device).items()
    }
