"""The k vectors with the largest inner products with a query: exactly, and through an inverted-file index.

N vectors, Q queries, d width, L lists, P lists that a query probes (nprobe), M vectors of the longest list.

    exact:     scores q . x of all N vectors                                       Q N d products
    inverted:  centroids c_1 ... c_L by k-means; list l has the vectors nearest to c_l
               scores of the vectors in the P lists nearest to q                   Q (L + P M) d products

The coarse quantiser of Jégou, Douze & Schmid 2011, "Product Quantization for Nearest Neighbor Search", section IV-A;
its lists have the vectors in place of codes.

Both rank alike: a score is summed in float64 and rounded to float32, so that it does not depend on its neighbours; of
equal scores the lower number comes first; NaN comes before all. To rank so, score and number are one int64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NOTHING = -1
"""A number where a list, or a search through too small lists, has no vector."""
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_LOW_BITS, _LAST = 0xFFFF_FFFF, torch.iinfo(torch.int64).min


class Found(NamedTuple):
    """The best first: `numbers` (Q, k) int64 of vectors and `scores` (Q, k) float32; NOTHING and -inf fill up."""

    numbers: Tensor
    scores: Tensor


def exact_search(queries: Tensor, vectors: Tensor, k: int) -> Found:
    """Search all vectors (N, d) for queries (Q, d). ValueError: k is not in 1 to N, or shapes or dtypes do not fit."""
    _check(queries, vectors, k)
    numbers = torch.arange(len(vectors), device=vectors.device).expand(len(queries), -1)
    return _best(queries.double() @ vectors.double().T, numbers, k)


class InvertedFileIndex:
    """Lists of near vectors, of which a search looks at few.

    Args:
        vectors: (N, d), kept as they are.
        num_lists: L, 1 to N; about sqrt(N) balances the centroids against a list.
        seed: of the vectors that k-means (Lloyd's) begins with; the same seed gives the same index.
        iterations: of k-means. A list that becomes empty keeps its centroid.

    Attributes: centroids (L, d) float64; members (L, M) int64, numbers in rising order, filled up with NOTHING.
    """

    def __init__(self, vectors: Tensor, num_lists: int, *, seed: int = 0, iterations: int = 10) -> None:
        _check(vectors, vectors, 1)
        if not 1 <= num_lists <= len(vectors):
            raise ValueError(f"num_lists={num_lists} of {len(vectors)} vectors: wanted 1 to {len(vectors)}")
        self.vectors, wide = vectors, vectors.double()
        first = torch.randperm(len(vectors), generator=torch.Generator().manual_seed(seed))[:num_lists]
        self.centroids = wide[first.to(vectors.device)]
        for _ in range(iterations):
            nearest = self._nearness(wide).argmax(-1)
            sums = torch.zeros_like(self.centroids).index_add_(0, nearest, wide)
            counts = torch.bincount(nearest, minlength=num_lists)[:, None]
            self.centroids = torch.where(counts > 0, sums / counts.clamp(min=1), self.centroids)
        self.members = _lists(self._nearness(wide).argmax(-1), num_lists)

    def search(self, queries: Tensor, k: int, *, nprobe: int) -> Found:
        """Search the `nprobe` lists, 1 to L, nearest to each query; all of them find what `exact_search` does."""
        _check(queries, self.vectors, k)
        if not 1 <= nprobe <= len(self.members):
            raise ValueError(f"nprobe={nprobe} of {len(self.members)} lists: wanted 1 to {len(self.members)}")
        probed = self._nearness(queries.double()).topk(nprobe).indices
        numbers = self.members[probed].flatten(1)  # (Q, P M)
        near = self.vectors[numbers.clamp(min=0)].double()
        return _best((near @ queries.double()[..., None])[..., 0], numbers, k)

    def _nearness(self, x: Tensor) -> Tensor:
        """(n, L), larger for a nearer centroid: -|x - c|^2 / 2 without |x|^2, the same for all."""
        return x @ self.centroids.T - self.centroids.square().sum(-1) / 2


def recall(found: Found, wanted: Found) -> float:
    """Share of the vectors wanted that were found, in whatever order: recall at k."""
    return (wanted.numbers[..., None] == found.numbers[:, None]).any(-1).double().mean().item()


def _lists(nearest: Tensor, num_lists: int) -> Tensor:
    """Members (L, M), from the list of each vector (N,)."""
    counts = torch.bincount(nearest, minlength=num_lists)
    order = nearest.argsort(stable=True)
    place = torch.arange(len(order), device=order.device) - (counts.cumsum(0) - counts)[nearest[order]]
    members = torch.full((num_lists, int(counts.max())), NOTHING, device=order.device)
    members[nearest[order], place] = order
    return members


def _best(scores: Tensor, numbers: Tensor, k: int) -> Found:
    """The k best of scores (Q, n) of vectors with these numbers (Q, n)."""
    missing = (0, max(0, k - numbers.shape[1]))
    scores, numbers = F.pad(scores.float() + 0.0, missing), F.pad(numbers, missing, value=NOTHING)  # -0 becomes 0
    bits = scores.view(torch.int32)
    rising = (bits ^ (bits >> 31 & 0x7FFF_FFFF)).long()  # of negative floats the bits fall: turned round
    keys = torch.where(numbers == NOTHING, _LAST, rising << 32 | _LOW_BITS - numbers)
    best, at = keys.topk(k)
    return Found(numbers.gather(1, at), scores.gather(1, at).masked_fill(best == _LAST, -torch.inf))


def _check(queries: Tensor, vectors: Tensor, k: int) -> None:
    for name, given in (("vectors", vectors), ("queries", queries)):
        if given.dtype not in DTYPES or given.ndim != 2:
            raise ValueError(
                f"{name} of shape {tuple(given.shape)} in {given.dtype}: wanted (number, width) in one of {DTYPES}, "
                f"such as {name}.float()"
            )
    if queries.shape[1] != vectors.shape[1]:
        raise ValueError(f"widths {queries.shape[1]} and {vectors.shape[1]}: embed queries and vectors by one model")
    if not 1 <= k <= len(vectors):
        raise ValueError(f"k={k} of {len(vectors)} vectors: wanted 1 to {len(vectors)}; ask for fewer, or add text")
