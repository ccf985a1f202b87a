"""The modules that a callable reaches: their names, repeated layers, and the tensors alive before a call.

Layers repeat if they are alike: same classes, shapes and settings. A setting that increases by one from layer to layer
(``layer_idx``) does not count as a difference. The comparison cannot detect what a layer decides by such a number, or
what a model does to its seventh layer alone: neither shows in how the layers are built. Attributes that a run of a few
layers has set (``self.last = y``, a cache, a counter) do not count as a difference either: a run of the other layers
would set them too.
"""

from __future__ import annotations

import contextlib
import functools
import re
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from perflab.attribution.held import held_tensors, optimizer_states, tensors_kept_in
from perflab.attribution.places import outermost
from perflab.internals.of_torch.tracing import PARTS_OF_A_MODULE, children_of, set_children
from perflab.predicted.cuda.devices import on_host
from perflab.predicted.trace.trace import Layer

FEW = 3
"""The number of layers to run: the first, one between and the last; one more shows that the layer between repeats."""
WORTH_CUTTING = 6
"""The least number of layers in a stack worth cutting: two runs with about ``FEW`` layers are no more work then."""
Written = WeakKeyDictionary[nn.Module, set[str]]
"""Modules with the names of those attributes that a run of a few layers has set."""
_Marks = dict[str, tuple[int, int]]
"""The ``id`` and length of each attribute's value, by attribute name; the length is 0 if the value is no container.

The values themselves are not held: holding them would keep alive what the run frees.
"""
_NOT_OF_MODULES = ("optimizer state", "inputs")
"""The categories of tensors that may be in host memory, which takes no memory of the GPU."""


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


def _enter(
    book: ModuleBook, module: nn.Module, name: str, layer: Layer | None, common: frozenset[int] = frozenset()
) -> None:
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
    repeats = repeats and _alike(layers, _Look(book.written)) and not _share_among_some(layers)
    is_long = repeats and len(layers) >= WORTH_CUTTING
    if repeats:
        book.stacks.append(Stack(name, module, len(layers)))
    if is_long:
        common = common | set.intersection(*({id(inner) for inner in one.modules()} for one in layers))
    for number, (key, child) in enumerate(children):
        own = "*" if repeats else key
        _enter(book, child, f"{name}.{own}" if name else own, Layer(name, number) if is_long else layer, common)


@dataclass
class _Look:
    """The state of one comparison: attributes to ignore, and objects already visited."""

    written: Written
    seen: dict[int, Any] = field(default_factory=dict)
    """The objects already visited, by ``id``; holding the objects keeps their ids from being reused."""


@contextlib.contextmanager
def noting_what_is_written(modules: Iterable[nn.Module], written: Written) -> Iterator[None]:
    """Add to ``written`` the names of attributes that the block sets, deletes or changes in length on these modules."""
    before = [(module, _marks(module)) for module in modules]
    try:
        yield
    finally:
        for module, marks in before:
            names = {name for name, _ in marks.items() ^ _marks(module).items()} - PARTS_OF_A_MODULE
            if names:
                written.setdefault(module, set()).update(names)


def _marks(module: nn.Module) -> _Marks:
    sized = (list, dict, set, tuple)
    return {name: (id(value), len(value) if isinstance(value, sized) else 0) for name, value in vars(module).items()}


def _share_among_some(layers: Sequence[nn.Module]) -> bool:
    """Whether a module, parameter or buffer is in more than one layer, but not in all."""
    owners = Counter(
        part
        for layer in layers
        for part in {*map(id, layer.modules()), *map(id, layer.parameters()), *map(id, layer.buffers())}
    )
    return not set(owners.values()) <= {1, len(layers)}


def _alike(column: Sequence[Any], look: _Look) -> bool:
    """Whether the values at one place of all layers are equal, or differ only by the layers' numbers."""
    first = column[0]
    if all(one is first for one in column):
        return True
    if any(type(one) is not type(first) for one in column):
        return False
    if isinstance(first, Tensor):
        return len({(one.shape, one.dtype, one.requires_grad) for one in column}) == 1
    if isinstance(first, int) and not isinstance(first, bool):
        return len(set(column)) == 1 or len({one - number for number, one in enumerate(column)}) == 1
    if isinstance(first, str):
        rows = [_pieces(one) for one in column]
        return len(set(column)) == 1 or (len(rows[0]) > 1 and _all_alike(rows, look))
    if id(first) in look.seen:
        return True  # compared before, or further up the call stack
    look.seen[id(first)] = first
    if isinstance(first, nn.Module):
        passing = set[str]().union(*(look.written.get(one, ()) for one in column))
        kept = [{name: value for name, value in vars(one).items() if name not in passing} for one in column]
        return _all_alike(list(map(_entries, kept)), look)
    if (parts := [_made_of(one) for one in column])[0] is not None:
        return _all_alike(parts, look)
    return all(_equal(one, first) for one in column) or (
        hasattr(first, "__dict__") and _all_alike([_entries(vars(one)) for one in column], look)
    )


def _all_alike(rows: Sequence[Sequence[Any]], look: _Look) -> bool:
    """Whether all rows have the same length and every column is alike."""
    return len({len(row) for row in rows}) == 1 and all(_alike(column, look) for column in zip(*rows, strict=True))


def _pieces(text: str) -> list[str | int]:
    """Split a text such as ``layers.3.norm`` into words and numbers."""
    return [int(piece) if piece.isdecimal() else piece for piece in re.split(r"(\d+)", text)]


def _entries(entries: dict[Any, Any]) -> list[Any]:
    """Return each key with its value, or the value alone if the key is an integer.

    Layers have no integer keys in common: the keys of hooks come from a counter over all modules.
    """
    return [value if isinstance(key, int) else (key, value) for key, value in entries.items()]


def _made_of(value: Any) -> Any:
    """Return the parts of a container or function, one by one; None for any other value."""
    if isinstance(value, list | tuple):
        return value
    if isinstance(value, dict):
        return _entries(value)
    if isinstance(value, types.FunctionType):
        return value.__code__, value.__defaults__, value.__kwdefaults__, tuple(_enclosed(value))
    if isinstance(value, types.MethodType):
        return value.__func__, value.__self__
    return (value.func, value.args, value.keywords) if isinstance(value, functools.partial) else None


def _enclosed(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the cell is still empty
            yield cell.cell_contents


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # such as arrays, whose comparison has no single truth value
        return False


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
