"""Values by what they have in common. Imports no other module of perflab."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

_Value = TypeVar("_Value")
_Key = TypeVar("_Key", bound=Hashable)


def groups_of(values: Iterable[_Value], key: Callable[[_Value], _Key]) -> dict[_Key, list[_Value]]:
    """Return the values of each key, keys and values in the order in which they were met."""
    found: dict[_Key, list[_Value]] = {}
    for value in values:
        found.setdefault(key(value), []).append(value)
    return found
