"""Finds the tensors alive before a call, with the layer of each; the tensors of layers that are left out are absent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from perflab.attribution.held import held_tensors, optimizer_states, tensors_kept_in
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.trace.modules import ModuleBook
from perflab.predicted.trace.trace import Layer

_NOT_OF_MODULES = ("optimizer state", "inputs")
"""The categories of tensors that may be in host memory, which takes no memory of the GPU."""


@dataclass(frozen=True)
class Holding:
    """One tensor that is alive before the call."""

    tensor: Tensor
    category: str
    module: str
    layer: Layer | None


def holdings(found: Iterable[Any], book: ModuleBook, left_out: Iterable[nn.Module] = ()) -> Iterator[Holding]:
    """Yield the tensors among these objects with their categories, module names and layers.

    Args:
        found: objects that a callable reaches.
        book: names of modules.
        left_out: layers to treat as absent, with their gradients and optimizer state.
    """
    found = list(found)
    absent = _absent(found, book, list(left_out))
    layers: dict[int, set[Layer | None]] = {}
    for module in book.modules:
        for tensor in (*module.parameters(False), *module.buffers(False)):
            layers.setdefault(id(tensor), set()).add(book.of(module)[1])
    for one in held_tensors(found, book.modules):
        if id(one.tensor) in absent or (one.category in _NOT_OF_MODULES and on_host(one.tensor)):
            continue
        name, layer = book.of(one.module) if one.module is not None else ("", None)
        if len(layers.get(id(one.tensor if one.owner is None else one.owner), ())) > 1:
            layer = None  # several layers share the tensor, so it belongs to none
        yield Holding(one.tensor, one.category, name, layer)


def _absent(found: Iterable[Any], book: ModuleBook, left_out: Sequence[nn.Module]) -> set[int]:
    """Return the ids of tensors that exist only for left-out layers, with their gradients and optimizer state.

    Tensors that a remaining layer or module has too are not among them.
    """
    gone = {id(module) for layer in left_out for module in layer.modules()}
    there = [inner for module in book.modules if id(module) not in gone for inner in module.modules()]
    staying = {id(tensor) for module in there for tensor in tensors_kept_in(vars(module))}
    leaving = {
        id(tensor): tensor
        for layer in left_out
        for module in layer.modules()
        for tensor in tensors_kept_in(vars(module))
        if id(tensor) not in staying
    }
    gradients = {id(tensor.grad) for tensor in leaving.values() if tensor.is_leaf and tensor.grad is not None}
    states = {id(tensor) for parameter, tensor in optimizer_states(found) if id(parameter) in leaving}
    return {*leaving, *gradients, *states}
