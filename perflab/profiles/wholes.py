"""Finds modules that changed as a whole: layers that run more or less often, and modules computed again. Pure.

Layers run more often if all of their operators run more often in the same proportion. A module is computed again, as by
activation checkpointing, if all operators of one of its phases are called a number of times more, on the same shapes,
in the same phase or another one, and nothing else about the module changed; and if the same is true of all of its
parts. Only casts and sums of gradients are recognised by their names. A checkpoint stops before its last part, whose
result nothing needs: on a GPU a layer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import takewhile
from math import gcd

from perflab.profiles.facts import HALF, Change, Key, Total, is_whole
from perflab.results.profile import BACKWARD, DISPATCH, UNNAMED

_LEAST_IN_LAYERS = 3
"""The least number of operators in layers that are reported as a whole: fewer operators are reported by their names."""
_LEAST = 2
"""The least number of operators in modules that are reported as computed again in the same way: a single operator is
reported by its name.

On a GPU, many layers are one operator.
"""
_CASTS = {"aten::to", "aten::_to_copy", "aten::copy_"}
"""The operators of a cast, which autocast does once for a weight, however often a module is computed."""
_ADDS = ("aten::add_",)
"""The operators that add up gradients."""
_TO_ONE_LEFT_OUT = 3
"""The least number of parts of a module that are computed again, if the module is named although one part of it is
not computed again."""

_Often = tuple[int, int]
"""The numbers of calls of an operator in one phase, before and now."""
_Way = tuple[str, str, int]
"""The phase in which work is done, the phase in which it is done again, and how many times more."""


@dataclass(frozen=True)
class Layers:
    """Layers, and other modules that run as often as the layers do."""

    outermost: tuple[str, ...]
    """The outermost of the modules, the layers first: ``blocks.*``."""
    modules: tuple[str, ...]
    """The modules that changed, each one of the outermost or within one."""
    before: int
    """How many layers ran in a call before: the greatest number that all of their operators allow."""
    now: int


@dataclass(frozen=True)
class Again:
    """Modules that are computed again in the same way."""

    modules: tuple[str, ...]
    """The modules that have operators of their own; each is one of the outermost or within one of the outermost."""
    outermost: tuple[str, ...]
    """The modules that the other modules are parts of, those with most parts first."""
    left_out: tuple[str, ...]
    """Parts of the outermost modules that are not computed again."""
    times: int
    """How many times more than before the modules are computed."""
    phase: str = ""
    """The phase in which the modules are computed before, and still now."""


def wholes(before: Mapping[Key, Total], now: Mapping[Key, Total], facts: Sequence[Change]) -> list[Layers | Again]:
    """Return the modules that changed as a whole: more or fewer layers first, then modules that are computed again.

    ``facts`` are the changes between the two profiles.
    """
    layers = _other_layers(before, now, facts)
    told = {module for one in layers for module in one.modules}
    return [*layers, *_computed_again(before, now, [one for one in facts if one.key[1] not in told])]


def _other_layers(before: Mapping[Key, Total], now: Mapping[Key, Total], facts: Iterable[Change]) -> list[Layers]:
    """Return the outermost layers of which all operators became more, or fewer, as the layers did."""
    works: dict[str, list[_Often]] = defaultdict(list)
    for key in {**before, **now}:
        old, new = before.get(key, Total()), now.get(key, Total())
        if key[0] not in UNNAMED and DISPATCH not in (old.category, new.category):
            # An operator whose number varies from call to call, or none of whose shapes are as before, does other work.
            is_same = is_whole(old.instances) and is_whole(new.instances) and old.shapes.keys() & new.shapes.keys()
            works[key[1]].append((round(old.instances), round(new.instances)) if is_same else (0, 0))
    left = dict.fromkeys(one.key[1] for one in facts)
    found: list[Layers] = []
    for path in _paths(left):
        if path.rpartition(".")[2] != "*":
            continue
        inside = [name for name in left if _is_in(name, path)]
        ran = _runs([one for name, some in works.items() if _is_in(name, path) for one in some])
        if not inside or ran is None:
            continue
        beside = [name for name in left if name and name not in inside and works[name] and _fit(works[name], *ran)]
        found.append(Layers((path, *beside), (*inside, *beside), *ran))
        left = {name: None for name in left if name not in found[-1].modules}
    return found


def _runs(work: list[_Often]) -> _Often | None:
    """Return how many layers did this work before and now; None if it is not the same work, done more or less often."""
    if len(work) < _LEAST_IN_LAYERS:
        return None
    more = gcd(*(now - before for before, now in work))
    ratios = Counter(before * more / abs(now - before) for before, now in work if now != before)
    if not ratios or not (common := ratios.most_common(1)[0][0]) or not common.is_integer():
        return None
    before = int(common)
    now = before + (more if work[0][1] > work[0][0] else -more)
    return (before, now) if now > 0 and _fit(work, before, now) else None


def _fit(work: Iterable[_Often], before: int, now: int) -> bool:
    """Whether so many layers do all of the work, but for what the first or the last layer does otherwise."""
    for was, is_now in work:
        each, rest = divmod(is_now - was, now - before)
        if each < 1 or rest or abs(was - each * before) > each:
            return False
    return True


def _computed_again(before: Mapping[Key, Total], now: Mapping[Key, Total], facts: Iterable[Change]) -> list[Again]:
    """Return the modules that are computed again, grouped by phases and number of times."""
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
            adds = _ADDS if phase == BACKWARD else ()  # gradients are added to those of the first backward
            left = {name: total for name, total in work.items() if name not in adds}
            times = _times(left, {key: often for key, often in changed.items() if key[0] not in adds}, before, now)
            if times:
                groups[phase, next(iter(changed))[2], times].add(module)
    for (phase, in_phase, times), modules in groups.items():
        # In the modules around these, a checkpoint leaves out the last operators: nothing needs their result.
        for module, changed in more.items():
            work = works[module].get(phase, {})
            around = any(inner.startswith(f"{module}.") for inner in modules)
            if around and all(
                key[2] == in_phase and key[0] in work and 0 < often <= times * work[key[0]].instances + HALF
                for key, often in changed.items()
            ):
                modules.add(module)
    found: list[Again] = []
    taken: set[str] = set()  # a module in two groups, by two phases of the same work, is in the larger
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
            found.append(Again(tuple(sorted(inside)), tuple(outermost), tuple(sorted(left_out)), times, phase))
            taken |= inside
    return found


def _times(
    work: Mapping[str, Total], changed: Mapping[Key, float], before: Mapping[Key, Total], now: Mapping[Key, Total]
) -> int:
    """Return how many times more all of this work is done; 0 if something else changed too."""
    if not changed or not work:
        return 0
    phases = {key[2] for key in changed}
    names = {key[0] for key in changed}
    casts = _CASTS & work.keys() if names - _CASTS else set[str]()
    if names - casts != work.keys() - casts or len(changed) != len(names) or len(phases) != 1:
        return 0
    key, more = next((key, more) for key, more in changed.items() if key[0] not in casts)
    times = round(more / work[key[0]].instances)
    if times < 1:
        return 0
    for key, more in changed.items():
        if key[0] in casts:
            if not 0 <= more <= times * work[key[0]].instances + HALF:
                return 0
            continue
        done = work[key[0]]
        old, new = before.get(key, Total()), now.get(key, Total())
        for shapes in {*done.shapes, *old.shapes, *new.shapes}:
            more = new.shapes.get(shapes, 0.0) - old.shapes.get(shapes, 0.0)
            if abs(more - times * done.shapes.get(shapes, 0.0)) > HALF:
                return 0
    return times


def _wholes(modules: Iterable[str], working: Sequence[str], unchanged: Set[str] = frozenset()) -> dict[str, set[str]]:
    """Return the outermost paths below which all working modules are among ``modules``, each with these modules.

    A path with a working module that is not among ``modules`` is left out. The exception is a path with a single such
    module beside many others, if this module is in ``unchanged``.
    """
    found: dict[str, set[str]] = {}
    left = set(modules)
    for path in _paths(left):
        below = {name for name in working if _is_in(name, path)}
        lacking = below - left
        is_but_one = len(lacking) == 1 and lacking <= unchanged and len(below & left) >= _TO_ONE_LEFT_OUT
        if below and (not lacking or is_but_one):
            # The longest path that they share: ``blocks.*`` for ``blocks.*``, ``blocks.*.q`` and ``blocks.*.k``.
            levels = zip(*(name.split(".") for name in below), strict=False)
            found[".".join(one[0] for one in takewhile(lambda one: len(set(one)) == 1, levels))] = below - lacking
            left -= below
    return found


def _paths(names: Iterable[str]) -> list[str]:
    """Return the paths of these modules and of the modules around them, the outermost first."""
    paths = {".".join(name.split(".")[:depth]) for name in names for depth in range(1, name.count(".") + 2)}
    return sorted(paths, key=lambda one: (one.count("."), one))


def _is_in(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")
