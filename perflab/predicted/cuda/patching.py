"""Replaces attributes and rules of shapes for a while, and restores them.

Those with a private name come from ``perflab.torch_internals``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from perflab.internals import TORCH, missing
from perflab.torch_internals.fakes import forget_shapes

_ABSENT = object()


@contextmanager
def attributes_replaced(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Within, each ``owner.name`` is the value given.

    Raises:
        InternalsError: an owner has no such name. Left alone, a prediction would be another device's, and not say so.
    """
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in replacements:
            if not hasattr(owner, name):
                raise missing(TORCH, f"{getattr(owner, '__name__', owner)}.{name}", "predict what a GPU would do")
            # A class's own entry, so that what it inherits is not made its own on the way back.
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
    """Within, PyTorch's table has these rules for shapes of fake tensors, by operator.

    What fake tensors compute is remembered by shape and dtype, so that memory is emptied on the way in and out.
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
