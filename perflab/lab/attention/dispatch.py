"""The one call that reaches every attention variant. What is asked for runs, or raises; nothing falls back.

Shapes: q (B, H, N_q, D); k, v (B, H_kv, N_k, D), H a multiple of H_kv; out (B, H, N_q, D); logsumexp (B, H, N_q).

    out = softmax(scale * q k^T + mask) v,    logsumexp = log sum_j exp(scale * q k^T + mask)
"""

import difflib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Unpack

import torch
from torch import Tensor

from perflab.lab.attention.decode import Stored, split_attention
from perflab.lab.attention.inputs import accumulation_dtype, cast_as_autocast_does, check_inputs
from perflab.lab.attention.naive import naive_attention, naive_attention_with_logsumexp
from perflab.lab.attention.reference import reference_attention
from perflab.lab.attention.registry import (
    PROVEN,
    get_implementation,
    needed_features,
    require_device,
    require_features,
    require_gradients,
)
from perflab.lab.attention.scoring import Settings, make_scoring
from perflab.lab.attention.sdpa import BACKENDS, pinned_sdpa_attention, sdpa_attention
from perflab.lab.attention.tiled import FlashAttentionPyTorch
from perflab.lab.ranges import ranged

Result = tuple[Tensor, Tensor | None]
Variant = Callable[[Tensor, Tensor, Tensor, Settings, bool], Result]
"""A variant as it is dispatched to: q, k, v, settings, and whether the log-sum-exp is wanted."""
_PLAIN = (Tensor, torch.nn.Parameter)
_UNCHANGING = frozenset((bool, int, float, str, type(None)))
# Calls whose checks have passed: for short sequences the checks take longer than the launch.
_possible: set[tuple[object, ...]] = set()
_MOST_POSSIBLE = 4096


def attention(q: Tensor, k: Tensor, v: Tensor, *, impl: str = "sdpa", **settings: Unpack[Settings]) -> Tensor:
    """Attention of q (B, H, N_q, D) over k, v (B, H_kv, N_k, D), by the variant that `impl` names.

    is_causal         query i sees the keys j <= i, also where N_q != N_k (default: False)
    scale             None means 1 / sqrt(D)
    window_size       (left, right): how many keys before and behind its own a query sees, -1 for all
    softcap           c: scores become c tanh(s / c)
    causal_alignment  "top-left", or "bottom-right": the last query stands at the last key
    sinks             how many of the first keys a query sees beside its window, if that lets it (default: 0)
    dropout_p         each weight is made 0 with this probability, and the others divided by 1 - dropout_p; whoever
                      calls it says when, there is no training mode here

    One floating dtype and one device; any strides. With fewer heads in k and v than in q, query head h reads
    head h // (H / H_kv). A query that sees no key has output zero. Returns (B, H, N_q, D) in the inputs' dtype.

    Under autocast the inputs are first cast to its dtype, as PyTorch does for its own attention, and
    the variant itself runs without autocast: its precision is its own affair.

    Raises ValueError for an unknown impl, unusable settings, and shapes and devices that do not fit; TypeError for
    dtypes, and for a setting of no such name; NotImplementedError for what the variant does not claim
    (`IMPLEMENTATIONS`); RuntimeError where a variant can't run on that device, or a pinned backend does not take the
    inputs; ImportError where Triton is missing.
    """
    return _run(impl, q, k, v, settings, with_logsumexp=False)[0]


def attention_with_logsumexp(
    q: Tensor, k: Tensor, v: Tensor, *, impl: str = "tiled", **settings: Unpack[Settings]
) -> tuple[Tensor, Tensor]:
    """Like `attention`, and the natural log-sum-exp of each row of scores; both are differentiable.

    logsumexp is (B, H, N_q) in float32, in float64 for float64 inputs; -inf for a query that sees no key. Raises as
    `attention` does, and ValueError where the variant gives no log-sum-exp.
    """
    if not get_implementation(impl).logsumexp:
        able = ", ".join(name for name, claims in PROVEN.items() if claims.logsumexp)
        raise ValueError(f"attention impl {impl!r} gives no log-sum-exp; choose one of: {able}")
    out, logsumexp = _run(impl, q, k, v, settings, with_logsumexp=True)
    assert logsumexp is not None
    return out, logsumexp


def import_triton_variant() -> Any:
    """The module of FlashAttentionTriton, importing Triton now. ImportError says what to do where there is none."""
    try:
        from perflab.lab.attention import triton_function  # by a statement, which torch.compile traces
    except ModuleNotFoundError as error:
        _refuse_without_triton(error, instead="impl='tiled'")
        raise
    return triton_function


def import_triton_decode() -> Any:
    """The module of the Triton decode attention, as `import_triton_variant` imports its own."""
    try:
        from perflab.lab.attention import triton_decode
    except ModuleNotFoundError as error:
        _refuse_without_triton(error, instead="impl='decode' ('torch' of decode_attention)")
        raise
    return triton_decode


def import_triton_pattern() -> Any:
    """The module of block-sparse attention in Triton, importing Triton now. ImportError as above."""
    try:
        from perflab.lab.attention import triton_pattern
    except ModuleNotFoundError as error:
        _refuse_without_triton(error, instead="form='definition' of pattern_attention")
        raise
    return triton_pattern


def _refuse_without_triton(error: ModuleNotFoundError, *, instead: str) -> None:
    if error.name is not None and error.name.partition(".")[0] == "triton":
        raise ImportError(
            "attention in Triton needs Triton, which is not installed: install the package 'triton' "
            f"(Linux), or choose {instead}, the same algorithm in PyTorch"
        ) from error


