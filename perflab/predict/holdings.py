"""What is there before a call: parameters, gradients, optimizer state, buffers and inputs, each storage once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from perflab.predict.cuda_devices import on_host
from perflab.predict.modules import ModuleBook
from perflab.predict.operators import tensors_in
from perflab.predict.trace import Layer


@dataclass(frozen=True)
class Holding:
    """One tensor that is there."""

    tensor: Tensor
    kind: str
    module: str
    layer: Layer | None


def holdings(found: Iterable[Any], book: ModuleBook, left_out: Iterable[nn.Module] = ()) -> Iterator[Holding]:
    """The tensors among these objects with what they are for: modules in their order, the optimizer, the rest.

    Args:
        found: objects that a callable reaches.
        book: names of modules.
        left_out: layers that are not to be there, with their gradients and optimizer state.
    """
    found = list(found)
    absent = {id(tensor) for layer in left_out for tensor in (*layer.parameters(), *layer.buffers())}
    absent |= {id(parameter.grad) for layer in left_out for parameter in layer.parameters()} - {id(None)}
    owners: dict[int, tuple[str, Layer | None]] = {}
    ours: list[Holding] = []
    for module in book.modules:
        name, layer = book.of(module)
        for parameter in module.parameters(recurse=False):
            if id(parameter) not in absent:
                owners.setdefault(id(parameter), (name, layer))
                ours.append(Holding(parameter, "parameters", name, layer))
        for buffer in module.buffers(recurse=False):
            if id(buffer) not in absent:
                ours.append(Holding(buffer, "buffers", name, layer))
    seen = {id(one.tensor) for one in ours}
    loose = [value for value in found if isinstance(value, nn.Parameter) and id(value) not in seen | absent]
    ours += [Holding(parameter, "parameters", "", None) for parameter in loose]
    gradients = [
        Holding(one.tensor.grad, "gradients", one.module, one.layer)
        for one in ours
        if one.tensor.grad is not None and one.kind == "parameters"
    ]
    states = [
        Holding(tensor, "optimizer state", *owners.get(id(parameter), ("", None)))
        for optimizer in found
        if isinstance(optimizer, torch.optim.Optimizer)
        for parameter, state in optimizer.state.items()
        if id(parameter) not in absent
        for tensor in tensors_in(state)
        if not on_host(tensor)
    ]
    absent |= {
        id(tensor)
        for optimizer in found
        if isinstance(optimizer, torch.optim.Optimizer)
        for parameter, state in optimizer.state.items()
        if id(parameter) in absent
        for tensor in tensors_in(state)
    }
    yield from (*ours, *gradients, *states)
    known = {id(one.tensor) for one in (*ours, *gradients, *states)}
    for value in found:
        if isinstance(value, Tensor) and id(value) not in known | absent and not on_host(value):
            yield Holding(value, "inputs", "", None)
