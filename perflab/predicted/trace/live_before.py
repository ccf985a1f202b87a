"""Finds the tensors alive before a call: parameters, gradients, optimizer state, buffers, inputs; each tensor once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from perflab.predicted.cuda.devices import on_host
from perflab.predicted.trace.modules import ModuleBook
from perflab.predicted.trace.operators import tensors_in
from perflab.predicted.trace.trace import Layer


@dataclass(frozen=True)
class Holding:
    """One tensor that is alive before the call."""

    tensor: Tensor
    kind: str
    module: str
    layer: Layer | None


def holdings(found: Iterable[Any], book: ModuleBook, left_out: Iterable[nn.Module] = ()) -> Iterator[Holding]:
    """Yield the tensors among these objects with their kinds: those of modules, gradients, optimizer state, the rest.

    Args:
        found: objects that a callable reaches.
        book: names of modules.
        left_out: layers to treat as absent, with their gradients and optimizer state.
    """
    found = list(found)
    absent = _absent(found, book, list(left_out))
    ours: dict[int, Holding] = {}
    for module in book.modules:
        name, layer = book.of(module)
        for kind, tensors in (("parameters", module.parameters(False)), ("buffers", module.buffers(False))):
            for tensor in tensors:
                known = ours.setdefault(id(tensor), Holding(tensor, kind, name, layer))
                if known.layer != layer:  # several layers share the tensor, so it belongs to none
                    ours[id(tensor)] = replace(known, layer=None)
    for value in found:
        if isinstance(value, nn.Parameter):
            ours.setdefault(id(value), Holding(value, "parameters", "", None))
    for gone in ours.keys() & absent:
        del ours[gone]
    gradients = [
        Holding(one.tensor.grad, "gradients", one.module, one.layer)
        for one in ours.values()
        if one.tensor.grad is not None and one.kind == "parameters"
    ]
    states = [
        Holding(tensor, "optimizer state", owner.module if owner else "", owner.layer if owner else None)
        for parameter, tensor in _optimizer_states(found)
        for owner in [ours.get(id(parameter))]
        if id(tensor) not in absent and not on_host(tensor)
    ]
    yield from (*ours.values(), *gradients, *states)
    listed = {id(one.tensor) for one in (*ours.values(), *gradients, *states)}
    for module in book.modules:
        for tensor in _tensors_of(module):  # tensors that the module keeps, such as a cache of keys and values
            if id(tensor) not in listed | absent and not on_host(tensor):
                listed.add(id(tensor))
                yield Holding(tensor, "inputs", *book.of(module))
    for value in found:
        if isinstance(value, Tensor) and id(value) not in listed | absent and not on_host(value):
            yield Holding(value, "inputs", "", None)


def _absent(found: Iterable[Any], book: ModuleBook, left_out: Sequence[nn.Module]) -> set[int]:
    """Return the ids of tensors that exist only for left-out layers, with their gradients and optimizer state.

    Tensors that a remaining layer or module has too are not among them.
    """
    gone = {id(module) for layer in left_out for module in layer.modules()}
    there = [inner for module in book.modules if id(module) not in gone for inner in module.modules()]
    staying = {id(tensor) for module in there for tensor in _tensors_of(module)}
    leaving = {
        id(tensor): tensor
        for layer in left_out
        for module in layer.modules()
        for tensor in _tensors_of(module)
        if id(tensor) not in staying
    }
    gradients = {id(tensor.grad) for tensor in leaving.values() if tensor.is_leaf and tensor.grad is not None}
    states = {id(tensor) for parameter, tensor in _optimizer_states(found) if id(parameter) in leaving}
    return {*leaving, *gradients, *states}


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield a module's own tensors: parameters, buffers, and tensors kept in other attributes."""
    return tensors_in(vars(module))


def _optimizer_states(found: Iterable[Any]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each parameter with each tensor that an optimizer keeps for it, in the order of the optimizer's groups."""
    for optimizer in found:
        if isinstance(optimizer, torch.optim.Optimizer):
            listed = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            for parameter in dict.fromkeys([*listed, *optimizer.state]):
                for tensor in tensors_in(optimizer.state.get(parameter, {})):
                    yield parameter, tensor
