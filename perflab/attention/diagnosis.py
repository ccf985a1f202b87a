"""Finds the likely cause of an attention error: hypotheses as data, and their explanation for a reader."""

import math
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor

from perflab.attention.faults import Fault, with_fault
from perflab.correctness import Evidence, Hypothesis, explained

Applies = Callable[[Evidence], bool]
TILES = (16, 32, 64, 128)
DIMENSIONS = {
    "out": ("batch", "head", "query", "column"),
    "logsumexp": ("batch", "head", "query"),
    "dq": ("batch", "head", "query", "column"),
    "dk": ("batch", "head", "key", "column"),
    "dv": ("batch", "head", "key", "column"),
}


def always(_: Evidence) -> bool:
    """Return True: the fault may occur in every case."""
    return True


def banded(e: Evidence) -> bool:
    """Whether a mask is asked for."""
    return bool(e.settings.get("is_causal")) or "window_size" in e.settings


def causal(e: Evidence) -> bool:
    """Whether causality is asked for."""
    return bool(e.settings.get("is_causal"))


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


def _hypothesis(name: str, cause: str, applies: Applies = always, **fault: object) -> Hypothesis:
    def predict(evidence: Evidence) -> Mapping[str, Tensor]:
        return with_fault(evidence, Fault(**fault)) if applies(evidence) else {}  # type: ignore[arg-type]

    return Hypothesis(name, cause, predict)


