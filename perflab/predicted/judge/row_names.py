"""Matches the rows of two predictions by name. Pure.

The same module can have several names. A stack of alike layers is one row (``blocks.*``), one of unlike layers a row
for each (``blocks.0``), and a line of code can make the one the other; what is put into an ``nn.Sequential`` changes
the number of all that follows. So rows are compared with every number folded into ``*``, and a difference is told
under the most exact name that all of it is in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping

STAR = "*"
Amounts = tuple[int, ...]
"""Bytes and blocks of the peak; bytes and tensors saved; FLOPs, bytes and calls of a cost. Empty: nothing."""


def plus(one: Amounts, other: Amounts) -> Amounts:
    """Both together."""
    return tuple(a + b for a, b in zip(one, other, strict=True)) if one and other else one or other


def minus(one: Amounts, other: Amounts) -> Amounts:
    """The first without the other."""
    return plus(one, tuple(-amount for amount in other))


def total(amounts: Iterable[Amounts]) -> Amounts:
    """All together."""
    return functools.reduce(plus, amounts, ())


def summed(pairs: Iterable[tuple[str, Amounts]]) -> dict[str, Amounts]:
    """The sum of all amounts that have the same name."""
    found: dict[str, Amounts] = {}
    for name, amounts in pairs:
        found[name] = plus(found.get(name, ()), amounts)
    return found


def folded(module: str) -> str:
    """A module's name with ``*`` in the place of each number."""
    return ".".join(STAR if part.isdecimal() else part for part in module.split("."))


def aligned(module: str, stacks: Collection[tuple[str, ...]]) -> str:
    """The name with ``*`` in the place of the numbers of these stacks' layers alone."""
    parts: list[str] = []
    for part in _parts(module):
        parts.append(STAR if part.isdecimal() and tuple(parts) in stacks else part)
    return ".".join(parts)


def stacks_in(modules: Iterable[str]) -> set[tuple[str, ...]]:
    """The containers, in the parts of their names, of which some name has ``*`` in the place of a layer's number."""
    found = set()
    for module in modules:
        parts = _parts(module)
        found |= {parts[:depth] for depth, part in enumerate(parts) if part == STAR}
    return found


def layers_in(stack: str, modules: Iterable[str]) -> int:
    """How many layers of a stack have names with a number of their own."""
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
    """The most exact name that all of a difference is in, of rows that are one row when their numbers are folded.

    Args:
        before: amounts by module.
        now: the same now.
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
