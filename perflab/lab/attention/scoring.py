"""Scores of q and k: the scale, the soft cap, and which keys a query sees.

Shapes: q (..., H, N_q, D); k, v (..., H_kv, N_k, D), H a multiple of H_kv; scores (..., H, N_q, N_k).

    s_ij = scale q_i . k_j                                        and with a soft cap c, c tanh(s_ij / c)
    query i sees key j if  lower <= j - i <= upper, or j < sinks and j - i <= upper; every other score is -inf

Causal attention, sliding windows and both alignments are all such a band of the score matrix:

    causal                     upper = shift
    window_size (left, right)  lower = shift - left, upper = shift + right; -1: no bound on that side
    sinks                      keys j < sinks have no lower bound: the first ones stay in sight of a window
    causal_alignment           shift = 0 for "top-left" (query i stands at key i, as `is_causal` of
                               torch.nn.functional.scaled_dot_product_attention has it);
                               N_k - N_q for "bottom-right" (the last query stands at the last key)

A band can leave a query no key at all: its output is zero, its log-sum-exp -inf, its gradients zero.

`dropout_p` comes after the scores: of the weights p_ij = softmax_j(s_ij) each is made 0 with that probability, from
torch's global generator, and the others p_ij / (1 - dropout_p), so that the mean is what it was. The log-sum-exp is of
the scores, whatever is dropped.

Sources: dropout, Srivastava et al. (2014), section 10;
soft cap, Gemma 2 (2024), section 2; windows, Beltagy et al. (2020), "Longformer", and the `window_size` of
flash-attn; attention sinks, Xiao et al. (2023), "Efficient Streaming Language Models with Attention Sinks", section 3.2
(with the tokens' own positions, not those of a cache); grouped heads, Ainslie et al. (2023), "GQA": query head h reads
key head h // (H / H_kv).
"""

import math
from dataclasses import dataclass
from typing import TypedDict, Unpack

import torch
from torch import Tensor

ALIGNMENTS = ("top-left", "bottom-right")


