"""Finds the likely cause of an error: compares it with the errors of known faults.

A hypothesis predicts, from the inputs, what a candidate with one fault would return. If the candidate is
far closer to the prediction than to the truth, the fault explains the error, and its sentence is the likely
cause. An error that no hypothesis explains gets hints from the error's own shape: a constant factor,
wrong rows after a tile's edge, lower precision.

The caller supplies the faults: nothing here knows attention.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from perflab.correctness.budget import error_and_size, short_dtype

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

# A fault that accounts for four fifths of an error is named: what is left over is rounding, or a second fault.
LEAST_SHARE = 0.8
WIDTH = 80
COMMON_FACTORS: dict[str, float] = {"2: added twice?": 2.0, "-1: the sign": -1.0}
# Tiles in use, the widest first. Edges at multiples of 16 and more are a tile's; 8 could have another cause.
_TILES = (256, 128, 64, 32, 16)
_COARSER = {"float16 or TF32": 2.0**-11, "bfloat16": 2.0**-8, "float8": 2.0**-4}


@dataclass(frozen=True, slots=True)
class Evidence:
    """One run of a candidate that was found wrong.

    inputs     the candidate's inputs, layouts included, by name, in the order of its arguments
    upstream   the gradients that the candidate's backward was given, by output
    settings   the candidate's keyword arguments
    got        the candidate's results; None for a gradient that it does not give
    wanted     the reference's results, float64
    wrong      the names of the results that are past their budget, in the reference's order
    """

    inputs: Mapping[str, Tensor]
    upstream: Mapping[str, Tensor]
    settings: Mapping[str, Any]
    got: Mapping[str, Tensor | None]
    wanted: Mapping[str, Tensor]
    wrong: tuple[str, ...]


Prediction = Mapping[str, Tensor]
Explain = Callable[[Evidence], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A fault: its short name, a sentence for a reader, and the results that it would give.

    predict(evidence) -> {result: tensor} for the results that the fault touches, any float dtype; empty if the fault
    would change nothing, or cannot be told.
    """

    name: str
    cause: str
    predict: Callable[[Evidence], Prediction]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A hypothesis, and the share of each wrong result's error that the hypothesis accounts for."""

    hypothesis: Hypothesis
    shares: Mapping[str, float]

    def __str__(self) -> str:
        least = min(self.shares.values())
        names = ", ".join(self.shares)
        # Rounded down: 100 % would claim too much.
        share = f"explains {int(least * 1000) / 10:.1f}% of the error of {names}"
        return wrapped(f"likely cause: {self.hypothesis.cause} ({share})")


def find_causes(evidence: Evidence, hypotheses: Sequence[Hypothesis]) -> tuple[Explanation, ...]:
    """Return the hypotheses that explain the wrong results: the hypothesis that explains most results first."""
    found = [Explanation(hypothesis, _shares(evidence, hypothesis.predict(evidence))) for hypothesis in hypotheses]
    causes: list[Explanation] = []
    open_results = list(evidence.wrong)
    while True:
        rest = [
            Explanation(one.hypothesis, shares)
            for one in found
            if (shares := {name: share for name, share in one.shares.items() if name in open_results})
        ]
        if not rest:
            return tuple(causes)
        best = max(rest, key=lambda one: (len(one.shares), sum(one.shares.values())))
        causes.append(best)
        open_results = [name for name in open_results if name not in best.shares]


def explained(
    evidence: Evidence,
    hypotheses: Sequence[Hypothesis],
    *,
    dimensions: Mapping[str, Sequence[str]] | None = None,
    factors: Mapping[str, float] | None = None,
) -> list[str]:
    """Return lines for a reader: likely causes first, then hints for the results that these leave unexplained.

    dimensions   names of the dimensions of each result, in order
    factors      constant factors by which a result may be off, by their names, beside COMMON_FACTORS
    """
    return explanation_lines(evidence, find_causes(evidence, hypotheses), dimensions=dimensions, factors=factors)


