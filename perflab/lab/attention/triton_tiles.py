"""The tiles of the Triton kernels, and what they cost in shared memory.

Shapes, D padded to a power of two; num_stages pieces are on their way at once:
    forward    holds q (block_q, D), and walks over k and v in pieces (block_k, D); forward_tma too, with the
               output on its way out in as much again
    dk_dv      holds k and v (block_k, D), and walks over q and d_out in pieces (block_q, D)
    dq         holds q and d_out (block_q, D), and walks over k and v in pieces (block_k, D)
    one_pass   as dk_dv, and its product for dq on its way to memory; for the GPUs of its table alone
    decode     as forward; block_q is the most rows that it takes

    shared bytes <= (rows held + rows walked over * num_stages) * D * itemsize; in dk_dv also
                    block_q * block_k * itemsize, for weights on their way into a product, and a
                    second piece of q, transposed

A bound up to Hopper and CDNA 3. CDNA 4 pads tiles on their way by a thirty-second; Blackwell stages operands of
tensor memory on top. What the compiler takes is in the baselines of `perflab kernels`.
"""

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from perflab.lab.attention.scoring import Scoring

MAX_HEAD_DIM = 256
CDNA4_SHARED_BYTES = 160 * 1024
"""Shared memory of a block on AMD's MI350X and MI355X (gfx950), by which they are known here."""
_CDNA3_SHARED_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Tiles:
    """Rows of queries and of keys a tile, warps a program, and stages of prefetched key tiles."""

    block_q: int
    block_k: int
    num_warps: int
    num_stages: int

    def shared_bytes(self, kernel: str, head_dim: int, itemsize: int) -> int:
        """Shared memory that `forward`, `dk_dv` or `dq` wants at most, in bytes."""
        held = {
            "forward": self.block_q,
            "decode": self.block_q,
            "forward_tma": 2 * self.block_q,
            "dk_dv": 2 * self.block_k,
            "dq": 2 * self.block_q,
        }[kernel]
        walked = 2 * (self.block_q if kernel == "dk_dv" else self.block_k)
        turned = self.block_q if kernel == "dk_dv" else 0
        scores = self.block_q * self.block_k if kernel == "dk_dv" else 0
        rows = held + walked * self.num_stages + turned
        return (rows * padded_head_dim(head_dim) + scores) * itemsize


