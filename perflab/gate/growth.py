"""What makes one prediction larger than another: its rows held against the baseline's. Pure.

Totals decide (``predicted``), rows only explain. So what is explained may be less than what there is, and a row that is
called otherwise, moved or in another order explains nothing:

- rows are told apart by phase or kind, module and operator, never by line or order;
- a module that is called otherwise and does the same is the same module;
- where a stack has more layers than it had, rows of its modules are held against as many layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from perflab.predictions import PredictedBaseline, Prediction


class Key(NamedTuple):
    """By what two rows are the same row."""

    group: str
    """The phase of a cost, the kind of a part of the peak."""
    module: str
    operator: str


Amounts = tuple[int, ...]
"""Bytes and blocks of the peak; bytes and tensors saved; FLOPs, bytes and calls of a cost. Empty: nothing."""


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
    """Those that changed."""
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


@dataclass(frozen=True)
class _Rows:
    """All rows of one side."""

    peak: list[Row]
    saved: list[Row]
    costs: list[Row]


def find_growth(now: Prediction, before: PredictedBaseline) -> Grown:
    """Hold a prediction against its baseline, row by row."""
    here, there = _rows_of(now), _rows_of(before)
    names = _renamed([*there.costs, *there.peak], [*here.costs, *here.peak])
    stacks = {
        stack: (before.layers[stack], count)
        for stack, count in now.layers.items()
        if before.layers.get(stack, count) not in (0, count)
    }

    def compared(side: Callable[[_Rows], list[Row]]) -> Growth:
        known = [
            replace(row, key=row.key._replace(module=names.get(row.key.module, row.key.module))) for row in side(there)
        ]
        scaled = [replace(row, amounts=_for_layers(row, stacks)) for row in known]
        added = _minus(_total(row.amounts for row in scaled), _total(row.amounts for row in known))
        return Growth(_differences(scaled, side(here)), added)

    return Grown(stacks, compared(lambda r: r.peak), compared(lambda r: r.saved), compared(lambda r: r.costs))


def _rows_of(one: Prediction | PredictedBaseline) -> _Rows:
    parts = [Row(Key(p.kind, p.module, p.operator), (p.size_bytes, p.blocks), p.line) for p in one.at_peak]
    costs = [Row(Key(c.phase, c.module, c.operator), (c.flops, c.bytes_moved, c.calls), c.line) for c in one.costs]
    saved = [
        Row(Key("", s.module, s.operator), (s.size_bytes, s.count), s.line, f"({_listed(s.shape)}) {s.dtype}")
        for s in one.saved
    ]
    return _Rows(parts, saved, costs)


def _listed(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _renamed(before: Iterable[Row], now: Iterable[Row]) -> dict[str, str]:
    """Modules that have another name now and do the same for the most part: old name -> new name."""
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
    found: dict[str, Counter[tuple[str, str, Amounts]]] = {}
    for row in rows:
        found.setdefault(row.key.module, Counter())[(row.key.group, row.key.operator, row.amounts)] += 1
    return found


def _for_layers(row: Row, stacks: Mapping[str, tuple[int, int]]) -> Amounts:
    """What the row would have with as many layers as there are now."""
    amounts = row.amounts
    for stack, (before, now) in stacks.items():
        if f"{row.key.module}.".startswith(f"{stack}.*."):
            amounts = tuple(amount * now // before for amount in amounts)
    return amounts


def _differences(before: Iterable[Row], now: Iterable[Row]) -> list[Row]:
    """What is more or less in each row, where anything is; told with what stands in ``now`` beside it."""
    old: dict[Key, dict[str, Amounts]] = {}
    for row in before:
        _add(old.setdefault(row.key, {}), row)
    new: dict[Key, dict[str, Amounts]] = {}
    lines: dict[Key, dict[str, str]] = {}
    for row in now:
        _add(new.setdefault(row.key, {}), row)
        lines.setdefault(row.key, {}).setdefault(row.shown, row.line)
    found = []
    for key in dict.fromkeys([*new, *old]):
        was, here = old.get(key, {}), new.get(key, {})
        amounts = _minus(_total(here.values()), _total(was.values()))
        if any(amounts):
            most = max(here or was, key=lambda shown: _minus(here.get(shown, ()), was.get(shown, ())))
            found.append(Row(key, amounts, lines.get(key, {}).get(most, ""), most))
    return found


def _add(amounts: dict[str, Amounts], row: Row) -> None:
    amounts[row.shown] = _plus(amounts.get(row.shown, ()), row.amounts)


def _plus(one: Amounts, other: Amounts) -> Amounts:
    return tuple(a + b for a, b in zip(one, other, strict=True)) if one and other else one or other


def _minus(one: Amounts, other: Amounts) -> Amounts:
    return _plus(one, tuple(-amount for amount in other))


def _total(amounts: Iterable[Amounts]) -> Amounts:
    total: Amounts = ()
    for one in amounts:
        total = _plus(total, one)
    return total
