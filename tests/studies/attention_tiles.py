"""The lab's forward kernel in each tile of a published grid, ranked by its bound, beside the tile that was fastest.

    python -m tests.studies.attention_tiles

The grid (``tests/perf/published``): H100, causal, batch 1, one head, bf16; for each length and head dimension the best
of the tiles that were tried, and its time. Its kernel is another one and not public. Which tiles were tried is not
published either: here all pairs of the sizes that occur are, with Triton's defaults of 4 warps and 3 stages. In
float32 the lab's products are IEEE and run without tensor cores, so that half of the grid is left out. Nothing is
measured here.
"""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch

from perflab.compiled.compiler.compile import compile_example
from perflab.compiled.machine.pipes import PIPES, Pipes
from perflab.lab.attention.examples import launch_of
from perflab.lab.attention.triton_tiles import Tiles
from perflab.results.compiled import KernelResources, LoopCounts
from tests.perf.attention_cases import published
from tests.perf.kernels import example_of
from tests.perf.published import rows

ARCH, SIZES, NUM_WARPS, NUM_STAGES = 90, (16, 32, 64, 128), 4, 3
SAME = 1.001
"""Bounds that differ by less are ties."""
APART = 1.10
"""Times of one length that differ by less are not compared."""


def least_s(loop: LoopCounts, blocks: int, tiles: Tiles, length: int, pipes: Pipes) -> float:
    """Return the least time of a causal launch of one head in seconds, by the loop of one tile of keys.

    All programs share the multiprocessors, and the last rows' program walks over all keys by itself, with a warp's
    chain of dependencies in each iteration. ``blocks`` are on a multiprocessor at once.
    """
    stops = range(tiles.block_q, length + tiles.block_q, tiles.block_q)
    iterations = sum(-(-min(stop, length) // tiles.block_k) for stop in stops)
    shared = iterations * loop.least_cycles / pipes.multiprocessors
    alone = -(-length // tiles.block_k) * loop.cycles["dependencies"] * blocks
    return max(shared, alone) / pipes.clock_hz


@dataclass(frozen=True)
class Cell:
    """A length and head dimension of the grid: the measured best tile with its time, and all tiles' bounds."""

    length: int
    head_dim: int
    best: tuple[int, int]
    measured_s: float
    bounds_s: Mapping[tuple[int, int], float]

    @property
    def bound_s(self) -> float:
        """The bound of the measured best tile."""
        return self.bounds_s[self.best]

    @cached_property
    def ahead(self) -> int:
        """The number of tiles whose bound is lower than the measured best tile's."""
        return sum(self.bound_s > SAME * bound_s for bound_s in self.bounds_s.values())

    @cached_property
    def ties(self) -> int:
        """The number of other tiles with the same bound."""
        return sum(1 / SAME <= self.bound_s / bound_s <= SAME for bound_s in self.bounds_s.values()) - 1

    @property
    def lost(self) -> float:
        """The measured best tile's bound, as a multiple of the lowest one."""
        return self.bound_s / min(self.bounds_s.values())


def cells() -> list[Cell]:
    """Compile the kernel in each tile for each head dimension, and return the cells of the grid."""
    best = {
        (int(row["seq_len"]), int(row["head_dim"])): (int(row["q_tile"]), int(row["k_tile"]))
        for row in rows("h100_attention_tiles.csv")
    }
    read = {head_dim: dict(_read(head_dim)) for head_dim in sorted({head_dim for _, head_dim in best})}
    return [
        Cell(
            length,
            head_dim,
            tile,
            published()[length, head_dim, "bf16"]["triton_forward"],
            {
                at: least_s(loop, found.blocks_per_sm, _tiles(at), length, PIPES[ARCH])
                for at, (found, loop) in read[head_dim].items()
            },
        )
        for (length, head_dim), tile in best.items()
    ]


def _tiles(at: tuple[int, int]) -> Tiles:
    return Tiles(*at, NUM_WARPS, NUM_STAGES)


def _read(head_dim: int) -> Iterator[tuple[tuple[int, int], tuple[KernelResources, LoopCounts]]]:
    """Yield the kernel in each tile that fits, with its main loop: tiles of keys that need no mask."""
    for at in itertools.product(SIZES, SIZES):
        launch = launch_of("forward", head_dim, torch.bfloat16, "causal", _tiles(at))
        found = compile_example("lab", example_of("lab", launch), ARCH).resources
        if found is not None and found.fits and (loop := found.main_loop) is not None:
            yield at, (found, loop)


def order(found: list[Cell], key: Callable[[Cell], float] = lambda one: one.bound_s) -> tuple[int, int, int]:
    """Return how many pairs of one length are in the order of ``key``, how many are ties, and how many there are.

    Pairs are those whose measured times differ by 10 % or more.
    """
    pairs = [
        sorted(pair, key=lambda one: one.measured_s)
        for pair in itertools.combinations(found, 2)
        if pair[0].length == pair[1].length
    ]
    apart = [(fast, slow) for fast, slow in pairs if slow.measured_s >= APART * fast.measured_s]
    ratios = [key(slow) / key(fast) for fast, slow in apart]
    return sum(one > SAME for one in ratios), sum(1 / SAME <= one <= SAME for one in ratios), len(ratios)


def correlation(found: list[Cell]) -> float:
    """Return Spearman's rank correlation of measured times and bounds."""
    ranks = [_ranks([one.measured_s for one in found]), _ranks([one.bound_s for one in found])]
    return statistics.correlation(*ranks)


def _ranks(values: list[float]) -> list[float]:
    return [sum(other < one for other in values) + sum(other == one for other in values) / 2 for one in values]


def lines(found: list[Cell]) -> Iterator[str]:
    """Yield the table and what it comes to."""
    yield "| tokens | head dim | measured best | measured | its bound | place | ties | lowest bound | of the lowest |"
    yield f"|{'---|' * 9}"
    for one in found:
        lowest = min(one.bounds_s, key=lambda at: one.bounds_s[at])
        yield (
            f"| {one.length:,} | {one.head_dim} | {one.best[0]}x{one.best[1]} | {1e3 * one.measured_s:.3f} ms "
            f"| {1e3 * one.bound_s:.4f} ms | {one.ahead + 1} of {len(one.bounds_s)} | {one.ties} "
            f"| {lowest[0]}x{lowest[1]} | x{one.lost:.2f} |"
        )
    right, ties, number = order(found)
    by_work, _, _ = order(found, lambda one: one.head_dim)
    often, times = Counter(one.best for one in found).most_common(1)[0]
    places = [one.ahead + 1 + one.ties / 2 for one in found]
    by_chance = statistics.fmean((1 + len(one.bounds_s)) / 2 for one in found)
    lost = statistics.median(one.lost for one in found)
    yield ""
    yield f"{len(found)} cells; the measured best has the lowest bound in {sum(not one.ahead for one in found)}"
    yield f"one tile, {often[0]}x{often[1]}, is the measured best in {times}"
    yield f"the measured best is among the first four in {sum(one.ahead < 4 for one in found)}"
    yield f"its mean place is {statistics.fmean(places):.1f}, by chance {by_chance:.1f}"
    yield f"its bound is x{lost:.2f} of the lowest in the middle cell"
    yield f"{number} pairs of one length differ by 10 % or more: {right} in the order of their bounds, {ties} ties"
    yield f"{by_work} of them are in the order of their head dimensions, whatever the tile"
    yield f"rank correlation of times and bounds over all cells: {correlation(found):.2f}"
    yield f"cells measured below the bound: {sum(one.measured_s < one.bound_s for one in found)}"


def main() -> None:
    """Print the table."""
    for line in lines(cells()):
        print(line, flush=True)


if __name__ == "__main__":
    main()
