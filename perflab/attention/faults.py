"""Computes attention with one fault, in float64, for comparison with an error.

Shapes: q, out, dq (B, H, N_q, D); k, v, dk, dv (B, H_kv, N_k, D); scores (B, H, N_q, N_k); logsumexp (B, H, N_q).

The mathematics is that of `plain_attention`, written out forward and backward, each step with its known faults. With no
fault the result is that of the definition, which is tested.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from perflab.correctness import Evidence
from perflab.lab.attention.scoring import Scoring, make_scoring


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Switches of the known faults of attention; with all switches off, the result is right.

    upper, lower        number of extra keys on that side of the band; negative: of missing keys
    other_alignment     top-left where bottom-right was asked for, and the other way round
    no_sinks            sinks have the window's lower bound, like all keys; no_sinks_backward: in the backward alone
    no_mask             neither causality nor window
    no_window           no window
    scale_factor        factor of every score
    no_scale            scores are q . k
    padded_scale        the scale is 1 / sqrt of the head dimension's next power of two
    padded_to           keys of score 0 and value 0 after the last key, up to a multiple of this
    keys_only_to        keys after the last multiple of this are not seen
    dropped_keys        number of last keys that are not seen
    heads               the head of k and v that a query head reads: "modulo" H_kv, or "first"
    softcap             "ignored", or "of masked scores": -inf becomes -c, and is seen
    no_rescale          keys in a tile; no tile is rescaled when the maximum rises
    last_tile_only      keys in a tile; only the last tile is kept
    unmasked_empty      rows that see nothing average all values; "nan": these rows are NaN
    logsumexp           "base 2", "the maximum alone", "without the maximum", "the sum itself", "of unscaled scores",
                        "zero of empty rows", "infinite of empty rows"
    no_normalisation    out is not divided by the row sum
    no_delta, no_slope, no_d_logsumexp, unmasked_backward, one_query_head, base_2_backward
                        faults of the backward: see `_backward`
    contiguous          names of inputs that are read as if contiguous; upstream_contiguous: upstream gradients likewise
    first_batch_only    every batch is computed from the first one's inputs
    """

    upper: int = 0
    lower: int = 0
    other_alignment: bool = False
    no_sinks: bool = False
    no_sinks_backward: bool = False
    no_mask: bool = False
    no_window: bool = False
    scale_factor: float = 1.0
    no_scale: bool = False
    padded_scale: bool = False
    padded_to: int = 0
    keys_only_to: int = 0
    dropped_keys: int = 0
    heads: str = ""
    softcap: str = ""
    no_rescale: int = 0
    last_tile_only: int = 0
    unmasked_empty: str = ""
    logsumexp: str = ""
    no_normalisation: bool = False
    no_delta: bool = False
    no_slope: bool = False
    no_d_logsumexp: bool = False
    unmasked_backward: bool = False
    one_query_head: str = ""
    base_2_backward: bool = False
    contiguous: str = ""
    upstream_contiguous: bool = False
    first_batch_only: bool = False


