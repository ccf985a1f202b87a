"""Finds the likely cause of an attention error: hypotheses as data, and their explanation for a reader."""

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from perflab.attention.faults import Fault, with_fault
from perflab.correctness import Evidence, Explanation, Hypothesis
from perflab.correctness.diagnosis import explanation_lines

Applies = Callable[[Evidence], bool]
TILES = (16, 32, 64, 128)
DIMENSIONS = {
    "out": ("batch", "head", "query", "column"),
    "logsumexp": ("batch", "head", "query"),
    "dq": ("batch", "head", "query", "column"),
    "dk": ("batch", "head", "key", "column"),
    "dv": ("batch", "head", "key", "column"),
}


def banded(e: Evidence) -> bool:
    """Whether a mask is asked for."""
    return bool(e.settings.get("is_causal")) or "window_size" in e.settings


def window(e: Evidence) -> bool:
    """Whether a window is asked for."""
    return "window_size" in e.settings


def with_sinks(e: Evidence) -> bool:
    """Whether sinks are asked for."""
    return "sinks" in e.settings


def capped(e: Evidence) -> bool:
    """Whether a soft cap is asked for."""
    return "softcap" in e.settings


def grouped(e: Evidence) -> bool:
    """Whether k and v have fewer heads than q."""
    return e.inputs["q"].shape[1] != e.inputs["k"].shape[1]


def unequal(e: Evidence) -> bool:
    """Whether a mask is asked for and the lengths of q and k differ."""
    return banded(e) and e.inputs["q"].shape[2] != e.inputs["k"].shape[2]


def strided(e: Evidence) -> bool:
    """Whether an input is not contiguous."""
    return not all(x.is_contiguous() for x in e.inputs.values())


def strided_upstream(e: Evidence) -> bool:
    """Whether an upstream gradient is not contiguous."""
    return not all(x.is_contiguous() for x in e.upstream.values())


def default_scaled(e: Evidence) -> bool:
    """Whether no scale was given."""
    return "scale" not in e.settings


def batched(e: Evidence) -> bool:
    """Whether there is more than one batch."""
    return e.inputs["q"].shape[0] > 1


def longer_than(tile: int) -> Applies:
    """Return a function that tells whether there are more keys than a tile has."""
    return lambda e: e.inputs["k"].shape[2] > tile


def _hypothesis(name: str, cause: str, applies: Applies | None = None, **fault: object) -> Hypothesis:
    """Return the hypothesis of a fault that occurs where ``applies`` says, or in every case."""

    def predict(evidence: Evidence) -> Mapping[str, Tensor]:
        if applies is not None and not applies(evidence):
            return {}
        return with_fault(evidence, Fault(**fault))  # type: ignore[arg-type]

    return Hypothesis(name, cause, predict)


def _scaled_twice(evidence: Evidence) -> Mapping[str, Tensor]:
    scale = evidence.settings.get("scale") or evidence.inputs["q"].shape[-1] ** -0.5
    return with_fault(evidence, Fault(scale_factor=scale))


def _default_scale(evidence: Evidence) -> Mapping[str, Tensor]:
    scale = evidence.settings.get("scale")
    return with_fault(evidence, Fault(scale_factor=evidence.inputs["q"].shape[-1] ** -0.5 / scale)) if scale else {}