def _hypotheses() -> Iterator[Hypothesis]:
    make = _hypothesis
    yield make("sees-ahead", "the mask is off by one: query i also sees the key after its last", banded, upper=1)
    yield make(
        "sees-short", "the mask is off by one: query i does not see its last key (j < i, not j <= i)", banded, upper=-1
    )
    yield make("window-wide", "the window is off by one: it reaches one key further back", window, lower=1)
    yield make(
        "window-narrow", "the window is off by one: it misses the key that it should begin with", window, lower=-1
    )
    yield make(
        "alignment",
        "the mask is aligned to the other corner (top-left: query i at key i; bottom-right: the last at the last)",
        unequal,
        other_alignment=True,
    )
    yield make("no-mask", "the mask is ignored: every query sees every key", banded, no_mask=True)
    yield make("no-window", "the window is ignored", window, no_window=True)
    yield make(
        "no-sinks", "the sinks are ignored: the first keys leave the window as all others", with_sinks, no_sinks=True
    )
    yield make(
        "no-sinks-backward",
        "the backward forgets the sinks: what lies below the window gives no gradient",
        with_sinks,
        no_sinks_backward=True,
    )
    yield make("no-scale", "the scale is missing: scores are q . k", always, no_scale=True)
    yield make(
        "padded-scale",
        "the scale is that of the padded head dimension (1 / sqrt of the next power of two)",
        default_scaled,
        padded_scale=True,
    )
    yield Hypothesis("scale-twice", "the scale is applied twice", _scaled_twice)
    yield Hypothesis("default-scale", "the given scale is ignored: it is 1 / sqrt(D)", _default_scale)
    yield make(
        "base-2-scores",
        "scores are in base 2 and weights natural, or the other way round: exp2 without the factor log2(e)",
        always,
        scale_factor=math.log(2),
    )
    yield make(
        "base-2-scores-twice",
        "scores have the factor log2(e), and weights are natural: exp where exp2 is meant",
        always,
        scale_factor=1 / math.log(2),
    )
    for tile in TILES:
        yield make(
            "tail-mask",
            f"the tail is not masked: keys behind the last, up to a multiple of {tile}, count with score 0",
            always,
            padded_to=tile,
        )
    for tile in TILES:
        yield make(
            "tail-dropped",
            f"keys behind the last multiple of {tile} are left out: the last, partial tile",
            longer_than(tile),
            keys_only_to=tile,
        )
    yield make("last-key-dropped", "the last key is left out", always, dropped_keys=1)
    for tile in TILES:
        yield make(
            "no-rescale",
            f"a rescale by exp(m - m') is missing when the maximum rises (tiles of {tile} keys)",
            always,
            no_rescale=tile,
        )
    for tile in TILES:
        yield make(
            "last-tile",
            f"only the last tile of {tile} keys is kept: sums are set, not added to",
            longer_than(tile),
            last_tile_only=tile,
        )
    yield make(
        "head-modulo",
        "wrong head mapping: query head h reads head h % H_kv of k and v, not h // (H / H_kv)",
        grouped,
        heads="modulo",
    )
    yield make("head-first", "wrong head mapping: every query head reads head 0 of k and v", always, heads="first")
    yield make("first-batch", "every batch is computed from the first one's inputs", batched, first_batch_only=True)
    yield make("softcap-ignored", "the soft cap is ignored", capped, softcap="ignored")
    yield make(
        "softcap-of-mask",
        "the soft cap is applied after the mask: hidden keys count with a score of -c",
        capped,
        softcap="of masked scores",
    )
    yield make(
        "empty-average",
        "a row that sees no key averages all values: hidden scores are a large negative number, not -inf",
        banded,
        unmasked_empty="mean",
    )
    yield make(
        "empty-nan", "a row that sees no key is NaN: -inf less its maximum -inf, or 0 / 0", banded, unmasked_empty="nan"
    )
    yield make("lse-base-2", "the log-sum-exp is in base 2: multiply by ln 2", always, logsumexp="base 2")
    yield make(
        "lse-maximum",
        "the log-sum-exp is the maximum alone: log of the row sum is missing",
        always,
        logsumexp="the maximum alone",
    )
    yield make(
        "lse-no-maximum",
        "the log-sum-exp lacks the maximum: it is the log of the rescaled sum",
        always,
        logsumexp="without the maximum",
    )
    yield make(
        "lse-sum", "the log-sum-exp is the sum alone: its logarithm is missing", always, logsumexp="the sum itself"
    )
    yield make("lse-unscaled", "the log-sum-exp is of unscaled scores", always, logsumexp="of unscaled scores")
    yield make(
        "lse-empty-zero",
        "the log-sum-exp of a row that sees no key is 0, not -inf",
        banded,
        logsumexp="zero of empty rows",
    )
    yield make(
        "lse-empty-inf",
        "the log-sum-exp of a row that sees no key is inf, not -inf",
        banded,
        logsumexp="infinite of empty rows",
    )
    yield make("no-normalisation", "the output is not divided by the row sum", always, no_normalisation=True)
    yield make(
        "no-delta", "the backward lacks delta, the row sum of do and o: ds = p (dp - delta)", always, no_delta=True
    )
    yield make("no-slope", "the backward lacks the soft cap's slope, 1 - tanh^2", capped, no_slope=True)
    yield make(
        "no-d-logsumexp",
        "the log-sum-exp's own gradient is dropped: it belongs into delta",
        always,
        no_d_logsumexp=True,
    )
    yield make(
        "unmasked-backward",
        "the backward does not mask: weights are not zero where nothing is seen",
        banded,
        unmasked_backward=True,
    )
    yield make(
        "base-2-backward",
        "the backward's weights are exp2 of natural scores and log-sum-exp",
        always,
        base_2_backward=True,
    )
    for which in ("last", "first"):
        yield make(
            "one-query-head",
            f"dk and dv of grouped heads are those of the {which} query head alone, not the group's sum",
            grouped,
            one_query_head=which,
        )
    for names in ("qkv", "kv", "q", "k", "v"):
        listed = ", ".join(names)
        yield make(
            "assumes-contiguous", f"strides are assumed: {listed} read as if contiguous", strided, contiguous=names
        )
    yield make(
        "assumes-contiguous-upstream",
        "strides are assumed: the upstream gradient is read as if contiguous (it may be expanded, with stride 0)",
        strided_upstream,
        upstream_contiguous=True,
    )


def _scaled_twice(evidence: Evidence) -> Mapping[str, Tensor]:
    scale = evidence.settings.get("scale") or evidence.inputs["q"].shape[-1] ** -0.5
    return with_fault(evidence, Fault(scale_factor=scale))


def _default_scale(evidence: Evidence) -> Mapping[str, Tensor]:
    scale = evidence.settings.get("scale")
    return with_fault(evidence, Fault(scale_factor=evidence.inputs["q"].shape[-1] ** -0.5 / scale)) if scale else {}


HYPOTHESES = tuple(_hypotheses())


def explain_attention(evidence: Evidence) -> list[str]:
    """Return lines for a reader: likely causes first, then hints for the results that these leave unexplained."""
    q = evidence.inputs["q"]
    scale = evidence.settings.get("scale") or q.shape[-1] ** -0.5
    factors = {
        "the scale": scale, "1 / the scale": 1 / scale, "log2(e): base 2 instead of e": 1 / math.log(2),
        "ln 2: base e instead of 2": math.log(2),
        "1 / (heads of q over heads of k)": evidence.inputs["k"].shape[1] / q.shape[1],
    }  # fmt: skip
    return explained(evidence, HYPOTHESES, dimensions=DIMENSIONS, factors=factors)
