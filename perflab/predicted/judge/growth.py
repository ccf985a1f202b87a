"""Finds what makes one prediction larger than another: compares their rows. Pure.

Totals decide the verdict (``judge``); rows only explain it. So the explanation may cover less than the whole growth. A
row that was renamed, moved or reordered does not count as growth:

- a row is identified by phase or category, module and operator, never by line or order;
- a module with a new name and the same work is the same module;
- rows that differ only in a layer's number are one row: a stack of alike layers is one row (``blocks.*``), a stack of
  unlike layers has one row per layer (``blocks.0``), and a one-line edit can turn one stack into the other. A module
  inserted into an ``nn.Sequential`` changes the number of all modules after it. So rows are compared with every number
  folded into ``*``, and a difference is shown under the most exact name that contains all of it;
- if the number of layers of a stack changed, the old rows of its modules are scaled to the new number of layers."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from perflab.results.predicted import PredictedBaseline, Prediction

_Named = TypeVar("_Named", bound=Hashable)


class Key(NamedTuple):
    """The identity of a row: rows of two predictions with equal keys are compared."""

    group: str
    """The phase of a cost; the category of a part of the peak; empty for saved tensors."""
    module: str
    operator: str


@dataclass(frozen=True)
class Row:
    """A row with its amounts, or with the differences of its amounts from the baseline's (positive: growth)."""

    key: Key
    amounts: Amounts
    line: str = ""
    shown: str = ""
    """A detail to show with the row, such as a shape."""


@dataclass(frozen=True)
class Growth:
    """The growth and the shrinkage of one kind of rows: costs, parts of the peak, or saved tensors."""

    rows: list[Row]
    """The rows that changed, in the prediction's order; rows that are gone come last."""
    by_layers: Amounts
    """The amounts that the change in the number of layers alone would add to all rows together."""


@dataclass(frozen=True)
class Grown:
    """The comparison of a prediction with its baseline."""

    stacks: dict[str, tuple[int, int]]
    """The number of layers before and now, of each stack whose number changed."""
    peak: Growth
    saved: Growth
    costs: Growth


def find_growth(now: Prediction, before: PredictedBaseline) -> Grown:
    """Compare a prediction with its baseline, row by row."""
    here, there = _rows_of(now), _rows_of(before)
    names = _renamed([*there["costs"], *there["peak"]], [*here["costs"], *here["peak"]])
    modules, modules_before = ([row.key.module for rows in side.values() for row in rows] for side in (here, there))
    stars = stacks_in([*modules, *modules_before])
    stacks = {}
    for stack in {**now.layers, **before.layers}:
        was = before.layers.get(stack) or layers_in(stack, modules_before)
        has = now.layers.get(stack) or layers_in(stack, modules)
        if was and has and was != has:
            stacks[stack] = (was, has)

    def compared(what: str) -> Growth:
        known = [
            replace(row, key=row.key._replace(module=names.get(folded(row.key.module), row.key.module)))
            for row in there[what]
        ]
        scaled = [replace(row, amounts=_for_layers(row, stacks)) for row in known]
        added = minus(total(row.amounts for row in scaled), total(row.amounts for row in known))
        return Growth(_differences(scaled, here[what], stars), added)

    return Grown(stacks, compared("peak"), compared("saved"), compared("costs"))


def _rows_of(one: Prediction | PredictedBaseline) -> dict[str, list[Row]]:
    parts = [Row(Key(p.category, p.module, p.operator), (p.size_bytes, p.blocks), p.line) for p in one.at_peak]
    costs = [Row(Key(c.phase, c.module, c.operator), (c.flops, c.bytes_moved, c.calls), c.line) for c in one.costs]
    saved = [
        Row(Key("", s.module, s.operator), (s.size_bytes, s.count), s.line, f"({shape}) {s.dtype}")
        for s in one.saved
        for shape in [", ".join(map(str, s.shape))]
    ]
    return {"costs": costs, "peak": parts, "saved": saved}


def _renamed(before: Iterable[Row], now: Iterable[Row]) -> dict[str, str]:
    """Return the modules that have a new name and mostly the same rows: old name -> new name, both folded."""
    gone, come = _by_module(before), _by_module(now)
    both = gone.keys() & come.keys()
    new = {module: rows for module, rows in come.items() if module not in both}
    found = {}
    for module, rows in gone.items():
        if module in both or not new:
            continue
        closest = max(new, key=lambda name: (rows & new[name]).total())
        if 2 * (rows & new[closest]).total() >= rows.total():
            found[module] = closest
            del new[closest]
    return found


def _by_module(rows: Iterable[Row]) -> dict[str, Counter[tuple[str, str, Amounts]]]:
    sums = summed((_folded(row.key), row.amounts) for row in rows)
    found: dict[str, Counter[tuple[str, str, Amounts]]] = {}
    for key, amounts in sums.items():
        found.setdefault(key.module, Counter())[(key.group, key.operator, amounts)] += 1
    return found


def _for_layers(row: Row, stacks: Mapping[str, tuple[int, int]]) -> Amounts:
    """Return the amounts that the row would have with the present number of layers."""
    amounts = row.amounts
    for stack, (before, now) in stacks.items():
        if is_in_layers(row.key.module, stack):
            amounts = tuple(amount * now // before for amount in amounts)
    return amounts


def _differences(before: Iterable[Row], now: Iterable[Row], stars: Collection[tuple[str, ...]]) -> list[Row]:
    """Return the rows whose amounts changed, with the differences, and with the line and detail of ``now``."""
    now = list(now)
    old, new = _by_key(before), _by_key(now)
    lines: dict[Key, dict[str, str]] = {}
    for row in now:
        lines.setdefault(_folded(row.key), {}).setdefault(row.shown, row.line)
    found = []
    for key in dict.fromkeys([*new, *old]):
        was, here = old.get(key, {}), new.get(key, {})
        amounts = minus(total(here.values()), total(was.values()))
        if any(amounts):
            here_shown, was_shown = (summed((shown, a) for (_, shown), a in side.items()) for side in (here, was))
            most = max(here_shown or was_shown, key=lambda one: minus(here_shown.get(one, ()), was_shown.get(one, ())))
            modules_was, modules_here = (summed((module, a) for (module, _), a in side.items()) for side in (was, here))
            name = name_of_difference(modules_was, modules_here, stars)
            found.append(Row(key._replace(module=name), amounts, lines.get(key, {}).get(most, ""), most))
    return found


def _by_key(rows: Iterable[Row]) -> dict[Key, dict[tuple[str, str], Amounts]]:
    """Return the amounts of rows by folded key, and by the row's own module and detail."""
    found: dict[Key, dict[tuple[str, str], Amounts]] = {}
    for row in rows:
        places = found.setdefault(_folded(row.key), {})
        place = row.key.module, row.shown
        places[place] = plus(places.get(place, ()), row.amounts)
    return found


def _folded(key: Key) -> Key:
    return key._replace(module=folded(key.module))


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


def summed(pairs: Iterable[tuple[_Named, Amounts]]) -> dict[_Named, Amounts]:
    """Return the sums of the amounts, by name."""
    found: dict[_Named, Amounts] = {}
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
