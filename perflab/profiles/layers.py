"""Finds layers that run more or less often than before: all that they do is done so much more often. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd

from perflab.profiles.facts import Change, Key, Total, is_whole
from perflab.profiles.records import DISPATCH, UNNAMED

_LEAST = 3
"""Operators that layers must have: of fewer, each is told by its name."""
_Often = tuple[int, int]
"""Calls of an operator in one phase before and now."""


@dataclass(frozen=True)
class Layers:
    """Layers, and whatever else runs as often as they do."""

    outermost: tuple[str, ...]
    """The layers first: ``blocks.*``."""
    modules: tuple[str, ...]
    """Those that changed, each one of the outermost or within one."""
    before: int
    """How many ran in a call: the greatest number that all of their operators allow."""
    now: int


def other_layers(before: Mapping[Key, Total], now: Mapping[Key, Total], facts: Iterable[Change]) -> list[Layers]:
    """Layers, the outermost ones, of which all operators became more, or fewer, as the layers did."""
    works: dict[str, list[_Often]] = defaultdict(list)
    for key in {**before, **now}:
        old, new = before.get(key, Total()), now.get(key, Total())
        if key[0] not in UNNAMED and DISPATCH not in (old.category, new.category):
            works[key[1]].append(_often(old, new))
    left = dict.fromkeys(one.key[1] for one in facts)
    found: list[Layers] = []
    paths = {
        ".".join(name.split(".")[: at + 1]) for name in left for at, part in enumerate(name.split(".")) if part == "*"
    }
    for path in sorted(paths, key=lambda one: (one.count("."), one)):
        inside = [name for name in left if _is_in(name, path)]
        ran = _runs([one for name, some in works.items() if _is_in(name, path) for one in some])
        if not inside or ran is None:
            continue
        beside = [name for name in left if name and name not in inside and works[name] and _fit(works[name], *ran)]
        found.append(Layers((path, *beside), (*inside, *beside), *ran))
        left = {name: None for name in left if name not in found[-1].modules}
    return found


def _often(old: Total, new: Total) -> _Often:
    """As often as never where that varies from call to call, or no shapes are as before: that is other work."""
    is_same = all(is_whole(one.instances) for one in (old, new)) and bool(old.shapes.keys() & new.shapes.keys())
    return (round(old.instances), round(new.instances)) if is_same else (0, 0)


def _runs(work: list[_Often]) -> _Often | None:
    """How many layers did this work before and now; None: it is not the same work, done more or less often."""
    if len(work) < _LEAST:
        return None
    more = gcd(*(now - before for before, now in work))
    ratios = Counter(before * more / abs(now - before) for before, now in work if now != before)
    if not ratios or not (common := ratios.most_common(1)[0][0]) or not common.is_integer():
        return None
    before = int(common)
    now = before + (more if work[0][1] > work[0][0] else -more)
    return (before, now) if now > 0 and _fit(work, before, now) else None


def _fit(work: Iterable[_Often], before: int, now: int) -> bool:
    """Whether all of it is done by so many layers, but for what the first or the last of them does otherwise."""
    for was, is_now in work:
        each, rest = divmod(is_now - was, now - before)
        if each < 1 or rest or abs(was - each * before) > each:
            return False
    return True


def _is_in(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")