def with_fault(evidence: Evidence, fault: Fault) -> dict[str, Tensor]:
    """Return outputs and gradients of attention with that fault, for the inputs and settings of a run."""
    q, k, v = (
        _as_if_contiguous(x) if name in fault.contiguous else x.detach().double() for name, x in evidence.inputs.items()
    )
    if fault.first_batch_only:
        q, k, v = (x[:1].expand(x.shape) for x in (q, k, v))
    settings = dict(evidence.settings)
    if fault.other_alignment:
        aligned = settings.get("causal_alignment", "top-left")
        settings["causal_alignment"] = "top-left" if aligned == "bottom-right" else "bottom-right"
    if fault.no_window:
        settings.pop("window_size", None)
    scoring = make_scoring(q, k, **settings)
    scale = _scale(q, scoring, fault)

    chosen = _heads(q, k, fault)
    keys, values = k[:, chosen], v[:, chosen]
    if fault.padded_to:
        padding = -k.shape[-2] % fault.padded_to
        keys, values = (torch.nn.functional.pad(x, (0, 0, 0, padding)) for x in (keys, values))
    visible = _visible(q, keys, k.shape[-2], scoring, fault)
    raw = q @ keys.mT * scale
    scores, slope = raw, torch.ones_like(raw)
    if scoring.softcap is not None and fault.softcap != "ignored":
        scores = scoring.softcap * torch.tanh(raw / scoring.softcap)
        slope = 1 - (scores / scoring.softcap).square()
    hidden = -scoring.softcap if fault.softcap == "of masked scores" and scoring.softcap else -torch.inf
    scores = scores.masked_fill(~visible, hidden)

    sees_any = (scores > -torch.inf).any(dim=-1, keepdim=True)
    logsumexp = torch.logsumexp(scores, dim=-1, keepdim=True)
    ends = logsumexp.masked_fill(~sees_any, torch.inf)
    weights = torch.exp(scores - ends)
    if fault.no_rescale or fault.last_tile_only:
        weights, ends = _tiled_weights(scores, ends, fault)
        logsumexp = ends.masked_fill(~sees_any, -torch.inf)
    if fault.unmasked_empty:
        weights = torch.where(sees_any, weights, torch.nan if fault.unmasked_empty == "nan" else 1 / keys.shape[-2])
    if fault.no_normalisation:
        weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True).masked_fill(~sees_any, 0.0))
    out = weights @ values
    results = {"out": out, "logsumexp": _wrong_logsumexp(scores, logsumexp, scale, sees_any, fault).squeeze(-1)}
    if evidence.upstream:
        upstream = {
            name: _as_if_contiguous(x) if fault.upstream_contiguous else x.detach().double()
            for name, x in evidence.upstream.items()
        }
        results |= _backward(
            q, keys, values, k, scores, slope, weights, out, scale, ends, upstream, visible, chosen, scoring, fault
        )
    return results


def _backward(
    q: Tensor, keys: Tensor, values: Tensor, k: Tensor, scores: Tensor, slope: Tensor, weights: Tensor, out: Tensor,
    scale: float, ends: Tensor, upstream: Mapping[str, Tensor], visible: Tensor, chosen: Tensor, scoring: Scoring,
    fault: Fault,
) -> dict[str, Tensor]:  # fmt: skip
    """Return the gradients from the forward's weights, with the forward's faults and the backward's own.

    no_delta           ds = p dp, without the row sum of do and o
    no_d_logsumexp     the log-sum-exp's own gradient is dropped
    no_slope           the soft cap's slope is missing
    unmasked_backward  weights come back without the mask
    one_query_head     dk and dv of grouped heads are those of their "first" or "last" query head
    base_2_backward    weights come back as exp2 of natural scores and log-sum-exp
    """
    d_out = upstream.get("out", torch.zeros_like(out))
    if fault.unmasked_backward:
        unmasked = scores if fault.softcap else q @ keys.mT * scale
        weights = torch.exp(torch.where(visible, scores, unmasked) - ends)
    if fault.no_sinks_backward:
        i, j = (torch.arange(n, device=q.device) for n in scores.shape[-2:])
        weights = weights.masked_fill(~replace(scoring, sinks=0).visible(i, j), 0.0)
    if fault.base_2_backward:
        weights = torch.exp2(scores - ends)
    delta = torch.zeros_like(ends) if fault.no_delta else (d_out * out).sum(dim=-1, keepdim=True)
    if "logsumexp" in upstream and not fault.no_d_logsumexp:
        delta = delta - upstream["logsumexp"][..., None]
    d_scores = weights * (d_out @ values.mT - delta) * scale
    if not fault.no_slope:
        d_scores = d_scores * slope
    rows = slice(0, k.shape[-2])
    found = {"dq": d_scores @ keys}
    for name, of_each_head in (("dk", d_scores.mT @ q), ("dv", weights.mT @ d_out)):
        if fault.one_query_head:
            group = q.shape[1] // k.shape[1]
            start = 0 if fault.one_query_head == "first" else group - 1
            found[name] = of_each_head[:, start::group, rows]
        else:
            total = torch.zeros_like(k)
            found[name] = total.index_add(1, chosen, of_each_head[:, :, rows])
    return found


