"""How the Triton forward kernel is cut into tiles, and what that costs in shared memory.

Shapes: one program holds q (block_q, D) and walks over k and v in pieces (block_k, D), num_stages of
which are on their way at once. D is padded to a power of two.

    shared bytes <= (block_q + 2 * block_k * num_stages) * D * itemsize

A bound where memory is tight; what the compiler takes is in tests/correctness/test_triton_compiles.py.
"""

from dataclasses import dataclass, replace

import torch

MAX_HEAD_DIM = 256
# One block's limit on an H100 or H200, and on an A100 (CUDA C++ Programming Guide, "Compute
# Capabilities"): 228 and 164 KiB a multiprocessor, less 1 KiB that the system keeps.
SM90_SHARED_BYTES = 227 * 1024
SM80_SHARED_BYTES = 163 * 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows of queries and of keys a tile, warps a program, and stages of prefetched key tiles."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int

    def shared_bytes(self, head_dim: int, itemsize: int) -> int:
        """Shared memory that the operands want at most, in bytes."""
        rows = self.block_q + 2 * self.block_k * self.num_stages
        return rows * padded_head_dim(head_dim) * itemsize


# Two warpgroups of 64 query rows each (wgmma's height) halve the trips of K and V from L2. A thread
# then holds 32 scores and D / 2 accumulator values, which at D = 128 fits its 255 registers.
_16_BIT = Tiles(block_q=128, block_k=64, num_warps=8, num_stages=3)
# At D = 256 the accumulator alone would take 128 registers a thread and spill: half of the rows.
_16_BIT_WIDE = Tiles(block_q=64, block_k=64, num_warps=8, num_stages=2)
# IEEE float32 products run without tensor cores, with operands unrolled into registers: what spills is
# decided by block_k * D, and these are the widest that spill on neither sm_80 nor sm_90.
_32_BIT = Tiles(block_q=64, block_k=32, num_warps=8, num_stages=2)
_32_BIT_WIDE = Tiles(block_q=32, block_k=16, num_warps=8, num_stages=2)


def padded_head_dim(head_dim: int) -> int:
    """The kernel's column count: a power of two, as tl.arange wants, and 16 at least, as tl.dot does."""
    return max(16, 1 << (head_dim - 1).bit_length())


def choose_tiles(head_dim: int, dtype: torch.dtype, shared_limit_bytes: int) -> Tiles:
    """Tiles for this head dimension and dtype, with as many stages as the shared memory has room for.

    ValueError where not even one stage fits.
    """
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"attention impl 'triton' takes head dimensions up to {MAX_HEAD_DIM}, got {head_dim}; "
            f"choose impl='tiled', which takes any"
        )
    columns = padded_head_dim(head_dim)
    if dtype.itemsize == 4:
        tiles = _32_BIT if columns <= 64 else _32_BIT_WIDE
    else:
        tiles = _16_BIT if columns <= 128 else _16_BIT_WIDE
    for num_stages in range(tiles.num_stages, 0, -1):
        fewer = replace(tiles, num_stages=num_stages)
        if fewer.shared_bytes(head_dim, dtype.itemsize) <= shared_limit_bytes:
            return fewer
    raise ValueError(
        f"attention impl 'triton' at head dimension {head_dim} in {dtype} wants "
        f"{fewer.shared_bytes(head_dim, dtype.itemsize)} B of shared memory, and the device has "
        f"{shared_limit_bytes}; choose impl='tiled'"
    )