def explanation_lines(
    evidence: Evidence,
    causes: Sequence[Explanation],
    *,
    dimensions: Mapping[str, Sequence[str]] | None = None,
    factors: Mapping[str, float] | None = None,
) -> list[str]:
    """Return the lines of ``explained`` for likely causes that are known already."""
    lines = [str(cause) for cause in causes]
    known = {name for cause in causes for name in cause.shares}
    hints: dict[str, list[str]] = {}  # each hint with all results of which it is true
    for name in evidence.wrong:
        got = evidence.got.get(name)
        if name in known or got is None or got.shape != evidence.wanted[name].shape:
            continue
        called = (dimensions or {}).get(name, ())
        for hint in find_hints(
            got, evidence.wanted[name], dimensions=called, factors={**COMMON_FACTORS, **(factors or {})}
        ):
            hints.setdefault(hint, []).append(name)
    lines += [wrapped(f"hint: {', '.join(names)}: {hint}") for hint, names in hints.items()]
    return lines or ["no known fault explains it"]


def explained_share(got: Tensor, wanted: Tensor, predicted: Tensor) -> float:
    """Return how much of the error `predicted` accounts for: 1 - |got - predicted| / |got - wanted|.

    If elements are not finite, or finite and should not be, the share of these elements that `predicted` foresees.
    """
    got, wanted, predicted = (x.detach().double() for x in (got, wanted, predicted))
    kinds, right, foreseen = _kind(got), _kind(wanted), _kind(predicted)
    wrong_kind, wrongly_foreseen = int((kinds != right).sum()), int((kinds != foreseen).sum())
    if wrongly_foreseen > 0.05 * wrong_kind:
        return 0.0
    comparable = (kinds == 0) & (right == 0) & (foreseen == 0)
    error = (got - wanted)[comparable].norm().item()
    left = (got - predicted)[comparable].norm().item()
    if wrong_kind and left <= error:
        return 1 - wrongly_foreseen / wrong_kind
    return 1 - left / error if error > 0 else 0.0


def wrapped(text: str, indent: str = "  ") -> str:
    """Return the text in lines of 80 columns, all but the first indented."""
    return "\n".join(textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False))


def _shares(evidence: Evidence, predicted: Prediction) -> dict[str, float]:
    shares = {}
    for name in evidence.wrong:
        got = evidence.got.get(name)
        if got is None or name not in predicted or got.shape != predicted[name].shape:
            continue
        share = explained_share(got, evidence.wanted[name], predicted[name])
        if share >= LEAST_SHARE:
            shares[name] = share
    return shares


def _kind(x: Tensor) -> Tensor:
    """Return for each element 0 if it is finite, 1 for inf, 2 for -inf, 3 for NaN."""
    return torch.isposinf(x) * 1 + torch.isneginf(x) * 2 + torch.isnan(x) * 3


def find_hints(
    got: Tensor, wanted: Tensor, *, dimensions: Sequence[str] = (), factors: Mapping[str, float] | None = None
) -> tuple[str, ...]:
    """Return hints about one wrong result.

    dimensions   names of the result's dimensions, in order
    factors      constant factors by which a result may be off, by their names
    """
    whole = constant_factor(got, wanted, factors or {}) or lower_precision(got, wanted)
    hints = [whole] if whole else [unwritten(got, wanted), edges(got, wanted, dimensions)]
    return tuple(hint for hint in hints if hint)


def unwritten(got: Tensor, wanted: Tensor) -> str:
    """Hint at elements that are NaN or zero and should not be."""
    missing = torch.isnan(got) & ~torch.isnan(wanted)
    if missing.any():
        return f"{_share(missing)} of it is NaN: never written, or computed of -inf - -inf, 0 / 0 or an overflow"
    zero = (got == 0) & (wanted.to(got.dtype) != 0)
    if zero.sum() > 1 and zero.float().mean() > 0.01:
        return f"{_share(zero)} of it is exactly zero where it should not be: left out?"
    return ""


