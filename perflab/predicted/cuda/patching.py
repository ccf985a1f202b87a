"""Replaces attributes and shape rules for the length of a block, and restores them.

Attributes with a private name come from ``perflab.internals.of_torch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from perflab.internals.lookup import TORCH, missing
from perflab.internals.of_torch.tracing import forget_shapes

_ABSENT = object()


@contextmanager
def attributes_replaced(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Within the block, each ``owner.name`` is the given value.

    Raises:
        InternalsError: an owner has no such attribute. Without the error a prediction would silently be that of another
            device.
    """
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in replacements:
            if not hasattr(owner, name):
                raise missing(TORCH, f"{getattr(owner, '__name__', owner)}.{name}", "predict what a GPU would do")
            # Save a class's own entry alone, so that restoring does not copy an inherited attribute into the class.
            old = vars(owner).get(name, _ABSENT) if isinstance(owner, type) else getattr(owner, name)
            before.append((owner, name, old))
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, old in reversed(before):
            if old is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


@contextmanager
def shape_rules_replaced(table: dict[Any, Any], rules: Mapping[Any, Any]) -> Iterator[None]:
    """Within the block, PyTorch's table has these rules for shapes of fake tensors, by operator.

    PyTorch caches the results of fake tensors by shape and dtype, so the cache is cleared at the block's start and end.
    """
    before = {operator: table.get(operator, _ABSENT) for operator in rules}
    table.update(rules)
    forget_shapes()
    try:
        yield
    finally:
        table.update(before)
        for operator in [one for one, rule in before.items() if rule is _ABSENT]:
            del table[operator]
        forget_shapes()
