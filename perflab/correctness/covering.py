"""Covering arrays: as few rows as a greedy search finds, in which every pair of levels of all factors occurs.

    rows = cover({"dtype": ("fp32", "bf16"), "mask": ("full", "causal"), "head_dim": (16, 40, 64)})

A fault that needs two things at once (bfloat16 and an odd length, say) shows in such rows as it would in the whole
product, which is thousands of times as long. Which rows come out depends on the arguments alone: no chance, no clock.

Source of the greedy search: Cohen et al. (1997), "The AETG system: an approach to testing based on combinatorial
design", section 4; with constraints, rows are completed by backtracking.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

Level = Hashable
Row = dict[str, Level]
Pair = tuple[tuple[str, Level], tuple[str, Level]]

# More tries a row make fewer rows: 10 saved 3 % of them over 2, and took five times as long to find.
TRIES = 2


def cover(
    factors: Mapping[str, Sequence[Level]],
    valid: Callable[[Mapping[str, Level]], bool] = lambda row: True,
    wanted: Callable[[Pair], bool] = lambda pair: True,
) -> list[Row]:
    """Return rows {factor: level} that hold every pair of levels that is wanted and possible, in the factors' order.

    valid    whether a row, or a part of one, is allowed: called with some factors missing, it tells whether the
             part can be completed, as far as it knows
    wanted   whether a pair has to occur; the pair's factors are in the mapping's order

    Every level that can occur is in some row, even if no pair with that level is wanted.
    """
    search = _Search(factors, valid)
    open_pairs = {pair: None for pair in pairs_of(factors) if wanted(pair)}  # a dict: sets have no order
    rows: list[Row] = []
    while open_pairs:
        first = next(iter(open_pairs))
        found = search.rows_with(dict(first), open_pairs)
        best = max(found, key=lambda row: sum(pair in open_pairs for pair in pairs_in(row)), default=None)
        if best is None:
            del open_pairs[first]  # impossible
            continue
        rows.append(best)
        for pair in pairs_in(best):
            open_pairs.pop(pair, None)
    for name, levels in factors.items():
        for level in levels:
            if not any(row[name] == level for row in rows):
                rows += next(([row] for row in search.rows_with({name: level}, {})), [])
    return rows


def pairs_of(factors: Mapping[str, Sequence[Level]]) -> Iterator[Pair]:
    """Yield every pair of levels of two factors."""
    for (a, of_a), (b, of_b) in combinations(factors.items(), 2):
        for one, other in product(of_a, of_b):
            yield (a, one), (b, other)


def pairs_in(row: Mapping[str, Level]) -> Iterator[Pair]:
    """Yield the pairs that one row holds."""
    return combinations(row.items(), 2)


class _Search:
    """Completes rows; remembers how often each level was used, so that none is preferred."""

    def __init__(self, factors: Mapping[str, Sequence[Level]], valid: Callable[[Mapping[str, Level]], bool]) -> None:
        self._factors, self._valid = factors, valid
        self._position = {name: number for number, name in enumerate(factors)}
        self._used: dict[tuple[str, Level], int] = {}
        self._random = Random(0)

    def rows_with(self, fixed: Row, open_pairs: Mapping[Pair, None]) -> Iterator[Row]:
        """Yield some valid rows that hold the `fixed` levels and many open pairs; nothing if there is no valid row."""
        if not self._valid(fixed):
            return
        for _ in range(TRIES):
            order = [name for name in self._factors if name not in fixed]
            self._random.shuffle(order)
            row = self._complete(dict(fixed), order, open_pairs)
            if row is None:
                return
            for item in row.items():
                self._used[item] = self._used.get(item, 0) + 1
            yield {name: row[name] for name in self._factors}

    def _complete(self, row: Row, order: Sequence[str], open_pairs: Mapping[Pair, None]) -> Row | None:
        if not order:
            return row
        name, later = order[0], order[1:]

        before = [item for item in row.items() if self._position[item[0]] < self._position[name]]
        after = [item for item in row.items() if self._position[item[0]] > self._position[name]]

        def preference(level: Level) -> tuple[int, int]:
            item = (name, level)
            gain = 0
            if open_pairs:
                gain = len([1 for other in before if (other, item) in open_pairs])
                gain += len([1 for other in after if (item, other) in open_pairs])
            return -gain, self._used.get(item, 0)

        for level in sorted(self._factors[name], key=preference):
            longer = row | {name: level}
            if self._valid(longer) and (complete := self._complete(longer, later, open_pairs)) is not None:
                return complete
        return None
