"""Finds modules that are computed again as a whole, as activation checkpointing does: every operator once more. Pure.

No operator is known by its name. A module is computed again if all that it does in one phase is done so many times
more, on the same shapes, in the same phase or another one, and nothing else about it changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from perflab.profiles.facts import HALF, Change, Key, Total
from perflab.profiles.records import DISPATCH, UNNAMED

_LEAST = 2
"""Operators that a module must have: one that is called more often is told by its name."""

_Way = tuple[str, str, int]
"""The phase in which something is done, that in which it is done again, and how many times more."""


@dataclass(frozen=True)
class Again:
    """Modules that are computed again in the same way."""

    modules: tuple[str, ...]
    """All of them, which have operators of their own."""
    outermost: tuple[str, ...]
    """Those that the others are parts of."""
    times: int
    """How many times more than before."""


def computed_again(before: Mapping[Key, Total], now: Mapping[Key, Total], facts: Iterable[Change]) -> list[Again]:
    """Modules that are.

    Args:
        before, now: both profiles by operator, module and phase.
        facts: what differs between them.
    """
    changes: dict[str, list[Change]] = defaultdict(list)
    for fact in facts:
        if fact.category != DISPATCH:
            changes[fact.key[1]].append(fact)
    works: dict[str, dict[str, dict[str, Total]]] = defaultdict(lambda: defaultdict(dict))
    for (operator, module, phase), total in before.items():
        if total.category not in UNNAMED and total.instances > HALF:
            works[module][phase][operator] = total
    groups: dict[_Way, set[str]] = defaultdict(set)
    for module, changed in changes.items():
        for phase, work in works[module].items() if module else ():
            times = _times(work, changed, before, now)
            if times:
                groups[phase, changed[0].key[2], times].add(module)
    for (phase, in_phase, times), modules in groups.items():
        # Of what is around them a checkpoint leaves out what comes last: nothing asks for it.
        for module in changes:
            work = works[module].get(phase, {})
            around = any(inner.startswith(f"{module}.") for inner in modules)
            if around and all(_is_some_of(work, one, in_phase, times) for one in changes[module]):
                modules.add(module)
    working = [module for module in works if module]
    found = (Again(*_as_a_whole(modules, working), times) for (_, _, times), modules in groups.items())
    return [one for one in found if one.outermost]


def _times(
    work: Mapping[str, Total], changed: Sequence[Change], before: Mapping[Key, Total], now: Mapping[Key, Total]
) -> int:
    """How many times more all of this work is done, if that is all that changed; 0: that it is not."""
    if (
        len(work) < _LEAST
        or {one.key[0] for one in changed} != work.keys()
        or len({one.key for one in changed}) != len(work)
    ):
        return 0
    if len({one.key[2] for one in changed}) != 1:
        return 0
    times = round(changed[0].more / work[changed[0].key[0]].instances)
    if times < 1:
        return 0
    for one in changed:
        done = work[one.key[0]]
        old, new = before.get(one.key, Total()), now.get(one.key, Total())
        for shapes in {*done.shapes, *old.shapes, *new.shapes}:
            more = new.shapes.get(shapes, 0.0) - old.shapes.get(shapes, 0.0)
            if abs(more - times * done.shapes.get(shapes, 0.0)) > HALF:
                return 0
    return times


def _is_some_of(work: Mapping[str, Total], one: Change, phase: str, times: int) -> bool:
    operator = one.key[0]
    return one.key[2] == phase and operator in work and 0 < one.more <= times * work[operator].instances + HALF


def _as_a_whole(modules: Iterable[str], working: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Those of these modules below which all that works is among them, and their longest paths, most parts first.

    A module that does its own work again and not that of all modules within it is not computed again as a whole.
    """
    found: dict[str, int] = {}
    left = set(modules)
    paths = {".".join(name.split(".")[:depth]) for name in left for depth in range(1, name.count(".") + 2)}
    for path in sorted(paths, key=lambda one: (one.count("."), one)):
        below = {name for name in working if _is_in(name, path)} | {name for name in left if _is_in(name, path)}
        if below and below <= left:
            found[_common_path(below)] = len(below)
            left -= below
    covered = sorted(set(modules) - left)
    return tuple(covered), tuple(sorted(found, key=lambda one: (-found[one], one)))


def _common_path(names: Iterable[str]) -> str:
    """``blocks.*`` of ``blocks.*``, ``blocks.*.q`` and ``blocks.*.k``."""
    parts = [name.split(".") for name in names]
    return ".".join(one[0] for one in takewhile(lambda one: len(set(one)) == 1, zip(*parts, strict=False)))


def _is_in(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")