def _run(impl: str, q: Tensor, k: Tensor, v: Tensor, settings: Settings, *, with_logsumexp: bool) -> Result:
    q, k, v = cast_as_autocast_does(q, k, v)
    if (call := _call(impl, q, k, v, settings)) is None or call not in _possible:
        _require_possible(impl, q, k, v, settings)
        if call is not None:
            if len(_possible) >= _MOST_POSSIBLE:
                _possible.clear()
            _possible.add(call)
    with without_autocast(q.device.type):
        return _VARIANTS[impl](q, k, v, settings, with_logsumexp)


def _call(impl: str, q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> tuple[object, ...] | None:
    """The facts on which a call's checks depend; None where these may change or have no hash."""
    if torch.compiler.is_compiling() or not (type(q) in _PLAIN and type(k) in _PLAIN and type(v) in _PLAIN):
        return None
    asked = []
    for name, value in settings.items():
        kinds = tuple(map(type, value)) if type(value) is tuple else (type(value),)
        if not _UNCHANGING.issuperset(kinds):
            return None
        asked.append((name, kinds, value))  # by type, too: True is 1
    records = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    return (impl, records, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, q.shape, k.shape, v.shape, *asked)


def _require_possible(impl: str, q: Tensor, k: Tensor, v: Tensor, settings: Settings) -> None:
    """Raise what `attention` names, unless the variant can compute this."""
    claims = get_implementation(impl)
    _require_known(settings)
    make_scoring(q, k, **settings)  # refuses what no variant can do
    require_device(claims, q.device)
    claims = claims.on(q.device.type)
    check_inputs(q, k, v, name=impl, dtypes=claims.dtypes)
    require_features(claims, needed_features(q, k, **settings))
    require_gradients(claims, q, k, v)


def _require_known(settings: Settings) -> None:
    # The variants read what they know of; without this a misspelt `is_causal` would attend to the future.
    for name in settings:
        if name not in Settings.__optional_keys__:
            known = sorted(Settings.__optional_keys__)
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise TypeError(f"attention has no setting {name!r}{hint}; its settings are {', '.join(known)}")


def _reference(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    out, logsumexp = reference_attention(q, k, v, **settings)
    return out.to(q.dtype), logsumexp.to(accumulation_dtype(q.dtype))


def _naive(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    if with_logsumexp:
        return naive_attention_with_logsumexp(q, k, v, **settings)
    return naive_attention(q, k, v, **settings), None


def _sdpa(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    return sdpa_attention(q, k, v, **settings), None


def _pinned(impl: str) -> Variant:
    def run(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
        return pinned_sdpa_attention(impl, q, k, v, **settings), None

    return run


def _flex(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    # Imported here: what these two keep for later calls is no part of what a call of `attention` has in its hands,
    # where somebody follows its globals to count memory; and nobody else loads them.
    from perflab.lab.attention.flex import flex_attention

    return flex_attention(q, k, v, with_logsumexp=with_logsumexp, **settings)


def _compiled(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    from perflab.lab.attention.compiled import compiled_attention

    return compiled_attention(q, k, v, with_logsumexp=with_logsumexp, **settings)


def _tiled(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    return _apply(FlashAttentionPyTorch, q, k, v, settings, with_logsumexp)


def _triton(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    return _apply(import_triton_variant().FlashAttentionTriton, q, k, v, settings, with_logsumexp)


def _triton_tma(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    return _apply(import_triton_variant().FlashAttentionTritonTMA, q, k, v, settings, with_logsumexp)


def _triton_one_pass(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    return _apply(import_triton_variant().FlashAttentionTritonOnePass, q, k, v, settings, with_logsumexp)


def _triton_gluon(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    return _apply(import_triton_variant().FlashAttentionTritonGluon, q, k, v, settings, with_logsumexp)


def _decode(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    return split_attention(q, Stored(k.transpose(1, 2), v.transpose(1, 2)), make_scoring(q, k, **settings))


def _triton_decode(q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    stored = Stored(k.transpose(1, 2), v.transpose(1, 2))
    return import_triton_decode().decode(q, stored, make_scoring(q, k, **settings))  # type: ignore[no-any-return]


def _apply(function: Any, q: Tensor, k: Tensor, v: Tensor, settings: Settings, with_logsumexp: bool) -> Result:
    result = function.apply(
        q, k, v,
        settings.get("is_causal", False), settings.get("scale"), with_logsumexp,
        settings.get("window_size"), settings.get("softcap"), settings.get("causal_alignment", "top-left"),
        settings.get("sinks", 0),
    )  # fmt: skip
    return result if with_logsumexp else (result, None)


_WITHOUT_RANGES: dict[str, Variant] = {
    "reference": _reference,
    "naive": _naive,
    "tiled": _tiled,
    "triton": _triton,
    "triton-tma": _triton_tma,
    "triton-one-pass": _triton_one_pass,
    "triton-gluon": _triton_gluon,
    "decode": _decode,
    "triton-decode": _triton_decode,
    "sdpa": _sdpa,
    **{impl: _pinned(impl) for impl in BACKENDS},
    "flex": _flex,
    "compiled": _compiled,
}
_VARIANTS: dict[str, Variant] = {
    impl: ranged(f"attention: {impl}")(variant) for impl, variant in _WITHOUT_RANGES.items()
}


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Autocast switched off on that type of device."""
    # `meta` tensors, on which shapes are tried out, have no autocast, and naming it raises.
    if not torch.amp.is_autocast_available(device_type) or not torch.is_autocast_enabled(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
