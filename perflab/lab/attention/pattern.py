"""Block-sparse attention: a pattern says which blocks of keys a block of queries sees.

N tokens in blocks of `block`; block i of queries, block j of keys.

    local      |i - j| < local             a band of blocks: Beltagy et al. (2020), "Longformer", section 3.1
    strided    (i - j) mod stride = 0      Child et al. (2019), "Sparse Transformers", section 4.3, of blocks
    global     i < globals or j < globals  the first blocks see all and are seen by all: Longformer, section 3.1

A block is seen if any of the three says so. A causal pattern sees of these the blocks j <= i, and within block i the
keys up to the query's own. One pattern is a mask for the definition, a block mask for FlexAttention, lists for the
Triton kernels, and a number of pairs for costs.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

BLOCKS = (16, 32, 64, 128)
"""Sides of a block: tiles of the Triton kernels, which multiply no less than 16 rows."""


class BlockLists(NamedTuple):
    """Blocks by row of int32: how many each row has (rows,), and which (rows, most), the first of them in order."""

    counts: Tensor
    blocks: Tensor


@dataclass(frozen=True, kw_only=True)
class Pattern:
    """A block-sparse pattern: the keys that each query sees, for N queries and N keys; see the module.

    length     N, tokens
    block      side of a block, one of BLOCKS
    local      blocks of the band on each side of the diagonal, the diagonal included: 1 or more
    stride     every stride-th block before (and behind) is seen; 0: none
    globals_   blocks at the beginning that see all and are seen by all
    is_causal  no key behind the query is seen

    Raises ValueError for numbers out of range.
    """

    length: int
    block: int = 64
    local: int = 1
    stride: int = 0
    globals_: int = 0
    is_causal: bool = True

    def __post_init__(self) -> None:
        if self.block not in BLOCKS:
            raise ValueError(f"pattern block={self.block!r}: wanted one of {', '.join(map(str, BLOCKS))}")
        for name, least in (("length", 1), ("local", 1), ("stride", 0), ("globals_", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"pattern {name}={value!r}: wanted a whole number of {least} or more")

    @property
    def num_blocks(self) -> int:
        """Blocks of queries, and of keys; the last may be short."""
        return -(-self.length // self.block)

    def seen_blocks(self) -> Tensor:
        """(blocks of queries, blocks of keys) of bool: any key of it is seen."""
        i = torch.arange(self.num_blocks)[:, None]
        j = torch.arange(self.num_blocks)[None, :]
        seen = ((i - j).abs() < self.local) | (i < self.globals_) | (j < self.globals_)
        if self.stride:
            seen |= (i - j) % self.stride == 0
        return seen & (j <= i) if self.is_causal else seen

    def sees(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Whether each query sees each key: positions of any shapes that broadcast -> bool."""
        seen = self.seen_blocks().to(queries.device)[queries // self.block, keys // self.block]
        return seen & (keys <= queries) if self.is_causal else seen

    def mask(self, device: torch.device | str = "cpu") -> Tensor:
        """(N, N) of bool."""
        positions = torch.arange(self.length, device=device)
        return self.sees(positions[:, None], positions[None, :])

    def key_lists(self, device: torch.device | str = "cpu") -> BlockLists:
        """Return, for each block of queries, the blocks of keys that the block sees."""
        return _lists(self, False, torch.device(device))

    def query_lists(self, device: torch.device | str = "cpu") -> BlockLists:
        """Return, for each block of keys, the blocks of queries that see the block."""
        return _lists(self, True, torch.device(device))

    def blocks_a_row(self) -> Tensor:
        """Return how many blocks of keys each block of queries sees, (blocks,), without the matrix of `seen_blocks`."""
        i = torch.arange(self.num_blocks)
        behind = self.num_blocks - 1 - i
        seen = 1 + self._on_one_side(i) + self._global_alone(i)
        if not self.is_causal:
            seen += self._on_one_side(behind)
        everything = i + 1 if self.is_causal else torch.full_like(i, self.num_blocks)
        return torch.where(i < self.globals_, everything, seen)

    def _on_one_side(self, others: Tensor) -> Tensor:
        """Count the local and strided blocks among so many blocks on one side of the diagonal."""
        near = others.clamp(max=self.local - 1)
        if not self.stride:
            return near
        return near + (others // self.stride - (self.local - 1) // self.stride).clamp(min=0)

    def _global_alone(self, i: Tensor) -> Tensor:
        """Count the global blocks that lie before block i's band and at no stride of block i."""
        first = (i - self.local + 1).clamp(min=0, max=self.globals_)
        if not self.stride:
            return first
        # Distances i - first + 1 .. i; of these the multiples of the stride are counted as strided.
        return first - (i // self.stride - (i - first) // self.stride)

    def pairs(self) -> int:
        """Return the number of pairs of query and key that are seen."""
        rows = self.blocks_a_row()
        last = self.length - (self.num_blocks - 1) * self.block
        short = self.block - last
        # The last block of keys is as short as that of queries. Whoever sees it: by symmetry as many as it sees.
        of_last = 1 if self.is_causal else int(rows[-1])
        whole = int(rows.sum()) * self.block**2 - short * self.block * (of_last + int(rows[-1])) + short**2
        if self.is_causal:
            whole -= (self.num_blocks - 1) * self.block * (self.block - 1) // 2 + last * (last - 1) // 2
        return whole


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # it outlives the call
def _lists(pattern: Pattern, transposed: bool, device: torch.device) -> BlockLists:
    seen = pattern.seen_blocks()
    seen = seen.T.contiguous() if transposed else seen
    counts = seen.sum(dim=1, dtype=torch.int32)
    blocks = torch.argsort(seen.to(torch.int8), dim=1, descending=True, stable=True)[:, : int(counts.max())]
    return BlockLists(counts.to(device), blocks.to(torch.int32).contiguous().to(device))
