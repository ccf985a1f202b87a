"""Attention that is wrong on purpose, one fault each: what the correctness suite has to catch.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D) -> out (B, H, N_q, D), logsumexp (B, H, N_q).
Most faults are switches of a small tiled forward and backward (`FaultyAttention`); with none of them it is right, which
is tested too. It shares no code with `perflab.attention.faults`, whose float64 predictions the diagnosis is made of.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from perflab.attention.candidate import Candidate, from_callable
from perflab.attention.grid import Case

TILE = 32


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    causal_alignment: str = "top-left",
    sinks: int = 0,
    **faults: Any,
) -> tuple[Tensor, Tensor]:
    """Attention by tiles of keys, with its own backward; right as long as no fault is switched on."""
    if faults.get("contiguous"):
        q, k, v = (x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset()) for x in (q, k, v))
    head_dim = 1 << (q.shape[-1] - 1).bit_length() if faults.get("padded_scale") else q.shape[-1]
    scale = 1.0 / math.sqrt(head_dim) if scale is None or faults.get("default_scale") else scale
    shift = k.shape[2] - q.shape[2] if (causal_alignment == "bottom-right") != bool(faults.get("other_corner")) else 0
    left, right = window_size or (-1, -1)
    if faults.get("no_window"):
        left, right = -1, -1
    lower = -(10**6) if left == -1 else shift - left - faults.get("window_wide", 0)
    upper = 10**6 if right == -1 else shift + right
    if is_causal and not faults.get("no_mask"):
        upper = shift + faults.get("sees_ahead", 0)
    faults["sinks"] = 0 if faults.get("no_sinks") else sinks + faults.get("more_sinks", 0)
    out, logsumexp = FaultyAttention.apply(q, k, v, lower, upper, scale, softcap, faults)
    return out, logsumexp


class FaultyAttention(torch.autograd.Function):
    """FlashAttention-2 forward and backward over tiles of keys, with a switch for each fault."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, lower: int, upper: int, scale: float, softcap: float | None,
        faults: dict[str, Any],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        on = faults.get
        ctx.save_for_backward(q, k, v)
        ctx.arguments = lower, upper, scale, softcap, faults
        heads = _heads(q, k, faults)
        accumulator = on("accumulator", torch.float32)
        num_keys = k.shape[2] - on("skip_odd_key", 0) * (k.shape[2] % 2)
        row_max = torch.full(q.shape[:-1], -torch.inf, device=q.device)
        row_sum = torch.zeros(q.shape[:-1], dtype=accumulator, device=q.device)
        acc = torch.zeros(q.shape, dtype=accumulator, device=q.device)
        stop = num_keys // TILE * TILE if on("drop_tail") and num_keys > TILE else num_keys
        for start in range(0, stop, TILE):
            _, values, scores, _ = _tile(q, k, v, heads, start, num_keys, lower, upper, scale, softcap, faults)
            if not on("maximum", True):
                new_max = torch.zeros_like(row_max)
            else:
                new_max = torch.maximum(row_max, scores.amax(dim=-1))
            shift = new_max if on("empty_nan") else new_max.masked_fill(new_max == -torch.inf, 0.0)
            weights = torch.exp(scores - shift[..., None])
            factor = torch.exp(row_max - shift) if on("rescale", True) else torch.ones_like(row_max)
            if start == 0:
                factor = torch.zeros_like(factor)
            if on("set_not_added"):
                factor = torch.zeros_like(factor)
            row_sum = (row_sum * factor + weights.sum(dim=-1)).to(accumulator)
            if "weights_in" in faults:
                weights = weights.to(faults["weights_in"]).float()
            acc = (acc * factor[..., None] + weights @ values).to(accumulator)
            row_max = new_max
        total = row_sum.float()
        safe = total if on("empty_nan") else total.masked_fill(total == 0, 1.0)
        result = acc.float() if on("unnormalised") else acc.float() / safe[..., None]
        logsumexp = row_max + torch.log(safe)
        ctx.ends = logsumexp
        shown = {
            "base 2": logsumexp * math.log2(math.e), "maximum": row_max, "no maximum": torch.log(safe),
            "zero": logsumexp.masked_fill(total == 0, 0.0),
        }.get(on("logsumexp", ""), logsumexp)  # fmt: skip
        out = torch.empty_like(q) if on("skip_rows") else result.to(q.dtype)
        if on("skip_rows"):
            whole = q.shape[2] // TILE * TILE
            out[:, :, :whole] = result[:, :, :whole].to(q.dtype)
        if on("skip_columns"):
            out[..., q.shape[3] // 32 * 32 :] = 0
        if on("first_batch"):
            out = out[:1].expand(out.shape).contiguous()
        ctx.out = result
        return out, shown.clone()

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, d_logsumexp: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        lower, upper, scale, softcap, faults = ctx.arguments
        on = faults.get
        if on("contiguous_upstream"):
            d_out = _read_as_contiguous(d_out)
        heads = _heads(q, k, faults)
        d_out, d_logsumexp = d_out.float(), d_logsumexp.float()
        ends = ctx.ends.masked_fill(ctx.ends == -torch.inf, torch.inf)[..., None]
        delta = (d_out * ctx.out).sum(dim=-1, keepdim=True)
        if on("no_delta"):
            delta = torch.zeros_like(delta)
        if not on("no_d_logsumexp"):
            delta = delta - d_logsumexp[..., None]
        if on("unmasked_backward"):
            lower, upper = -(10**6), 10**6
        dq = torch.zeros(q.shape, dtype=on("dq_in", torch.float32), device=q.device)
        dk, dv = (torch.zeros(x.shape, device=q.device) for x in (k, v))
        for start in range(0, k.shape[2], TILE):
            seen = faults | {"sinks": 0} if on("no_sinks_backward") else faults
            keys, values, scores, slope = _tile(q, k, v, heads, start, k.shape[2], lower, upper, scale, softcap, seen)
            weights = torch.exp(scores - ends)
            d_scores = weights * (d_out @ values.mT - delta) * scale
            if not on("no_slope"):
                d_scores = d_scores * slope
            dq = (dq + d_scores @ keys).to(dq.dtype)
            stop = min(start + TILE, k.shape[2])
            for target, each in ((dk, d_scores.mT @ q.float()), (dv, weights.mT @ d_out)):
                for head, of in enumerate(heads.tolist()):
                    if on("last_head_alone"):
                        target[:, of, start:stop] = each[:, head, : stop - start]
                    else:
                        target[:, of, start:stop] += each[:, head, : stop - start]
        if on("unscaled_dq"):
            dq = dq / scale
        if on("double_dv"):
            dv = dv * 2
        if on("swapped"):
            dk, dv = dv, dk
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), *[None] * 5