_MASKS = (
    _hypothesis("sees-ahead", "the mask is off by one: query i also sees the key after its last", banded, upper=1),
    _hypothesis(
        "sees-short", "the mask is off by one: query i does not see its last key (j < i, not j <= i)", banded, upper=-1
    ),
    _hypothesis("window-wide", "the window is off by one: it reaches one key further back", window, lower=1),
    _hypothesis(
        "window-narrow", "the window is off by one: it misses the key that it should begin with", window, lower=-1
    ),
    _hypothesis(
        "alignment",
        "the mask is aligned to the other corner (top-left: query i at key i; bottom-right: the last at the last)",
        unequal,
        other_alignment=True,
    ),
    _hypothesis("no-mask", "the mask is ignored: every query sees every key", banded, no_mask=True),
    _hypothesis("no-window", "the window is ignored", window, no_window=True),
    _hypothesis(
        "no-sinks", "the sinks are ignored: the first keys leave the window as all others", with_sinks, no_sinks=True
    ),
    _hypothesis(
        "no-sinks-backward",
        "the backward forgets the sinks: what lies below the window gives no gradient",
        with_sinks,
        no_sinks_backward=True,
    ),
)
_SCALES = (
    _hypothesis("no-scale", "the scale is missing: scores are q . k", no_scale=True),
    _hypothesis(
        "padded-scale",
        "the scale is that of the padded head dimension (1 / sqrt of the next power of two)",
        default_scaled,
        padded_scale=True,
    ),
    Hypothesis("scale-twice", "the scale is applied twice", _scaled_twice),
    Hypothesis("default-scale", "the given scale is ignored: it is 1 / sqrt(D)", _default_scale),
    _hypothesis(
        "base-2-scores",
        "scores are in base 2 and weights natural, or the other way round: exp2 without the factor log2(e)",
        scale_factor=math.log(2),
    ),
    _hypothesis(
        "base-2-scores-twice",
        "scores have the factor log2(e), and weights are natural: exp where exp2 is meant",
        scale_factor=1 / math.log(2),
    ),
)
_IN_TILES = (
    *(
        _hypothesis(
            "tail-mask",
            f"the tail is not masked: keys behind the last, up to a multiple of {tile}, count with score 0",
            padded_to=tile,
        )
        for tile in TILES
    ),
    *(
        _hypothesis(
            "tail-dropped",
            f"keys behind the last multiple of {tile} are left out: the last, partial tile",
            longer_than(tile),
            keys_only_to=tile,
        )
        for tile in TILES
    ),
    _hypothesis("last-key-dropped", "the last key is left out", dropped_keys=1),
    *(
        _hypothesis(
            "no-rescale",
            f"a rescale by exp(m - m') is missing when the maximum rises (tiles of {tile} keys)",
            no_rescale=tile,
        )
        for tile in TILES
    ),
    *(
        _hypothesis(
            "last-tile",
            f"only the last tile of {tile} keys is kept: sums are set, not added to",
            longer_than(tile),
            last_tile_only=tile,
        )
        for tile in TILES
    ),
)
_HEADS = (
    _hypothesis(
        "head-modulo",
        "wrong head mapping: query head h reads head h % H_kv of k and v, not h // (H / H_kv)",
        grouped,
        heads="modulo",
    ),
    _hypothesis("head-first", "wrong head mapping: every query head reads head 0 of k and v", heads="first"),
    _hypothesis("first-batch", "every batch is computed from the first one's inputs", batched, first_batch_only=True),
)
_SOFT_CAPS = (
    _hypothesis("softcap-ignored", "the soft cap is ignored", capped, softcap="ignored"),
    _hypothesis(
        "softcap-of-mask",
        "the soft cap is applied after the mask: hidden keys count with a score of -c",
        capped,
        softcap="of masked scores",
    ),
)
_EMPTY_ROWS = (
    _hypothesis(
        "empty-average",
        "a row that sees no key averages all values: hidden scores are a large negative number, not -inf",
        banded,
        unmasked_empty="mean",
    ),
    _hypothesis(
        "empty-nan", "a row that sees no key is NaN: -inf less its maximum -inf, or 0 / 0", banded, unmasked_empty="nan"
    ),
)
_ROW_SUMS = (
    _hypothesis("lse-base-2", "the log-sum-exp is in base 2: multiply by ln 2", logsumexp="base 2"),
    _hypothesis(
        "lse-maximum",
        "the log-sum-exp is the maximum alone: log of the row sum is missing",
        logsumexp="the maximum alone",
    ),
    _hypothesis(
        "lse-no-maximum",
        "the log-sum-exp lacks the maximum: it is the log of the rescaled sum",
        logsumexp="without the maximum",
    ),
    _hypothesis("lse-sum", "the log-sum-exp is the sum alone: its logarithm is missing", logsumexp="the sum itself"),
    _hypothesis("lse-unscaled", "the log-sum-exp is of unscaled scores", logsumexp="of unscaled scores"),
    _hypothesis(
        "lse-empty-zero",
        "the log-sum-exp of a row that sees no key is 0, not -inf",
        banded,
        logsumexp="zero of empty rows",
    ),
    _hypothesis(
        "lse-empty-inf",
        "the log-sum-exp of a row that sees no key is inf, not -inf",
        banded,
        logsumexp="infinite of empty rows",
    ),
    _hypothesis("no-normalisation", "the output is not divided by the row sum", no_normalisation=True),
)
_BACKWARDS = (
    _hypothesis("no-delta", "the backward lacks delta, the row sum of do and o: ds = p (dp - delta)", no_delta=True),
    _hypothesis("no-slope", "the backward lacks the soft cap's slope, 1 - tanh^2", capped, no_slope=True),
    _hypothesis(
        "no-d-logsumexp", "the log-sum-exp's own gradient is dropped: it belongs into delta", no_d_logsumexp=True
    ),
    _hypothesis(
        "unmasked-backward",
        "the backward does not mask: weights are not zero where nothing is seen",
        banded,
        unmasked_backward=True,
    ),
    _hypothesis(
        "base-2-backward", "the backward's weights are exp2 of natural scores and log-sum-exp", base_2_backward=True
    ),
    *(
        _hypothesis(
            "one-query-head",
            f"dk and dv of grouped heads are those of the {which} query head alone, not the group's sum",
            grouped,
            one_query_head=which,
        )
        for which in ("last", "first")
    ),
)
_STRIDES = (
    *(
        _hypothesis(
            "assumes-contiguous",
            f"strides are assumed: {', '.join(names)} read as if contiguous",
            strided,
            contiguous=names,
        )
        for names in ("qkv", "kv", "q", "k", "v")
    ),
    _hypothesis(
        "assumes-contiguous-upstream",
        "strides are assumed: the upstream gradient is read as if contiguous (it may be expanded, with stride 0)",
        strided_upstream,
        upstream_contiguous=True,
    ),
)
HYPOTHESES = (*_MASKS, *_SCALES, *_IN_TILES, *_HEADS, *_SOFT_CAPS, *_EMPTY_ROWS, *_ROW_SUMS, *_BACKWARDS, *_STRIDES)
"""The known faults of an attention, in the order in which they are tried."""


def explain_attention(evidence: Evidence, causes: Sequence[Explanation]) -> list[str]:
    """Return lines for a reader: the likely causes, then hints for the results that these leave unexplained."""
    q = evidence.inputs["q"]
    scale = evidence.settings.get("scale") or q.shape[-1] ** -0.5
    factors = {
        "the scale": scale, "1 / the scale": 1 / scale, "log2(e): base 2 instead of e": 1 / math.log(2),
        "ln 2: base e instead of 2": math.log(2),
        "1 / (heads of q over heads of k)": evidence.inputs["k"].shape[1] / q.shape[1],
    }  # fmt: skip
    return explanation_lines(evidence, causes, dimensions=DIMENSIONS, factors=factors)
