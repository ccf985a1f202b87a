"""Attention of the newest tokens over a cache of keys and values: checks, and the choice of what computes it.

Shapes: q, out (B, H, T, D); keys, values (B, C, K, D), or (num_pages, page_size, K, D) with pages (B, max_pages); H a
multiple of K; lengths (B,); key_scales, value_scales (B, C, K) or (num_pages, page_size, K).

    out = softmax(scale * q k^T + mask) v    by the algorithm of `decode`
"""

import torch
from torch import Tensor

from perflab.lab.attention.decode import Stored, split_attention
from perflab.lab.attention.dispatch import import_triton_decode, without_autocast
from perflab.lab.attention.registry import IMPLEMENTATIONS, require_gradients
from perflab.lab.attention.scoring import Scoring, default_scale
from perflab.lab.ranges import ranged

IMPLS = {"torch": IMPLEMENTATIONS["decode"], "triton": IMPLEMENTATIONS["triton-decode"]}
"""Implementations of attention over a cache, each with the variant of `attention` that is the same algorithm."""


@ranged("attention: decode_attention")
def decode_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    lengths: Tensor,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    pages: Tensor | None = None,
    key_scales: Tensor | None = None,
    value_scales: Tensor | None = None,
    impl: str = "torch",
) -> Tensor:
    """Causal attention of q, the T newest tokens of each sequence, over the keys and values of a cache.

    q             (B, H, T, D); the last query of sequence b stands at position lengths[b] - 1
    keys, values  (B, C, K, D), slot c holding position c; with pages a pool (num_pages, page_size, K, D)
    lengths       (B,) int32 or int64: keys of each sequence, the new ones included. 0 is allowed; what is beyond the
                  capacity, C or max_pages page_size, counts as the capacity
    window        how many tokens one sees, itself included; None: all before it
    scale         None means 1 / sqrt(D)
    softcap       c: scores become c tanh(s / c)
    pages         (B, max_pages) int32: positions [i page_size, (i + 1) page_size) of sequence b lie on pages[b, i].
                  Entries of positions that no query sees are not read: a window leaves whole pages free
    key_scales, value_scales  floating, (B, C, K) or (num_pages, page_size, K); keys and values are then int8, and
                  each value is the int8 number times its scale
    impl          "torch" or "triton"; what is asked for runs, or raises

    Returns (B, H, T, D) in q's dtype; a query that sees no key gives zeros. Memory that no query sees may hold
    anything. Nothing waits for the device, and the launches depend on shapes alone, so a CUDA graph can replay them
    while lengths and pages change. The same inputs give the same bits. No gradients.

    Raises ValueError for an unknown impl, unusable settings, and shapes and devices that do not fit; TypeError for
    dtypes; NotImplementedError where a gradient would be recorded; RuntimeError where Triton can't run on the device;
    ImportError where Triton is missing.
    """
    stored = Stored(keys, values, lengths, pages, key_scales, value_scales)
    _check(q, stored, window, softcap, impl)
    require_gradients(IMPLS[impl], q, keys, values)
    scoring = Scoring(
        scale=default_scale(q.shape[-1]) if scale is None else float(scale),
        softcap=None if softcap is None else float(softcap),
        lower=None if window is None else 1 - window,
        upper=0,
    )
    with without_autocast(q.device.type):
        if impl == "torch":
            return split_attention(q, stored, scoring)[0]
        out: Tensor = import_triton_decode().decode(q, stored, scoring)[0]
        return out


def _check(q: Tensor, stored: Stored, window: int | None, softcap: float | None, impl: str) -> None:
    if impl not in IMPLS:
        raise ValueError(f"decode_attention has no impl {impl!r}; choose one of: {', '.join(IMPLS)}")
    if window is not None and window < 1:
        raise ValueError(f"window={window}: wanted 1 at least, since a token sees itself, or None for no window")
    if softcap is not None and not softcap > 0:
        raise ValueError(f"softcap must be above zero, got {softcap}; None means no cap")
    problem = _shape_problem(q, stored)
    if problem is not None:
        raise ValueError(f"decode_attention wants {problem}; got {_given(q, stored)}")
    problem = _dtype_problem(q, stored, IMPLS[impl].dtypes)
    if problem is not None:
        raise TypeError(f"decode_attention(impl={impl!r}) wants {problem}; got {_given(q, stored)}")
    if any(x is not None and x.device != q.device for x in _tensors(stored).values()):
        raise ValueError(
            f"decode_attention wants all on one device; got {_given(q, stored)}. Move them with .to(device)"
        )


def _shape_problem(q: Tensor, stored: Stored) -> str | None:
    keys, pages, lengths = stored.keys, stored.pages, stored.lengths
    if q.dim() != 4 or keys.dim() != 4 or keys.shape != stored.values.shape or 0 in q.shape or 0 in keys.shape:
        return "q as (batch, heads, new tokens, head_dim), keys and values as (batch, capacity, key heads, head_dim)"
    if q.shape[3] != keys.shape[3] or q.shape[1] % keys.shape[2]:
        return "one head_dim, and as many heads in q as in keys, or a multiple of them"
    if pages is None and keys.shape[0] != q.shape[0]:
        return "the same batch in q and keys, or pages=(batch, max_pages) with a pool of pages"
    if pages is not None and (pages.dim() != 2 or pages.shape[0] != q.shape[0] or not pages.shape[1]):
        return "pages as (batch, max_pages), max_pages 1 at least: a row of page numbers for each sequence of q"
    if lengths is None or lengths.shape != q.shape[:1]:
        return "lengths as (batch,): how many keys each sequence has, the new ones included"
    if (stored.key_scales is None) != (stored.value_scales is None):
        return "key_scales and value_scales, or neither"
    if any(x is not None and x.shape != keys.shape[:3] for x in (stored.key_scales, stored.value_scales)):
        return "scales of the shape of keys without the last dimension: one for each position and head"
    return None


def _dtype_problem(q: Tensor, stored: Stored, dtypes: tuple[torch.dtype, ...]) -> str | None:
    if q.dtype not in dtypes:
        return f"q of one of {', '.join(map(_short, dtypes))}. Cast with .to(dtype)"
    held = torch.int8 if stored.key_scales is not None else q.dtype
    if not stored.keys.dtype == stored.values.dtype == held:
        reason = "q's dtype; int8 takes key_scales= and value_scales=" if held == q.dtype else "their scales come with"
        return f"keys and values of {_short(held)}, {reason}"
    if any(x is not None and not x.is_floating_point() for x in (stored.key_scales, stored.value_scales)):
        return "floating scales, float32 say"
    if stored.lengths is not None and stored.lengths.dtype not in (torch.int32, torch.int64):
        return "lengths of int32 or int64"
    if stored.pages is not None and stored.pages.dtype not in (torch.int32, torch.int64):
        return "pages of int32 or int64"
    return None


def _tensors(stored: Stored) -> dict[str, Tensor | None]:
    return {name: getattr(stored, name) for name in Stored.__dataclass_fields__}


def _given(q: Tensor, stored: Stored) -> str:
    tensors = {"q": q} | _tensors(stored)
    return ", ".join(
        f"{n} {tuple(x.shape)} {_short(x.dtype)} on {x.device}" for n, x in tensors.items() if x is not None
    )


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
