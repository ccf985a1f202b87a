"""Replaces attributes and dictionary entries for a while, and restores them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def attributes_replaced(replacements: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """Within, each ``owner.name`` is the value given. A name that the owner does not have is left alone.

    PyTorch's private names come and go between versions: what hangs on one that is gone is a nicety less, no error.
    """
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, value in replacements:
            if owner is not None and hasattr(owner, name):
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
def entry_replaced(table: MutableMapping[Any, Any], key: Any, value: Any) -> Iterator[None]:
    """Within, ``table[key]`` is the value, where the table has such a key."""
    if key not in table:
        yield
        return
    old = table[key]
    table[key] = value
    try:
        yield
    finally:
        table[key] = old