def constant_factor(got: Tensor, wanted: Tensor, factors: Mapping[str, float]) -> str:
    """Hint at one factor by which all elements are off."""
    finite = torch.isfinite(got) & torch.isfinite(wanted)
    x, y = wanted[finite].double(), got[finite].double()
    if x.numel() < 2 or not x.any():
        return ""
    factor = ((x @ y) / (x @ x)).item()
    left, error = (y - factor * x).norm().item(), (y - x).norm().item()
    if error == 0 or left > 0.05 * error or factor == 0:
        return ""
    known = [words for words, value in factors.items() if abs(value - factor) < 5e-3 * abs(factor)]
    meaning = f", which is {' or '.join(known)}" if known else ""
    return f"every element is {factor:.4g} times what was wanted{meaning}"


def edges(got: Tensor, wanted: Tensor, dimensions: Sequence[str]) -> str:
    """Hint at wrong elements that begin or end at a tile's edge, or are in some slices alone."""
    error, size = error_and_size(got, wanted)
    error = torch.where(torch.isfinite(got) == torch.isfinite(wanted), error, torch.inf)
    off = error > 1e-2 * size.square().mean().sqrt()
    if not off.any() or off.all():
        return ""
    said = []
    for number, extent in enumerate(off.shape):
        called = dimensions[number] if number < len(dimensions) else f"dimension {number}"
        others = [other for other in range(off.dim()) if other != number]
        wrong = (off.any(dim=others) if others else off).nonzero().flatten().tolist()
        if len(wrong) < extent:
            said.append(f"{called} {_positions(wrong, extent)}")
    return f"wrong only in {'; '.join(said)}" if said else ""


def lower_precision(got: Tensor, wanted: Tensor) -> str:
    """Hint at small errors of either sign everywhere, or at values that are all numbers of a shorter dtype."""
    if got.dtype == torch.float32 and got.any() and torch.isfinite(got).all():
        for shorter in (torch.bfloat16, torch.float16):
            if torch.equal(got.to(shorter).float(), got) and got.numel() > 8:
                return f"every value is a {short_dtype(shorter)} number: rounded to that on the way?"
    error = (got.double() - wanted)[torch.isfinite(got) & torch.isfinite(wanted)]
    scale = wanted[torch.isfinite(wanted)].double().square().mean().sqrt()
    if error.numel() < 8 or scale == 0:
        return ""
    relative = (error.square().mean().sqrt() / scale).item()
    both_signs = abs(error.mean().item()) < 0.5 * error.abs().mean().item()
    everywhere = (error.abs() > 0.01 * error.abs().mean()).float().mean().item() > 0.5
    ulp = torch.finfo(got.dtype).eps
    if not (both_signs and everywhere and relative < 0.1 and got.dtype.is_floating_point):
        return ""
    coarser = [word for word, eps in _COARSER.items() if eps > ulp / 4 and eps / 16 < relative < 4 * eps]
    if not coarser:
        return ""
    return (
        f"the error is small, of either sign, and everywhere, as of rounding: sums, weights or operands in "
        f"{' or '.join(coarser)}?"
    )


def _positions(wrong: Sequence[int], extent: int) -> str:
    """Describe positions along a dimension: from a tile's edge on, up to one, an interval, or a count."""
    first, last = wrong[0], wrong[-1]
    whole = last - first + 1 == len(wrong)
    if whole and last == extent - 1 and first:
        tile = next((tile for tile in _TILES if first % tile == 0), 0)
        return f"from {first} on" + (f", a multiple of {tile}: a tile's edge?" if tile else "")
    if whole and first == 0:
        tile = next((tile for tile in _TILES if (last + 1) % tile == 0), 0)
        return f"up to {last}" + (f", {last + 1} being a multiple of {tile}: a tile's edge?" if tile else "")
    if whole:
        return f"{first} to {last}" if last > first else f"{first}"
    if len(wrong) <= 4:
        return ", ".join(map(str, wrong))
    step = {b - a for a, b in pairwise(wrong)}
    if len(step) == 1:
        return f"{first}, {wrong[1]}, {wrong[2]} and so on, every {step.pop()}th"
    return f"{first} to {last}, {len(wrong)} of {extent}"


def _share(chosen: Tensor) -> str:
    return "all" if bool(chosen.all()) else f"{chosen.float().mean().item():.1%}".replace("%", " %")
