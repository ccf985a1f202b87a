"""Matches the rows of two predictions by name. Pure.

A module can have different names in two predictions. A stack of alike layers is one row (``blocks.*``), a stack of
unlike layers has one row per layer (``blocks.0``), and a one-line edit can turn one stack into the other. A module
inserted into an ``nn.Sequential`` changes the number of all modules after it. So rows are compared with every number
folded into ``*``, and a difference is shown under the most exact name that contains all of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping

STAR = "*"
Amounts = tuple[int, ...]
"""The amounts of a row: bytes and blocks of the peak; bytes and tensors saved; FLOPs, bytes and calls of a cost. An
empty tuple stands for zeros."""


def plus(one: Amounts, other: Amounts) -> Amounts:
    """Return the sum of two amounts."""
    return tuple(a + b for a, b in zip(one, other, strict=True)) if one and other else one or other


def minus(one: Amounts, other: Amounts) -> Amounts:
    """Return the first amounts minus the second."""
    return plus(one, tuple(-amount for amount in other))


def total(amounts: Iterable[Amounts]) -> Amounts:
    """Return the sum of all amounts; empty if there are none."""
    return functools.reduce(plus, amounts, ())


def summed(pairs: Iterable[tuple[str, Amounts]]) -> dict[str, Amounts]:
    """Return the sums of the amounts, by name."""
    found: dict[str, Amounts] = {}
    for name, amounts in pairs:
        found[name] = plus(found.get(name, ()), amounts)
    return found


def folded(module: str) -> str:
    """Return a module's name with ``*`` in the place of each number."""
    return ".".join(STAR if part.isdecimal() else part for part in module.split("."))


def aligned(module: str, stacks: Collection[tuple[str, ...]]) -> str:
    """Return a module's name with ``*`` in the place of the layer numbers of these stacks alone."""
    parts: list[str] = []
    for part in _parts(module):
        parts.append(STAR if part.isdecimal() and tuple(parts) in stacks else part)
    return ".".join(parts)


def stacks_in(modules: Iterable[str]) -> set[tuple[str, ...]]:
    """Return the containers, as parts of their names, that have ``*`` in the place of a layer's number in some name."""
    found = set()
    for module in modules:
        parts = _parts(module)
        found |= {parts[:depth] for depth, part in enumerate(parts) if part == STAR}
    return found


def layers_in(stack: str, modules: Iterable[str]) -> int:
    """Return how many layers of a stack have a number of their own in these names."""
    outer = _parts(stack)
    rows = {_parts(module)[: len(outer) + 1] for module in modules}
    return sum(len(row) > len(outer) and row[:-1] == outer and row[-1].isdecimal() for row in rows)


def is_in_layers(module: str, stack: str) -> bool:
    """Whether a module is a layer of this stack, or inside one."""
    outer = (*_parts(stack), STAR)
    return _parts(aligned(module, {outer[:-1]}))[: len(outer)] == outer


def name_of_difference(
    before: Mapping[str, Amounts], now: Mapping[str, Amounts], stacks: Collection[tuple[str, ...]]
) -> str:
    """Return the most exact name that contains all of a difference between rows with one folded name.

    Args:
        before: amounts by module in the baseline.
        now: amounts by module in the prediction.
        stacks: containers whose layers are one row on one of the sides.
    """
    finer: tuple[Callable[[str], str], ...] = (str, lambda module: aligned(module, stacks))
    for naming in finer:
        was, here = (summed((naming(module), amounts) for module, amounts in side.items()) for side in (before, now))
        changed = [name for name in {**here, **was} if any(minus(here.get(name, ()), was.get(name, ())))]
        if len(changed) == 1:
            return changed[0]
    return folded(next(iter(now or before)))


def _parts(module: str) -> tuple[str, ...]:
    return tuple(module.split(".")) if module else ()