# By kernel and bytes of an element: tiles, each list up to a padded head dimension, the best guess first: the one whose
# loop has the highest bound in its machine code (`perflab kernels --loops`) and spills nothing in it. docs/log.md has
# the bounds of those that were tried.
#
# A warp's own products (mma) read a tile of keys from shared memory once a warp: four warps of 32 rows need half of
# what eight of 16 do, which binds on an A100. Products of a warp group (Hopper's wgmma) are 64 rows high: two groups
# share a trip of K and V from L2. Two stages, since with three ptxas serialises Triton's products there.
# 32 bit. IEEE float32 products run without tensor cores, with operands unrolled into registers: what
# spills is decided by block_k * D, and these are the widest that spill on neither sm_80 nor sm_90.
# dk_dv keeps two accumulators (block_k, D) in registers, dq one (block_q, D), beside four products of scores. At
# D = 256 that leaves room for 64 keys, as wgmma needs, in steps of 32 queries, and for little else.
# Those behind the first let another block onto the multiprocessor (4 warps), or halve the trips of K and V.
_TILES: dict[tuple[str, int], dict[int, tuple[Tiles, ...]]] = {
    ("forward", 2): {
        64: (Tiles(128, 32, 4, 3), Tiles(128, 64, 8, 3), Tiles(64, 64, 4, 3)),
        128: (Tiles(64, 64, 4, 2), Tiles(128, 64, 8, 3)),
        256: (Tiles(64, 64, 8, 2), Tiles(64, 32, 8, 2)),
    },
    ("forward", 4): {64: (Tiles(64, 32, 8, 2),), 256: (Tiles(32, 16, 8, 2),)},
    ("forward_tma", 2): {64: (Tiles(128, 128, 8, 2),), 128: (Tiles(128, 64, 8, 3),), 256: (Tiles(64, 64, 8, 2),)},
    ("forward_tma", 4): {64: (Tiles(32, 32, 8, 2),), 256: (Tiles(16, 16, 8, 2),)},
    ("dk_dv", 2): {
        64: (Tiles(32, 128, 4, 2), Tiles(32, 128, 8, 2), Tiles(64, 128, 8, 2)),
        128: (Tiles(32, 64, 4, 2), Tiles(32, 64, 8, 2)),
        256: (Tiles(32, 32, 4, 1), Tiles(32, 64, 8, 1)),
    },
    ("dk_dv", 4): {64: (Tiles(16, 32, 8, 2),), 256: (Tiles(16, 16, 8, 1),)},
    ("dq", 2): {
        64: (Tiles(128, 32, 4, 2), Tiles(64, 64, 4, 2), Tiles(128, 64, 8, 3)),
        128: (Tiles(64, 64, 4, 2), Tiles(64, 64, 8, 2)),
        256: (Tiles(64, 64, 8, 1), Tiles(64, 32, 8, 2)),
    },
    ("dq", 4): {64: (Tiles(32, 32, 8, 2),), 256: (Tiles(16, 16, 8, 1),)},
    ("decode", 2): {64: (Tiles(64, 64, 4, 3),), 128: (Tiles(64, 64, 8, 3),), 256: (Tiles(32, 32, 8, 2),)},
    ("decode", 4): {64: (Tiles(32, 16, 8, 2),), 256: (Tiles(16, 16, 8, 2),)},
}
# The same where products are of warp groups.
_OF_WARP_GROUPS: dict[tuple[str, int], dict[int, tuple[Tiles, ...]]] = {
    ("forward", 2): {
        64: (Tiles(128, 64, 8, 2), Tiles(128, 128, 8, 2), Tiles(64, 64, 4, 2)),
        128: (Tiles(128, 64, 8, 2), Tiles(128, 128, 8, 2), Tiles(64, 64, 4, 2)),
        256: (Tiles(128, 32, 8, 2), Tiles(64, 64, 8, 2)),
    },
    ("dk_dv", 2): {
        64: (Tiles(64, 128, 8, 2), Tiles(32, 128, 8, 2), Tiles(64, 64, 4, 2)),
        128: (Tiles(32, 128, 8, 2), Tiles(32, 64, 4, 2)),
        256: (Tiles(32, 64, 8, 2), Tiles(32, 32, 8, 1)),
    },
    ("dq", 2): {
        64: (Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2)),
        128: (Tiles(128, 64, 8, 2), Tiles(64, 64, 4, 2)),
        256: (Tiles(64, 64, 8, 2), Tiles(64, 32, 8, 2)),
    },
}
# Tiles of these tables that spill in the loop on NVIDIA's GPUs, (with a soft cap, with sinks), by kernel and whether
# products are of warp groups: what tanh and the masks of sinks take of registers.
_SPILLING: dict[tuple[str, bool], tuple[tuple[Tiles, ...], tuple[Tiles, ...]]] = {
    ("forward", False): ((), (Tiles(128, 64, 8, 3),)),
    ("forward", True): ((), (Tiles(128, 128, 8, 2),)),
    ("dk_dv", False): ((Tiles(32, 128, 4, 2),), ()),
    ("dk_dv", True): ((Tiles(64, 128, 8, 2), Tiles(64, 64, 4, 2), Tiles(32, 64, 8, 2)), (Tiles(32, 64, 8, 2),)),
}
_HOPPER_SHARED_BYTES = 227 * 1024
"""Shared memory of a block from Hopper on, by which its warp groups are known here."""
# dk, dv and dq in one pass, by compute capability and head dimension: where its loop takes fewer cycles for a pair of
# query and key than those of dk_dv and dq together, and spills no register. docs/log.md has the counts.
_ONE_PASS: dict[int, dict[int, Tiles]] = {
    80: {64: Tiles(32, 128, 4, 2), 80: Tiles(64, 64, 4, 2), 128: Tiles(32, 64, 4, 2)},
    90: {64: Tiles(64, 128, 8, 2)},
    100: {64: Tiles(64, 128, 8, 2)},
}
DELTA_ROWS = 32
"""Queries a program of the delta kernel."""


def padded_head_dim(head_dim: int) -> int:
    """The kernel's column count: a power of two, as tl.arange wants, and 16 at least, as tl.dot does."""
    return max(16, 1 << (head_dim - 1).bit_length())


class NoTiles(ValueError):  # noqa: N818 - the name of what there is not
    """No tile of a kernel fits into the shared memory of a device."""


