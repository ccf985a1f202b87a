"""Whether layers are built alike: the same classes, shapes and settings, and nothing that only some share. Pure.

A setting that is each layer's own number, or counts with it (``layer_idx``), is alike. What a layer decides by such a
number, and what a model does to its seventh layer alone, nobody can see from how they are built.
"""

from __future__ import annotations

import contextlib
import functools
import re
import types
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

_Seen = dict[int, Any]
"""By ``id``, what has been looked at; the values keep the ids theirs."""


def are_alike(layers: Sequence[nn.Module]) -> bool:
    """Whether what one of these does, the others do too, as far as that can be seen without running them."""
    return _alike(layers, {}) and not _share_among_some(layers)


def common_modules(layers: Sequence[nn.Module]) -> set[int]:
    """The ``id`` of each module that is in all layers."""
    return set.intersection(*({id(module) for module in layer.modules()} for layer in layers))


def _share_among_some(layers: Sequence[nn.Module]) -> bool:
    """Whether a module, parameter or buffer is in more than one of them, and not in all."""
    owners = Counter(
        part
        for layer in layers
        for part in {*map(id, layer.modules()), *map(id, layer.parameters()), *map(id, layer.buffers())}
    )
    return not set(owners.values()) <= {1, len(layers)}


def _alike(column: Sequence[Any], seen: _Seen) -> bool:
    """Whether what stands at one place in each layer is the same, or differs by the layers' numbers alone."""
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
        return len(set(column)) == 1 or (len(rows[0]) > 1 and _all_alike(rows, seen))
    if id(first) in seen:
        return True  # it is being looked at
    seen[id(first)] = first
    if isinstance(first, list | tuple):
        return _all_alike(column, seen)
    if isinstance(first, dict):
        return _all_alike([_entries(one) for one in column], seen)
    if isinstance(first, types.FunctionType):
        return _all_alike([_of_function(one) for one in column], seen)
    if isinstance(first, types.MethodType):
        return _all_alike([(one.__func__, one.__self__) for one in column], seen)
    if isinstance(first, functools.partial):
        return _all_alike([(one.func, one.args, one.keywords) for one in column], seen)
    if isinstance(first, nn.Module) or not all(_equal(one, first) for one in column):
        return hasattr(first, "__dict__") and _all_alike([_entries(vars(one)) for one in column], seen)
    return True


def _all_alike(rows: Sequence[Sequence[Any]], seen: _Seen) -> bool:
    """Rows of one length, alike in every column."""
    return len({len(row) for row in rows}) == 1 and all(_alike(column, seen) for column in zip(*rows, strict=True))


def _pieces(text: str) -> list[str | int]:
    """``layers.3.norm`` in words and numbers."""
    return [int(piece) if piece.isdecimal() else piece for piece in re.split(r"(\d+)", text)]


def _entries(entries: dict[Any, Any]) -> list[Any]:
    """Keys with their values; a number is no key that layers have in common: hooks are counted over all modules."""
    return [value if isinstance(key, int) else (key, value) for key, value in entries.items()]


def _of_function(function: types.FunctionType) -> tuple[Any, ...]:
    return function.__code__, function.__defaults__, function.__kwdefaults__, tuple(_enclosed(function))


def _enclosed(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing was put into it yet
            yield cell.cell_contents


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (TypeError, ValueError, RuntimeError):  # an array, say, of which one answer cannot be had
        return False