def _scale(q: Tensor, scoring: Scoring, fault: Fault) -> float:
    if fault.no_scale:
        return 1.0
    if fault.padded_scale:
        return float((1 << (q.shape[-1] - 1).bit_length()) ** -0.5)
    return scoring.scale * fault.scale_factor


def _heads(q: Tensor, k: Tensor, fault: Fault) -> Tensor:
    """Return the index of the head of k and v that each query head reads, (H,)."""
    heads, kv_heads = q.shape[1], k.shape[1]
    own = torch.arange(heads, device=q.device)
    if fault.heads == "modulo":
        return own % kv_heads
    return own * 0 if fault.heads == "first" else own // (heads // kv_heads)


def _visible(q: Tensor, keys: Tensor, num_keys: int, scoring: Scoring, fault: Fault) -> Tensor:
    lower = None if scoring.lower is None or fault.no_mask else scoring.lower - fault.lower
    upper = None if scoring.upper is None or fault.no_mask else scoring.upper + fault.upper
    i, j = (torch.arange(n, device=q.device) for n in (q.shape[-2], keys.shape[-2]))
    sinks = 0 if fault.no_sinks else scoring.sinks
    visible = Scoring(scoring.scale, scoring.softcap, lower, upper, sinks).visible(i, j)
    seen_keys = num_keys // fault.keys_only_to * fault.keys_only_to if fault.keys_only_to else keys.shape[-2]
    return visible & (j < seen_keys - fault.dropped_keys)


def _tiled_weights(scores: Tensor, ends: Tensor, fault: Fault) -> tuple[Tensor, Tensor]:
    """Return weights whose tiles each use the maximum up to the tile, or the last tile's alone; and the log-sum-exp."""
    tile = fault.no_rescale or fault.last_tile_only
    number = torch.arange(scores.shape[-1], device=scores.device) // tile
    running = scores.cummax(dim=-1).values[..., torch.clamp((number + 1) * tile - 1, max=scores.shape[-1] - 1)]
    if fault.last_tile_only:
        last = number == number[-1]
        kept = scores.masked_fill(~last, -torch.inf)
        ends = torch.logsumexp(kept, dim=-1, keepdim=True)
        return torch.exp(kept - ends.masked_fill(ends == -torch.inf, torch.inf)), ends
    unscaled = torch.exp(scores - running.masked_fill(running == -torch.inf, torch.inf))
    total = unscaled.sum(dim=-1, keepdim=True)
    return unscaled / total.masked_fill(total == 0, 1.0), running[..., -1:] + torch.log(total)


def _wrong_logsumexp(scores: Tensor, logsumexp: Tensor, scale: float, sees_any: Tensor, fault: Fault) -> Tensor:
    maximum = scores.amax(dim=-1, keepdim=True)
    zero = torch.zeros_like(logsumexp)
    wrong = {
        "base 2": logsumexp / torch.log(torch.full_like(logsumexp, 2.0)),
        "the maximum alone": maximum,
        "without the maximum": torch.where(sees_any, logsumexp - maximum, -torch.inf),
        "the sum itself": torch.exp(logsumexp),
        "of unscaled scores": torch.logsumexp(scores / scale, dim=-1, keepdim=True),
        "zero of empty rows": torch.where(sees_any, logsumexp, zero),
        "infinite of empty rows": torch.where(sees_any, logsumexp, torch.inf),
        "nan": torch.where(sees_any, logsumexp, torch.nan),
    }
    return wrong.get(fault.logsumexp, wrong["nan"] if fault.unmasked_empty == "nan" else logsumexp)


def _as_if_contiguous(x: Tensor) -> Tensor:
    """Return the elements that a kernel reads if it takes a pointer and the shape, and assumes contiguous strides.

    NaN throughout if the kernel would read past the end of the memory.
    """
    strides: list[int] = []
    step = 1
    for size in reversed(x.shape):
        strides.insert(0, step)
        step *= size
    held = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    if step > held:
        return torch.full(x.shape, torch.nan, dtype=torch.float64, device=x.device)
    return x.detach().as_strided(x.shape, strides, x.storage_offset()).double()
