"""Finds modules that are computed again as a whole, as activation checkpointing does: every operator once more. Pure.

No operator is known by its name. A module is computed again if all that it does in one phase is done so many times
more, on the same shapes, in the same phase or another one, and nothing else about it changed; and if the same is true
of all of its parts. A checkpoint stops before what comes last in it, since nothing asks for that: on a GPU a layer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile

from perflab.profiles.facts import HALF, Change, Key, Total
from perflab.profiles.records import DISPATCH, UNNAMED

_LEAST = 2
"""Operators that modules must have that are computed again in the same way: one alone is told by its name.

On a GPU, many a layer is one operator.
"""
_TO_ONE_LEFT_OUT = 3
"""Parts of a module that are computed again, at least, where it is named although one of them is not."""

_Way = tuple[str, str, int]
"""The phase in which something is done, that in which it is done again, and how many times more."""


@dataclass(frozen=True)
class Again:
    """Modules that are computed again in the same way."""

    modules: tuple[str, ...]
    """All of them that have operators of their own; each is one of the outermost or within one."""
    outermost: tuple[str, ...]
    """Those that the others are parts of, those with most parts first."""
    left_out: tuple[str, ...]
    """Parts of the outermost that are not computed again."""
    times: int
    """How many times more than before."""


def computed_again(before: Mapping[Key, Total], now: Mapping[Key, Total], facts: Iterable[Change]) -> list[Again]:
    """Modules that are.

    Args:
        before, now: both profiles by operator, module and phase.
        facts: what differs between them.
    """
    more: dict[str, dict[Key, float]] = defaultdict(lambda: defaultdict(float))
    for fact in facts:
        if fact.category != DISPATCH:
            more[fact.key[1]][fact.key] += fact.more
    works: dict[str, dict[str, dict[str, Total]]] = defaultdict(lambda: defaultdict(dict))
    for (operator, module, phase), total in before.items():
        if total.category not in UNNAMED and total.instances > HALF:
            works[module][phase][operator] = total
    groups: dict[_Way, set[str]] = defaultdict(set)
    for module, changed in more.items():
        for phase, work in works[module].items() if module else ():
            times = _times(work, changed, before, now)
            if times:
                groups[phase, next(iter(changed))[2], times].add(module)
    for (phase, in_phase, times), modules in groups.items():
        # Of what is around them a checkpoint leaves out what comes last: nothing asks for it.
        for module, changed in more.items():
            work = works[module].get(phase, {})
            around = any(inner.startswith(f"{module}.") for inner in modules)
            if around and all(_is_some_of(work, key, often, in_phase, times) for key, often in changed.items()):
                modules.add(module)
    found: list[Again] = []
    taken: set[str] = set()  # what does the same in two phases may be of two groups: it belongs to the larger one
    for (phase, in_phase, times), modules in sorted(groups.items(), key=lambda item: -len(item[1])):
        working = [module for module, by_phase in works.items() if module and phase in by_phase]
        mine = modules - taken
        wholes = _wholes(mine, working)
        if phase != in_phase and not mine <= set[str]().union(*wholes.values()):
            wholes = _wholes(mine, working, unchanged=set(working) - more.keys())
        inside = set[str]().union(*wholes.values())
        if sum(len(works[module][phase]) for module in inside) >= _LEAST:
            outermost = sorted(wholes, key=lambda one: (-len(wholes[one]), one))
            left_out = (one for one in working if one not in inside and any(_is_in(one, path) for path in outermost))
            found.append(Again(tuple(sorted(inside)), tuple(outermost), tuple(sorted(left_out)), times))
            taken |= inside
    return found


def _times(
    work: Mapping[str, Total], changed: Mapping[Key, float], before: Mapping[Key, Total], now: Mapping[Key, Total]
) -> int:
    """How many times more all of this work is done, if that is all that changed; 0: that it is not."""
    phases = {key[2] for key in changed}
    if {key[0] for key in changed} != work.keys() or len(changed) != len(work) or len(phases) != 1:
        return 0
    key, more = next(iter(changed.items()))
    times = round(more / work[key[0]].instances)
    if times < 1:
        return 0
    for key in changed:
        done = work[key[0]]
        old, new = before.get(key, Total()), now.get(key, Total())
        for shapes in {*done.shapes, *old.shapes, *new.shapes}:
            more = new.shapes.get(shapes, 0.0) - old.shapes.get(shapes, 0.0)
            if abs(more - times * done.shapes.get(shapes, 0.0)) > HALF:
                return 0
    return times


def _is_some_of(work: Mapping[str, Total], key: Key, more: float, phase: str, times: int) -> bool:
    return key[2] == phase and key[0] in work and 0 < more <= times * work[key[0]].instances + HALF


def _wholes(modules: Iterable[str], working: Sequence[str], unchanged: Set[str] = frozenset()) -> dict[str, set[str]]:
    """The longest paths of which all that works below is among these modules, with what that is.

    A module of which a part is not among them is in none; unless that is one alone, of many, which is unchanged.
    """
    found: dict[str, set[str]] = {}
    left = set(modules)
    paths = {".".join(name.split(".")[:depth]) for name in left for depth in range(1, name.count(".") + 2)}
    for path in sorted(paths, key=lambda one: (one.count("."), one)):
        below = {name for name in working if _is_in(name, path)}
        lacking = below - left
        is_but_one = len(lacking) == 1 and lacking <= unchanged and len(below & left) >= _TO_ONE_LEFT_OUT
        if below and (not lacking or is_but_one):
            found[_common_path(below)] = below - lacking
            left -= below
    return found


def _common_path(names: Iterable[str]) -> str:
    """``blocks.*`` of ``blocks.*``, ``blocks.*.q`` and ``blocks.*.k``."""
    parts = [name.split(".") for name in names]
    return ".".join(one[0] for one in takewhile(lambda one: len(set(one)) == 1, zip(*parts, strict=False)))


def _is_in(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")
