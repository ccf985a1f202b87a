"""Attention over a cache that is wrong on purpose, one fault each: what `decode_cases.hold` has to catch.

Shapes as in decode_cases.py. Each fault is a switch of one small split decode; with none of them it is right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .decode_cases import Case

SPLIT = 64


class Decode:
    """A split decode in float32; `faults` are the switches that are on. What it remembers is of its first call."""

    def __init__(self, **faults: Any) -> None:
        self._faults, self._first = faults, dict[str, Tensor]()

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, *, lengths: Tensor, window: int | None = None,
        softcap: float | None = None, pages: Tensor | None = None, key_scales: Tensor | None = None,
        value_scales: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        on = self._faults.get
        if on("remembered"):
            given = {"lengths": lengths, "pages": pages}[on("remembered")]
            kept = self._first.setdefault(on("remembered"), given.clone())
            lengths, pages = (kept, pages) if on("remembered") == "lengths" else (lengths, kept)
        if key_scales is not None and value_scales is not None:
            moved = key_scales.roll(1, dims=1) if on("neighbour_scale") else key_scales
            keys = keys.float() * moved[..., None]
            values = values.float() * (key_scales if on("one_scale") else value_scales)[..., None]
        if pages is not None:
            page = pages.long().clamp(0, len(keys) - 1)
            keys, values = (x[page].flatten(1, 2) for x in (keys, values))
        heads = torch.arange(q.shape[1], device=q.device)
        heads = heads % keys.shape[2] if on("modulo_heads") else heads // (q.shape[1] // keys.shape[2])
        k, v = (x[:, :, heads].transpose(1, 2).float() for x in (keys, values))
        length = lengths.long()[:, None, None]
        i = torch.arange(q.shape[2], device=q.device)[:, None] + length - q.shape[2]
        if on("first_query_first"):
            i = i - length + q.shape[2]
        j = torch.arange(k.shape[2], device=q.device)
        seen = (j <= i + on("one_beyond", 0)) & (j < length + on("one_beyond", 0))
        if window is not None:
            seen = seen & (i - j < window + on("window_wide", 0))
        k, v = (x.masked_fill(~seen.any(1)[:, None, :, None], 0.0) for x in (k, v))
        scores = q.float() @ k.mT * q.shape[3] ** -0.5
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        parts, ends = [], []
        for start in range(0, k.shape[2], SPLIT):
            cut = slice(max(0, start + (on("starts_later", 0) if start else 0)), start + SPLIT)
            end = scores[..., cut].logsumexp(-1)
            safe = end if on("empty_nan") else end.masked_fill(end == -torch.inf, 0.0)
            parts.append(torch.exp(scores[..., cut] - safe[..., None]) @ v[:, :, cut])
            ends.append(end)
        outs, logsumexps = torch.stack(parts), torch.stack(ends)
        if on("equal_weights"):
            logsumexps = torch.where(logsumexps == -torch.inf, logsumexps, 0.0)
        if on("first_split_alone"):
            outs, logsumexps = outs[:1], logsumexps[:1]
        whole = logsumexps.logsumexp(0)
        weights = torch.exp(logsumexps - whole.masked_fill(whole == -torch.inf, 0.0))
        return (weights.to(on("merged_in", torch.float32)).float()[..., None] * outs).sum(0).to(q.dtype)


@dataclass(frozen=True)
class WrongKernel:
    """A fault by name, what makes it, the case that has to catch it, and what the verdict must say."""

    name: str
    make: Callable[[], Callable[..., Tensor]]
    case: Case
    clue: str = "out is wrong"


PLAIN, PAGED = Case(2), Case(2, paged=True)
WINDOW, INT8 = Case(5, window=40), Case(1, int8=True)
WRONG_KERNELS = tuple(
    WrongKernel(name, partial(Decode, **faults), case, *clue)
    for name, case, faults, *clue in (
        ("split-begins-one-late", PLAIN, {"starts_later": 1}),
        ("split-begins-one-early", PLAIN, {"starts_later": -1}),
        ("merged-without-logsumexp", PLAIN, {"equal_weights": True}),
        ("first-split-alone", PLAIN, {"first_split_alone": True}),
        ("merged-in-bf16", PLAIN, {"merged_in": torch.bfloat16}),
        ("empty-split-nan", PLAIN, {"empty_nan": True}, "got nan, wanted"),
        ("stale-page", PAGED, {"remembered": "pages"}),
        ("stale-length", PLAIN, {"remembered": "lengths"}),
        ("scale-of-the-neighbour", INT8, {"neighbour_scale": True}),
        ("values-by-the-keys-scale", INT8, {"one_scale": True}),
        ("window-one-wide", WINDOW, {"window_wide": 1}),
        ("window-one-narrow", WINDOW, {"window_wide": -1}),
        ("one-key-beyond-the-length", PLAIN, {"one_beyond": 1}, "got nan, wanted"),
        ("first-query-at-the-first-key", PLAIN, {"first_query_first": True}),
        ("modulo-heads", PLAIN, {"modulo_heads": True}),
    )
)