@dataclass(frozen=True, slots=True)
class Scoring:
    """Scale, soft cap (None: none), band (None: no bound on that side) and sinks, for one pair of lengths."""

    scale: float
    softcap: float | None
    lower: int | None
    upper: int | None
    sinks: int = 0

    def visible(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return which of `keys` (n_k,) each of `queries` (n_q,) sees, both int64 positions: (n_q, n_k) of bool."""
        ahead = keys[None, :] - queries[:, None]
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if self.lower is not None:
            seen &= (ahead >= self.lower) | (keys < self.sinks)
        if self.upper is not None:
            seen &= ahead <= self.upper
        return seen

    def hidden(self, num_queries: int, num_keys: int, device: torch.device) -> Tensor | None:
        """Return the pairs that are not seen, (N_q, N_k) of bool; None where every query sees every key."""
        if self.lower is None and self.upper is None:
            return None
        ones = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
        ahead = None if self.upper is None else ones.triu(self.upper + 1)
        if self.lower is None:
            return ahead
        behind = ones.tril(self.lower - 1)
        behind[:, : self.sinks] = False
        return behind if ahead is None else behind | ahead

    def leaves_queries_without_keys(self, num_queries: int, num_keys: int) -> bool:
        """Whether any query sees nothing: only the first can lie before all keys, only the last behind them."""
        before = self.upper is not None and self.upper < 0
        if self.sinks:
            return before
        behind = self.lower is not None and num_queries - 1 + self.lower > num_keys - 1
        empty = self.lower is not None and self.upper is not None and self.lower > self.upper
        return before or behind or empty

    def capped(self, scores: Tensor) -> Tensor:
        """Scaled scores, soft-capped."""
        return scores if self.softcap is None else self.softcap * torch.tanh(scores / self.softcap)


class Settings(TypedDict, total=False):
    """The settings of attention beside its tensors; the module says what each means."""

    is_causal: bool
    scale: float | None
    window_size: tuple[int, int] | None
    softcap: float | None
    causal_alignment: str
    dropout_p: float
    sinks: int


def default_scale(head_dim: int) -> float:
    """1 / sqrt(D): keeps the variance of q . k at one for unit-variance inputs (Vaswani 2017, 3.2.1)."""
    return 1.0 / math.sqrt(head_dim)


def make_scoring(q: Tensor, k: Tensor, **settings: Unpack[Settings]) -> Scoring:
    """The scoring that these settings mean for q (..., N_q, D) and k (..., N_k, D).

    ValueError for a window that is not two numbers of -1 or more, a soft cap that is not above zero, an unknown
    alignment, sinks that are not a number of keys.
    """
    scale, softcap = settings.get("scale"), settings.get("softcap")
    causal_alignment = settings.get("causal_alignment", "top-left")
    if causal_alignment not in ALIGNMENTS:
        raise ValueError(f"unknown causal_alignment {causal_alignment!r}; choose one of: {', '.join(ALIGNMENTS)}")
    if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
        raise ValueError(f"softcap must be a finite number above zero, got {softcap}; None means no cap")
    left, right = _window(settings.get("window_size"))
    if settings.get("is_causal", False):
        right = 0  # a window that reaches ahead is cut at the diagonal
    sinks = settings.get("sinks", 0)
    if isinstance(sinks, bool) or not isinstance(sinks, int) or sinks < 0:
        raise ValueError(f"sinks must be how many of the first keys every query sees, 0 for none; got {sinks!r}")
    shift = k.shape[-2] - q.shape[-2] if causal_alignment == "bottom-right" else 0
    return Scoring(
        scale=default_scale(q.shape[-1]) if scale is None else float(scale),
        softcap=None if softcap is None else float(softcap),
        lower=None if left is None else shift - left,
        upper=None if right is None else shift + right,
        sinks=0 if left is None else sinks,  # without a lower bound they are in sight as it is
    )


def dropout_probability(**settings: Unpack[Settings]) -> float:
    """The share of the weights that these settings drop. ValueError where it is none from 0 up to, and not, 1."""
    dropout_p = settings.get("dropout_p", 0.0)
    if not 0 <= dropout_p < 1:
        raise ValueError(f"dropout_p={dropout_p!r}: wanted a probability of at least 0 and below 1; 0 drops nothing")
    return dropout_p


def pairs_in_band(num_queries: int, num_keys: int, lower: int | None, upper: int | None, sinks: int = 0) -> int:
    """Return the number of pairs of query and key in the band lower <= j - i <= upper, and the first `sinks` keys."""
    if lower is not None and sinks:
        in_reach = lower - 1 if upper is None else min(lower - 1, upper)
        of_sinks = max(0, _pairs_up_to(num_queries, min(sinks, num_keys), in_reach))
        return of_sinks + pairs_in_band(num_queries, num_keys, lower, upper)
    below = 0 if lower is None else _pairs_up_to(num_queries, num_keys, lower - 1)
    return max(0, (num_queries * num_keys if upper is None else _pairs_up_to(num_queries, num_keys, upper)) - below)


def _pairs_up_to(num_queries: int, num_keys: int, bound: int) -> int:
    """Pairs with j - i <= bound: query i has min(N_k, i + bound + 1) of them, or none."""
    first = max(0, -bound)  # the first query that has any
    full = min(max(first, num_keys - bound - 1), num_queries)  # the first that has all keys
    growing = max(0, full - first)
    return growing * (first + bound + 1) + growing * (growing - 1) // 2 + max(0, num_queries - full) * num_keys


def expand_heads(x: Tensor, like: Tensor) -> Tensor:
    """k or v (..., H_kv, N_k, D), each head repeated next to itself for the query heads of `like` that read it."""
    if x.dim() < 4 or x.shape[-3] == like.shape[-3]:
        return x
    return x.repeat_interleave(like.shape[-3] // x.shape[-3], dim=-3)


def _window(window_size: tuple[int, int] | None) -> tuple[int | None, int | None]:
    if window_size is None:
        return None, None
    sides = tuple(window_size) if isinstance(window_size, tuple | list) else ()
    if len(sides) != 2 or not all(isinstance(side, int) and side >= -1 for side in sides):
        raise ValueError(
            f"window_size must be (left, right): how many keys before and behind its own a query sees, -1 for all; "
            f"got {window_size!r}"
        )
    left, right = (None if side == -1 else side for side in sides)
    return left, right
