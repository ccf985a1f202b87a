"""The tiles of rows, and the number of programs that add up a sum over rows.

Shapes: x (R, D) is covered by tiles (rows, columns), both powers of two, as tl.arange wants them.

A tile depends on D alone, never on R or on the machine. So a row's result has the same bits whatever else is in
the batch, and whatever GPU of a kind it runs on. This module needs no Triton.
"""

from dataclasses import dataclass

# These kernels read and write memory, and hardly calculate. A thread has to ask for several 16-byte pieces before
# the first one arrives: 32 elements are four such pieces in 16 bits, and 32 of its 255 registers in float32.
ELEMENTS_PER_THREAD = 32
# Four warps' worth, so that several programs share a multiprocessor and hide each other's waits.
TILE_ELEMENTS = 4096
# Columns of a tile that walks along its row. Wide enough to read memory in whole 128-byte lines; narrow enough
# that a tile still has several rows, which share what they load of the weight.
WALKING_COLUMNS = 1024

MAX_PARTIALS = 256
"""Programs that share a sum over rows: some two for each multiprocessor of an H200 (132) or B200 (148).

A constant and not a question to the device: the order of summation, and so the result's bits, are the same on all.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows and columns of one program's tile, and the warps that work on it."""

    rows: int
    columns: int
    num_warps: int


def power_of_two(number: int) -> int:
    """The smallest power of two that is no less than `number`, 1 at least."""
    return 1 << max(number - 1, 0).bit_length()


def row_tile(num_columns: int, *, max_columns: int = WALKING_COLUMNS, per_thread: int = ELEMENTS_PER_THREAD) -> Tile:
    """A tile for rows of `num_columns`: as wide as the row, up to `max_columns`, and as high as TILE_ELEMENTS allows.

    `per_thread`: at most so many of its elements in one thread, up to 16 warps.
    """
    columns = min(power_of_two(num_columns), max_columns)
    rows = max(1, TILE_ELEMENTS // columns)
    return Tile(rows, columns, num_warps=min(16, max(1, rows * columns // (32 * per_thread))))


def num_partials(num_rows: int, rows_per_tile: int) -> int:
    """Return the number of programs that share the row tiles: one each, MAX_PARTIALS at most."""
    return min(MAX_PARTIALS, -(-num_rows // rows_per_tile))
