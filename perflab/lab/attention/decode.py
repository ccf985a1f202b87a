"""Attention of few queries over many keys in plain PyTorch, split over the keys as FlashDecoding is.

Shapes
    q, out             (B, H, T, D)
    keys, values       (B, C, K, D), slot c holding position c; or pages of a pool, (num_pages, page_size, K, D)
    lengths            (B,), positions in use; pages (B, max_pages); scales (B, C, K) or (num_pages, page_size, K)
    of split s         o_s (B, K, rows, D) and L_s (B, K, rows), rows = H / K heads x T queries that share a key head

    o_s = softmax(scores_s) v_s,    L_s = log sum_j exp(scores_sj)
    out = sum_s exp(L_s - L) o_s,   L = log sum_s exp(L_s)

Dao, Haziza, Massa and Sizov (2023), "Flash-Decoding for long-context inference"; pages as Kwon et al. (2023),
"Efficient memory management for large language model serving with PagedAttention", section 4.1. A split that a query
sees nothing of has o_s = 0 and L_s = -inf. Forward only.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from perflab.lab.attention.inputs import accumulation_dtype
from perflab.lab.attention.scoring import Scoring
from perflab.lab.ranges import ranged

MIN_SPLIT_KEYS = 128
"""Keys of a split at least, and a divisor of any split: whole tiles, and more to read than a merge costs."""
# Some two for each multiprocessor of an H200 (132) or B200 (148). A constant and not a question to the device: the
# order of summation, and so the result's bits, are the same on all.
_PROGRAMS = 256
MAX_TILE_ROWS = 64
"""Rows of a tile, at most: of one key head, the query heads that read it times the queries."""


@dataclass(frozen=True, slots=True)
class Stored:
    """Keys and values as a cache holds them; the shapes are those of the module.

    lengths  positions in use, of which the last is the last query's; None: all, and query t stands at position t
    pages    sequence b's positions [i page_size, (i + 1) page_size) lie on page pages[b, i] of keys and values
    scales   what the int8 numbers of each position and head are multiplied by; None: they are values
    """

    keys: Tensor
    values: Tensor
    lengths: Tensor | None = None
    pages: Tensor | None = None
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Positions that a sequence can have."""
        return self.keys.shape[1] * (1 if self.pages is None else self.pages.shape[1])

    def read(self, start: int, stop: int, seen: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys and values of the positions [start, stop), each (B, K, stop - start, D) in `dtype`.

        Positions that nobody sees, by `seen` (B, stop - start), read as zero: there may be anything, NaN included.
        """

        def gather(x: Tensor) -> Tensor:
            if self.pages is None:
                return x[:, start:stop]
            positions = torch.arange(start, stop, device=x.device)
            # An entry of no page in use may be anything, -1 say.
            page = self.pages[:, positions // x.shape[1]].long().clamp(0, x.shape[0] - 1)
            return x[page, positions % x.shape[1]]

        def value(x: Tensor, scales: Tensor | None) -> Tensor:
            found = gather(x).to(dtype)
            if scales is not None:
                found = found * gather(scales).to(dtype)[..., None]
            return torch.where(seen[..., None, None], found, 0.0).transpose(1, 2)

        return value(self.keys, self.key_scales), value(self.values, self.value_scales)


def split_length(capacity: int, num_tiles: int) -> int:
    """Keys of a split, for `num_tiles` tiles of rows over `capacity` keys.

    By these shapes alone, whatever lengths are: a CUDA graph replays one grid for all of them.
    """
    num_splits = min(_ceil(capacity, MIN_SPLIT_KEYS), _ceil(_PROGRAMS, num_tiles))
    return _ceil(_ceil(capacity, num_splits), MIN_SPLIT_KEYS) * MIN_SPLIT_KEYS


def split_attention(q: Tensor, stored: Stored, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """The output in q's dtype, and the natural log-sum-exp (B, H, T). Products and sums are float32, or float64.

    With lengths the band of `scoring` is relative to where each query stands.
    """
    batch, num_heads, num_queries, head_dim = q.shape
    key_heads = stored.keys.shape[2]
    wide = accumulation_dtype(q.dtype)
    rows = q.to(wide).reshape(batch, key_heads, num_heads // key_heads * num_queries, head_dim)
    lengths = torch.full((batch,), stored.capacity, device=q.device)
    positions = torch.arange(num_queries, device=q.device).expand(batch, -1)
    if stored.lengths is not None:
        lengths = torch.minimum(lengths, stored.lengths.long())
        positions = positions + (lengths - num_queries)[:, None]
    step = split_length(stored.capacity, batch * key_heads * _ceil(rows.shape[2], MAX_TILE_ROWS))
    splits = [
        _one_split(rows, positions, lengths, stored, start, min(start + step, stored.capacity), scoring)
        for start in range(0, stored.capacity, step)
    ]
    out, logsumexp = merge_splits(torch.stack([out for out, _ in splits]), torch.stack([end for _, end in splits]))
    return out.reshape(q.shape).to(q.dtype), logsumexp.reshape(q.shape[:-1])


@ranged("attention: split")
def _one_split(
    rows: Tensor, positions: Tensor, lengths: Tensor, stored: Stored, start: int, stop: int, scoring: Scoring
) -> tuple[Tensor, Tensor]:
    """Attention of rows (B, K, rows, D), whose queries stand at positions (B, T), over the keys [start, stop)."""
    keys = torch.arange(start, stop, device=rows.device)
    ahead = keys - positions[..., None]  # (B, T, keys)
    seen = (keys < lengths[:, None, None]).expand(ahead.shape)
    if scoring.lower is not None:
        seen = seen & (ahead >= scoring.lower)
    if scoring.upper is not None:
        seen = seen & (ahead <= scoring.upper)
    k, v = stored.read(start, stop, seen.any(dim=1), rows.dtype)
    scores = scoring.capped((rows @ k.mT) * scoring.scale)
    by_head = scores.view(*k.shape[:2], -1, *ahead.shape[1:])  # (B, K, H / K, T, keys)
    scores = by_head.masked_fill(~seen[:, None, None], -torch.inf).flatten(2, 3)
    row_max = scores.amax(dim=-1, keepdim=True)
    # A row that sees nothing here has the maximum -inf, and -inf less -inf is no number.
    weights = torch.exp(scores - row_max.masked_fill(row_max == -torch.inf, 0.0))
    row_sum = weights.sum(dim=-1, keepdim=True)
    logsumexp = (row_max + row_sum.log()).squeeze(-1)
    return (weights @ v) / row_sum.masked_fill(row_sum == 0.0, 1.0), logsumexp


def merge_splits(outs: Tensor, logsumexps: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (S, ..., D) and log-sum-exps (S, ...) of disjoint sets of keys, as (..., D) and (...) of their union."""
    logsumexp = torch.logsumexp(logsumexps, dim=0)
    weights = torch.exp(logsumexps - logsumexp.masked_fill(logsumexp == -torch.inf, 0.0))
    return (weights[..., None] * outs).sum(dim=0), logsumexp


def _ceil(amount: int, whole: int) -> int:
    return -(-amount // whole)
