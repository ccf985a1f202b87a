"""Finds what makes one prediction larger than another: compares their rows. Pure.

Totals decide (``predicted``), rows only explain. So what is explained may be less than what there is, and a row that is
called otherwise, moved or in another order explains nothing:

- rows are told apart by phase or kind, module and operator, never by line or order;
- a layer's number tells no rows apart (``row_names``), and a module that is called otherwise and does the same is the
  same module;
- where a stack has more layers than it had, rows of its modules are held against as many layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from perflab.predicted.judge.row_names import (
    Amounts,
    folded,
    is_in_layers,
    layers_in,
    minus,
    name_of_difference,
    plus,
    stacks_in,
    summed,
    total,
)
from perflab.predicted.records import PredictedBaseline, Prediction


class Key(NamedTuple):
    """By what two rows are the same row."""

    group: str
    """The phase of a cost, the kind of a part of the peak."""
    module: str
    operator: str


@dataclass(frozen=True)
class Row:
    """A row with its amounts, or with how much more they are than they were."""

    key: Key
    amounts: Amounts
    line: str = ""
    shown: str = ""
    """What more is to be told of it, such as a shape."""


@dataclass(frozen=True)
class Growth:
    """What became more, and less, of one kind of row."""

    rows: list[Row]
    """Those that changed, in the order in which they stand in the prediction; what is gone comes last."""
    by_layers: Amounts
    """What more layers alone would add to all of them together."""


@dataclass(frozen=True)
class Grown:
    """A prediction held against its baseline."""

    stacks: dict[str, tuple[int, int]]
    """Stacks of layers before and now, where their number changed."""
    peak: Growth
    saved: Growth
    costs: Growth


def find_growth(now: Prediction, before: PredictedBaseline) -> Grown:
    """Hold a prediction against its baseline, row by row."""
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
    parts = [Row(Key(p.kind, p.module, p.operator), (p.size_bytes, p.blocks), p.line) for p in one.at_peak]
    costs = [Row(Key(c.phase, c.module, c.operator), (c.flops, c.bytes_moved, c.calls), c.line) for c in one.costs]
    saved = [
        Row(Key("", s.module, s.operator), (s.size_bytes, s.count), s.line, f"({shape}) {s.dtype}")
        for s in one.saved
        for shape in [", ".join(map(str, s.shape))]
    ]
    return {"costs": costs, "peak": parts, "saved": saved}


def _renamed(before: Iterable[Row], now: Iterable[Row]) -> dict[str, str]:
    """Modules that have another name now and do the same for the most part: old name -> new name, both folded."""
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
    sums: dict[Key, Amounts] = {}
    for row in rows:
        key = row.key._replace(module=folded(row.key.module))
        sums[key] = plus(sums.get(key, ()), row.amounts)
    found: dict[str, Counter[tuple[str, str, Amounts]]] = {}
    for key, amounts in sums.items():
        found.setdefault(key.module, Counter())[(key.group, key.operator, amounts)] += 1
    return found


def _for_layers(row: Row, stacks: Mapping[str, tuple[int, int]]) -> Amounts:
    """What the row would have with as many layers as there are now."""
    amounts = row.amounts
    for stack, (before, now) in stacks.items():
        if is_in_layers(row.key.module, stack):
            amounts = tuple(amount * now // before for amount in amounts)
    return amounts


class _Place(NamedTuple):
    """Where something of a row is."""

    module: str
    shown: str


def _differences(before: Iterable[Row], now: Iterable[Row], stars: Collection[tuple[str, ...]]) -> list[Row]:
    """What is more or less in each row, where anything is; told with what stands in ``now`` beside it."""
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
            here_shown, was_shown = (summed((p.shown, a) for p, a in side.items()) for side in (here, was))
            most = max(here_shown or was_shown, key=lambda one: minus(here_shown.get(one, ()), was_shown.get(one, ())))
            modules = [summed((place.module, a) for place, a in side.items()) for side in (was, here)]
            name = name_of_difference(modules[0], modules[1], stars)
            found.append(Row(key._replace(module=name), amounts, lines.get(key, {}).get(most, ""), most))
    return found


def _by_key(rows: Iterable[Row]) -> dict[Key, dict[_Place, Amounts]]:
    found: dict[Key, dict[_Place, Amounts]] = {}
    for row in rows:
        places = found.setdefault(_folded(row.key), {})
        place = _Place(row.key.module, row.shown)
        places[place] = plus(places.get(place, ()), row.amounts)
    return found


def _folded(key: Key) -> Key:
    return key._replace(module=folded(key.module))