def check_head_dim(head_dim: int, instead: str = "impl='tiled', which takes any") -> None:
    """ValueError where no tile fits, with what to choose instead."""
    if head_dim > MAX_HEAD_DIM:
        raise ValueError(
            f"attention in Triton takes head dimensions up to {MAX_HEAD_DIM}, got {head_dim}; choose {instead}"
        )


@cache  # asked for at every launch
def candidate_tiles(
    kernel: str,
    head_dim: int,
    dtype: torch.dtype,
    shared_limit_bytes: int,
    *,
    is_capped: bool = False,
    has_sinks: bool = False,
) -> tuple[Tiles, ...]:
    """Tiles to try for `forward`, `dk_dv` or `dq`, each with as many stages as the shared memory has room for.

    Those that spill with a soft cap or sinks are left out. NoTiles where not even one stage of any fits.
    """
    check_head_dim(head_dim)
    columns = padded_head_dim(head_dim)
    room_bytes = shared_limit_bytes * 32 // 33 if shared_limit_bytes == CDNA4_SHARED_BYTES else shared_limit_bytes
    kind = (kernel, dtype.itemsize)
    has_groups = shared_limit_bytes >= _HOPPER_SHARED_BYTES and kind in _OF_WARP_GROUPS
    by_width = (_OF_WARP_GROUPS if has_groups else _TILES)[kind]
    listed = next(tiles for widest, tiles in by_width.items() if columns <= widest)
    fitting = []
    is_amd = shared_limit_bytes in (_CDNA3_SHARED_BYTES, CDNA4_SHARED_BYTES)
    with_softcap, with_sinks = ((), ()) if is_amd else _SPILLING.get((kernel, has_groups), ((), ()))
    for tiles in listed:
        if (is_capped and tiles in with_softcap) or (has_sinks and tiles in with_sinks):
            continue
        stages = (replace(tiles, num_stages=stages) for stages in range(tiles.num_stages, 0, -1))
        fits = (it for it in stages if it.shared_bytes(kernel, head_dim, dtype.itemsize) <= room_bytes)
        fitting += [it for it in (next(fits, None),) if it is not None and it not in fitting]
    if not fitting:
        least = min(replace(tiles, num_stages=1).shared_bytes(kernel, head_dim, dtype.itemsize) for tiles in listed)
        raise NoTiles(
            f"attention in Triton at head dimension {head_dim} in {dtype} needs {least} B of shared memory, "
            f"and the device has {shared_limit_bytes}; choose impl='tiled'"
        )
    return tuple(fitting)


def one_pass_tiles(q: Tensor, k: Tensor, scoring: Scoring, architecture: int) -> Tiles | None:
    """The tiles of a backward in one pass on that compute capability (90: Hopper); None where two passes are better.

    q is (B, H, N_q, D), k (B, H_kv, N_k, D), or both without heads.
    """
    # A soft cap, a bound on the left, sinks and grouped heads spill in the loop, and masks of rows beyond the end do.
    spills = scoring.softcap is not None or scoring.lower is not None or q.shape[:-2] != k.shape[:-2]
    by_width = {} if spills or q.dtype.itemsize != 2 else _ONE_PASS.get(architecture, {})
    tiles = next((tiles for width, tiles in by_width.items() if q.shape[-1] == width), None)  # it may be symbolic
    is_whole = tiles is not None and q.shape[-2] % tiles.block_q == 0 and k.shape[-2] % tiles.block_k == 0
    return tiles if is_whole else None


def one_pass_columns(head_dim: int, *, is_cut: bool) -> tuple[int, int]:
    """The columns of a tile in one pass, and of the one behind it or 0; is_cut: with a bound on the right.

    Above 64, a tile of keys that has fewer rows than columns makes Triton give its warps the columns, and each warp
    reads all of k and v; in two pieces it reads its own rows, and 80 columns are 80 instead of 128. Padded pieces spill
    in the loop, and so do those above 80 with masks.
    """
    more = head_dim - 64
    if more > 0 and more == padded_head_dim(more) and (head_dim <= 80 or not is_cut):
        return 64, more
    return padded_head_dim(head_dim), 0


def choose_tiles(kernel: str, head_dim: int, dtype: torch.dtype, shared_limit_bytes: int) -> Tiles:
    """The first of `candidate_tiles` of a problem without soft cap and sinks."""
    return candidate_tiles(kernel, head_dim, dtype, shared_limit_bytes)[0]
