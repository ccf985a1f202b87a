"""The study that ranks a published grid of tiles by bounds: its arithmetic, without a compiler."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from perflab.compiled.machine.pipes import PIPES
from perflab.lab.attention.triton_tiles import Tiles
from perflab.results.compiled import LoopCounts
from tests.perf.attention_cases import published
from tests.perf.published import rows
from tests.studies.attention_tiles import Cell, correlation, least_s, order

H100 = PIPES[90]


def test_a_launch_takes_its_work_shared_by_all_multiprocessors_or_its_longest_program_alone() -> None:
    loop = LoopCounts(issues={}, cycles={"tensor cores": 100.0, "dependencies": 60.0})
    tiles = Tiles(64, 32, 4, 3)
    # 128 queries: programs of 2 and 4 tiles of keys, each tile 240 cycles of a program by itself with 4 blocks at once.
    assert least_s(loop, 4, tiles, 128, H100) == pytest.approx(4 * 240 / H100.clock_hz)
    # 65,536 queries: 2 + 4 + ... + 2048 tiles.
    assert least_s(loop, 1, tiles, 65_536, H100) == pytest.approx(1024 * 1025 * 100 / 132 / H100.clock_hz)
    # 100 queries: a program of 64 rows, and one of the other 36, which sees 100 keys.
    assert least_s(loop, 1, tiles, 100, H100) == pytest.approx(4 * 60 / H100.clock_hz)


def cell(measured_s: float, *bounds_s: float, length: int = 128, head_dim: int = 64) -> Cell:
    """The measured best tile has the first bound."""
    return Cell(length, head_dim, (0, 0), measured_s, {(0, number): bound_s for number, bound_s in enumerate(bounds_s)})


def test_the_place_of_the_measured_best_counts_lower_bounds_and_ties() -> None:
    one = cell(9.0, 2.0, 1.0, 2.001, 1.5, 3.0)
    assert (one.ahead, one.ties, one.lost) == (2, 1, 2.0)


def test_pairs_are_of_one_length_and_apart_by_a_tenth() -> None:
    found = [cell(1.0, 1.0), cell(1.05, 5.0), cell(2.0, 2.0), cell(3.0, 2.0), cell(9.0, 0.1, length=256)]
    assert order(found) == (2, 1, 5)
    assert order(found, lambda one: one.head_dim) == (0, 5, 5)
    assert correlation([cell(1.0, 5.0), cell(2.0, 6.0), cell(3.0, 7.0)]) == pytest.approx(1.0)
    assert correlation([cell(1.0, 7.0), cell(2.0, 6.0), cell(3.0, 5.0)]) == pytest.approx(-1.0)


def test_every_published_tile_has_a_published_time() -> None:
    tiles = rows("h100_attention_tiles.csv")
    assert len(tiles) == 36
    assert {(int(row["seq_len"]), int(row["head_dim"]), row["precision"]) for row in tiles} <= set(published())
