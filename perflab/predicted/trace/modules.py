"""The modules that a callable reaches: their names, and repeated layers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from perflab.attribution.places import outermost
from perflab.internals.of_torch.tracing import children_of, set_children
from perflab.predicted.trace.alike import Written, are_alike, common_modules, noting_what_is_written
from perflab.predicted.trace.trace import Layer

FEW = 3
"""The number of layers to run: the first, one between and the last; one more shows that the layer between repeats."""
NONE: frozenset[int] = frozenset()
WORTH_CUTTING = 6
"""The least number of layers in a stack worth cutting: two runs with about ``FEW`` layers are no more work then."""


@dataclass
class Stack:
    """A container of alike layers; ``size`` is the number of layers in the whole container."""

    name: str
    container: nn.Module
    size: int


@dataclass
class ModuleBook:
    """The names of modules, with ``*`` in place of a layer's number, and the layer that each module belongs to."""

    names: dict[int, tuple[str, Layer | None]] = field(default_factory=dict)
    """The name and layer of each module, by the module's ``id``."""
    stacks: list[Stack] = field(default_factory=list)
    modules: list[nn.Module] = field(default_factory=list)
    """The modules, parents before children; holding the modules keeps their ids from being reused."""
    written: Written = field(default_factory=WeakKeyDictionary)
    """The attributes that runs with fewer layers have set in the layers that ran."""

    @property
    def layers(self) -> dict[str, int]:
        """The current number of layers in each stack."""
        return {stack.name: len(children_of(stack.container)) for stack in self.stacks}

    @property
    def long_stacks(self) -> dict[str, int]:
        """The number of layers of each stack worth cutting; events belong to layers of these stacks alone."""
        return {stack.name: stack.size for stack in self.stacks if stack.size >= WORTH_CUTTING}

    def of(self, module: nn.Module) -> tuple[str, Layer | None]:
        """Return a module's name and layer; a module made after the book has its class's name and no layer."""
        return self.names.get(id(module)) or (type(module).__name__, None)

    @contextlib.contextmanager
    def cut(self, count: int) -> Iterator[list[nn.Module]]:
        """Reduce each long stack to its first ``count`` layers within the block; yield the layers left out."""
        long = self.long_stacks
        whole = [(stack.container, children_of(stack.container)) for stack in self.stacks if stack.name in long]
        ran = [
            module
            for _, modules in whole
            for layer in list(modules.values())[:count]
            if layer is not None
            for module in layer.modules()
        ]
        try:
            for container, modules in whole:
                set_children(container, dict(list(modules.items())[:count]))
            with noting_what_is_written(ran, self.written):
                yield [layer for _, modules in whole for layer in list(modules.values())[count:] if layer is not None]
        finally:
            for container, modules in whole:
                set_children(container, modules)


def book_of(found: Iterable[Any], written: Written | None = None) -> ModuleBook:
    """Return the book of all modules among these objects.

    Names begin as in ``outermost``.

    Args:
        found: objects that a callable reaches.
        written: attributes that earlier runs with fewer layers have set; later runs add to it.
    """
    book = ModuleBook() if written is None else ModuleBook(written=written)
    for root, prefix in outermost([value for value in found if isinstance(value, nn.Module)]):
        _enter(book, root, prefix, None)
    return book


def _enter(book: ModuleBook, module: nn.Module, name: str, layer: Layer | None, common: frozenset[int] = NONE) -> None:
    """Enter a module and its children into the book.

    ``common``: ids of modules that all layers of a stack share, which belong to no layer.
    """
    if id(module) in book.names:
        return  # a shared module has the name of the first place at which it is met
    if id(module) in common:
        layer = None
    book.names[id(module)] = (name, layer)
    book.modules.append(module)
    children = [(key, child) for key, child in children_of(module).items() if child is not None]
    layers = [child for _, child in children]
    repeats = isinstance(module, nn.ModuleList | nn.Sequential) and len(layers) > 1 and layer is None
    repeats = repeats and are_alike(layers, book.written)
    is_long = repeats and len(layers) >= WORTH_CUTTING
    if repeats:
        book.stacks.append(Stack(name, module, len(layers)))
    if is_long:
        common = common | common_modules(layers)
    for number, (key, child) in enumerate(children):
        own = "*" if repeats else key
        _enter(book, child, f"{name}.{own}" if name else own, Layer(name, number) if is_long else layer, common)