def _tile(
    q: Tensor, k: Tensor, v: Tensor, heads: Tensor, start: int, num_keys: int, lower: int, upper: int, scale: float,
    softcap: float | None, faults: dict[str, Any],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Keys and values of a tile, padded with zeros; its scores, hidden ones -inf; and the soft cap's slope."""
    on = faults.get
    stop = min(start + TILE, num_keys)
    keys, values = (
        torch.nn.functional.pad(x[:, heads, start:stop].float(), (0, 0, 0, start + TILE - stop)) for x in (k, v)
    )
    queries = q.float()
    if "operands_in" in faults:
        queries, keys = (x.to(faults["operands_in"]).float() for x in (queries, keys))
    if on("tf32"):
        queries, keys, values = (_to_tf32(x) for x in (queries, keys, values))
    scores = queries @ keys.mT * scale
    if on("scale_twice"):
        scores = scores * scale
    slope = torch.ones_like(scores)
    if softcap is not None and not on("no_softcap") and not on("cap_after_mask"):
        scores = softcap * torch.tanh(scores / softcap)
        slope = 1 - (scores / softcap).square()
    i = torch.arange(q.shape[2], device=q.device)[:, None]
    j = torch.arange(start, start + TILE, device=q.device)[None, :]
    hidden = ((j - i < lower) & (j >= faults["sinks"])) | (j - i > upper)
    scores = scores.masked_fill(hidden, on("hidden", -torch.inf))
    if softcap is not None and on("cap_after_mask"):
        scores = softcap * torch.tanh(scores / softcap)
        slope = 1 - (scores / softcap).square()
    if on("mask_tail", True):
        scores = scores.masked_fill(j >= num_keys, -torch.inf)
    return keys, values, scores, slope


def _heads(q: Tensor, k: Tensor, faults: dict[str, Any]) -> Tensor:
    own = torch.arange(q.shape[1], device=q.device)
    return own % k.shape[1] if faults.get("modulo_heads") else own // (q.shape[1] // k.shape[1])


def _to_tf32(x: Tensor) -> Tensor:
    """Ten bits of mantissa, as tensor cores take float32 unless they are told not to."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def _read_as_contiguous(x: Tensor) -> Tensor:
    flat = torch.empty(0, dtype=x.dtype, device=x.device).set_(x.untyped_storage())[x.storage_offset() :]
    return flat.repeat(-(-x.numel() // flat.numel()))[: x.numel()].reshape(x.shape)


class Remembered:
    """Returns what it computed the first time it saw these shapes, or this memory."""

    def __init__(self, by: Callable[[Tensor], Any]) -> None:
        self._by, self._kept = by, dict[Any, tuple[Tensor, Tensor]]()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float | None) -> Any:
        key = self._by(q), q.shape, k.shape, q.dtype, is_causal
        if key not in self._kept:
            self._kept[key] = attend(q, k, v, is_causal=is_causal, scale=scale)
        return tuple(x.detach().clone() for x in self._kept[key])


class OneBuffer:
    """Right each time, in the same memory each time."""

    def __init__(self) -> None:
        self._buffers = dict[Any, Tensor]()

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float | None) -> Any:
        out, logsumexp = (x.detach() for x in attend(q, k, v, is_causal=is_causal, scale=scale))
        buffer = self._buffers.setdefault((q.shape, q.dtype), torch.empty_like(out))
        return buffer.copy_(out), logsumexp


class Drifting:
    """Not the same bits twice: its sums begin with another remainder in each call."""

    deterministic = True

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float | None) -> Any:
        self._calls += 1
        out, logsumexp = attend(q, k, v, is_causal=is_causal, scale=scale)
        return out * (1 + self._calls % 2 * torch.finfo(out.dtype).eps), logsumexp


def all_zero(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float | None) -> Any:
    """No answer at all. For long sequences that is close to the right one."""
    return torch.zeros_like(q), attend(q, k, v, is_causal=is_causal, scale=scale)[1].detach()


def scales_its_input(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float | None) -> Any:
    """Folds the scale into the caller's q."""
    with torch.no_grad():
        q *= 1.0 / math.sqrt(q.shape[-1]) if scale is None else scale
    return tuple(x.detach() for x in attend(q, k, v, is_causal=is_causal, scale=1.0))


def writes_between(q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scale: float | None) -> Any:
    """Writes one element past the end of each row of v's last row, which in a larger tensor is somebody else's."""
    found = attend(q, k, v, is_causal=is_causal, scale=scale)
    whole = torch.empty(0, dtype=v.dtype, device=v.device).set_(v.untyped_storage())
    end = v.storage_offset() + sum((size - 1) * stride for size, stride in zip(v.shape, v.stride(), strict=True)) + 1
    whole[end : end + 1] = 1.0
    return found


@dataclass(frozen=True)
class WrongKernel:
    """A fault by name, a sentence for readers, and what must find it.

    case       one case of the suite that catches it
    clue       what the verdict must say of the cause
    allclose   whether torch.allclose with 1e-2 at one shape passes it
    """

    name: str
    fault: str
    make: Callable[[], Callable[..., Any]]
    case: Case
    clue: str
    allclose: bool = True
    attributes: dict[str, Any] = field(default_factory=dict)

    def candidate(self, device: torch.device) -> Candidate:
        """A fresh one."""
        return from_callable(self.name, self.make(), device)


def _case(n_q: int = 113, n_k: int = 97, head_dim: int = 40, dtype: str = "fp32", **levels: Any) -> Case:
    return Case(n_q, n_k, head_dim, dtype, **levels)


def _faulty(name: str, fault: str, case: Case, clue: str, allclose: bool = True, **faults: Any) -> WrongKernel:
    return WrongKernel(name, fault, lambda: partial(attend, **faults), case, clue, allclose)


FULL, CAUSAL = _case(), _case(mask="causal")
SHORT = _case(97, 113, mask="causal")
GROUPED = _case(heads="h4:2")
CAPPED = _case(softcap="softcap3", scale="scale1")
WINDOW = _case(mask="window")
SINKS = _case(mask="sinks")
EMPTY = _case(mask="bottomright")
LOW = _case(17, 1024, 64, "bf16")

WRONG_KERNELS = (
    _faulty(
        "tail-mask-missing",
        "keys behind the last count with score 0",
        FULL,
        "the tail is not masked: keys behind the last, up to a multiple of 32",
        mask_tail=False,
    ),
    _faulty(
        "tail-dropped",
        "the last, partial tile of keys is left out",
        FULL,
        "left out: the last, partial tile",
        drop_tail=True,
    ),
    _faulty(
        "odd-key-skipped",
        "the last key is left out where N_k is odd",
        _case(97, 203),
        "the last key is left out",
        skip_odd_key=1,
    ),
    _faulty(
        "no-rescale",
        "sums are not rescaled when the maximum rises",
        FULL,
        "rescale by exp(m - m') is missing",
        allclose=False,
        rescale=False,
    ),
    _faulty(
        "sums-set-not-added",
        "each tile of keys overwrites the one before",
        _case(97, 113),
        "only the last tile of 32 keys is kept",
        allclose=False,
        set_not_added=True,
    ),
    _faulty(
        "no-maximum",
        "exponentials of raw scores: they overflow",
        _case(data="large", scale="scale1"),
        "is NaN",
        maximum=False,
    ),
    _faulty(
        "not-normalised",
        "the output is not divided by the row sum",
        FULL,
        "not divided by the row sum",
        allclose=False,
        unnormalised=True,
    ),
    _faulty(
        "causal-ahead",
        "query i also sees key i + 1",
        CAUSAL,
        "the mask is off by one: query i also sees the key after its last",
        sees_ahead=1,
    ),
    _faulty("causal-short", "query i does not see key i", CAUSAL, "query i does not see its last key", sees_ahead=-1),
    _faulty("causal-ignored", "the mask is ignored", CAUSAL, "the mask is ignored", no_mask=True),
    _faulty(
        "other-corner",
        "the causal mask is aligned bottom-right",
        SHORT,
        "aligned to the other corner",
        other_corner=True,
    ),
    _faulty(
        "window-wide",
        "the window reaches one key too far back",
        WINDOW,
        "the window is off by one: it reaches one key further back",
        window_wide=1,
    ),
    _faulty(
        "window-narrow",
        "the window misses its first key",
        WINDOW,
        "it misses the key that it should begin with",
        window_wide=-1,
    ),
    _faulty(
        "window-ignored", "the window is ignored", _case(mask="causalwindow"), "the window is ignored", no_window=True
    ),
    _faulty("sinks-ignored", "sinks leave the window as other keys do", SINKS, "the sinks are ignored", no_sinks=True),
    _faulty(
        "sinks-forgotten-in-the-backward",
        "the backward has the window alone, and no sinks",
        SINKS,
        "the backward forgets the sinks",
        no_sinks_backward=True,
    ),
    _faulty("empty-rows-nan", "a row that sees no key is NaN", EMPTY, "a row that sees no key is NaN", empty_nan=True),
    _faulty(
        "empty-rows-average",
        "hidden scores are -1e30: a row without keys averages all values",
        EMPTY,
        "averages all values",
        hidden=-1e30,
    ),
    _faulty(
        "empty-rows-logsumexp",
        "the log-sum-exp of a row without keys is 0",
        EMPTY,
        "of a row that sees no key is 0, not -inf",
        logsumexp="zero",
    ),
    _faulty(
        "padded-scale",
        "the scale is that of the padded head dimension",
        FULL,
        "the padded head dimension",
        padded_scale=True,
    ),
    _faulty(
        "scale-twice",
        "the scale is applied twice",
        FULL,
        "the scale is applied twice",
        scale_twice=True,
        allclose=False,
    ),
    _faulty(
        "scale-ignored",
        "a given scale is ignored",
        _case(scale="scale0.37"),
        "the given scale is ignored",
        default_scale=True,
    ),
    _faulty("softcap-ignored", "the soft cap is ignored", CAPPED, "the soft cap is ignored", no_softcap=True),
    _faulty(
        "softcap-after-mask",
        "the soft cap is applied after the mask",
        _case(mask="causal", softcap="softcap3"),
        "applied after the mask",
        cap_after_mask=True,
    ),
    _faulty(
        "softcap-slope", "the backward lacks the soft cap's slope", CAPPED, "lacks the soft cap's slope", no_slope=True
    ),
    _faulty(
        "base-2-logsumexp", "the log-sum-exp is in base 2", FULL, "the log-sum-exp is in base 2", logsumexp="base 2"
    ),
    _faulty(
        "maximum-for-logsumexp", "the log-sum-exp is the row maximum", FULL, "is the maximum alone", logsumexp="maximum"
    ),
    _faulty(
        "logsumexp-without-maximum",
        "the log-sum-exp lacks the maximum",
        FULL,
        "lacks the maximum",
        logsumexp="no maximum",
    ),
    _faulty(
        "modulo-heads", "query head h reads key head h % H_kv", GROUPED, "head h reads head h % H_kv", modulo_heads=True
    ),
    _faulty(
        "last-head-alone",
        "dK and dV of grouped heads are the last query head's",
        GROUPED,
        "those of the last query head alone",
        last_head_alone=True,
    ),
    _faulty(
        "first-batch",
        "every batch is the first one's",
        _case(batch=2),
        "every batch is computed from the first",
        first_batch=True,
    ),
    _faulty(
        "contiguous-inputs",
        "inputs are taken for contiguous",
        _case(heads="h3:3", layout="transposed"),
        "read as if contiguous",
        contiguous=True,
    ),
    _faulty(
        "contiguous-upstream",
        "the upstream gradient is taken for contiguous",
        _case(heads="h3:3", upstream="dtransposed"),
        "the upstream gradient is read as if contiguous",
        contiguous_upstream=True,
    ),
    _faulty("no-delta", "the backward lacks delta", FULL, "the backward lacks delta", no_delta=True),
    _faulty(
        "no-logsumexp-gradient",
        "the log-sum-exp's gradient is dropped",
        _case(gradients="gboth"),
        "the log-sum-exp's own gradient is dropped",
        no_d_logsumexp=True,
    ),
    _faulty(
        "unmasked-backward", "the backward does not mask", CAUSAL, "the backward does not mask", unmasked_backward=True
    ),
    _faulty("unscaled-dq", "dQ lacks the scale", FULL, "1 / the scale", unscaled_dq=True),
    _faulty("dv-twice", "dV is added twice", FULL, "added twice", double_dv=True),
    _faulty("swapped-gradients", "dK and dV are swapped", FULL, "dk is wrong", swapped=True),
    _faulty("bf16-accumulator", "the output is summed in bfloat16", LOW, "bfloat16", accumulator=torch.bfloat16),
    _faulty(
        "fp16-accumulator",
        "the output is summed in float16",
        _case(17, 1024, 64),
        "float16 or TF32",
        accumulator=torch.float16,
    ),
    _faulty("bf16-dq", "dQ is summed in bfloat16", _case(17, 1024, 64), "bfloat16", dq_in=torch.bfloat16),
    _faulty(
        "fp8-weights",
        "weights are rounded to float8",
        _case(97, 113, 64, "bf16"),
        "float8",
        allclose=False,
        weights_in=torch.float8_e4m3fn,
    ),
    _faulty("fp16-inside", "float32 inputs are cast to float16", FULL, "float16 or TF32", operands_in=torch.float16),
    _faulty("tf32", "float32 products have TF32's ten bits", FULL, "float16 or TF32", tf32=True),
    _faulty(
        "unwritten-rows", "the last, partial tile of queries is never written", FULL, "never written", skip_rows=True
    ),
    _faulty(
        "columns-left-out",
        "columns behind the last multiple of 32 are zero",
        FULL,
        "column from 32 on",
        allclose=True,
        skip_columns=True,
    ),
    WrongKernel("cached-by-shape", "remembers by shape", lambda: Remembered(lambda q: None), FULL, "is it cached?"),
    WrongKernel(
        "cached-by-address",
        "remembers by the inputs' address",
        lambda: Remembered(Tensor.data_ptr),
        FULL,
        "is it cached?",
    ),
    WrongKernel("one-output-buffer", "hands out the same memory again", OneBuffer, FULL, "run 2 overwrote"),
    WrongKernel("all-zero", "returns zeros", lambda: all_zero, FULL, "exactly zero", allclose=False),
    WrongKernel("scales-its-input", "folds the scale into the caller's q", lambda: scales_its_input, FULL, "changed q"),
    WrongKernel(
        "writes-between",
        "writes past the end of v, into a larger tensor",
        lambda: writes_between,
        _case(layout="offset"),
        "changed v, or memory between",
    ),
)
