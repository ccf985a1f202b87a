"""Decides whether layers are alike: same classes, shapes and settings. Pure.

A setting that increases by one from layer to layer (``layer_idx``) does not count as a difference. The comparison
cannot detect what a layer decides by such a number, or what a model does to its seventh layer alone: neither shows in
how the layers are built. Attributes that a run of a few layers has set (``self.last = y``, a cache, a counter) do not
count as a difference either: a run of the other layers would set them too.
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

from perflab.internals.of_torch.tracing import PARTS_OF_A_MODULE

Written = WeakKeyDictionary[nn.Module, set[str]]
"""Modules with the names of those attributes that a run of a few layers has set."""
_Marks = dict[str, tuple[int, int]]
"""The ``id`` and length of each attribute's value, by attribute name; the length is 0 if the value is no container.

The values themselves are not held: holding them would keep alive what the run frees.
"""


@dataclass
class _Look:
    """The state of one comparison: attributes to ignore, and objects already visited."""

    written: Written
    seen: dict[int, Any] = field(default_factory=dict)
    """The objects already visited, by ``id``; holding the objects keeps their ids from being reused."""


def are_alike(layers: Sequence[nn.Module], written: Written | None = None) -> bool:
    """Whether all layers do the same, as far as that shows without running them.

    Args:
        layers: the modules to compare.
        written: attributes to ignore, since a run has set them in some of the layers only.
    """
    return _alike(layers, _Look(WeakKeyDictionary() if written is None else written)) and not _share_among_some(layers)


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


def common_modules(layers: Sequence[nn.Module]) -> set[int]:
    """The ``id`` of each module that is in all layers."""
    return set.intersection(*({id(module) for module in layer.modules()} for layer in layers))


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
    if isinstance(first, list | tuple):
        return _all_alike(column, look)
    if isinstance(first, dict):
        return _all_alike([_entries(one) for one in column], look)
    if isinstance(first, types.FunctionType):
        return _all_alike([_of_function(one) for one in column], look)
    if isinstance(first, types.MethodType):
        return _all_alike([(one.__func__, one.__self__) for one in column], look)
    if isinstance(first, functools.partial):
        return _all_alike([(one.func, one.args, one.keywords) for one in column], look)
    if isinstance(first, nn.Module):
        passing = set[str]().union(*(look.written.get(one, ()) for one in column))
        kept = [{name: value for name, value in vars(one).items() if name not in passing} for one in column]
        return _all_alike(list(map(_entries, kept)), look)
    if not all(_equal(one, first) for one in column):
        return hasattr(first, "__dict__") and _all_alike([_entries(vars(one)) for one in column], look)
    return True


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


def _of_function(function: types.FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__, tuple(_enclosed(function))


def _enclosed(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # the cell is still empty
            yield cell.cell_contents


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # such as arrays, whose comparison has no single truth value
        return False
