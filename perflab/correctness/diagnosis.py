"""Finds the likely cause of an error: compares it with the errors of known faults.

A hypothesis predicts, from the inputs, what a candidate with one fault would return. If the candidate is
far closer to the prediction than to the truth, the fault explains the error, and its sentence is the likely
cause. An error that no hypothesis explains gets hints from the error's own shape (see `hints`).

The caller supplies the faults: nothing here knows attention.
"""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from perflab.correctness.hints import find_hints

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

# A fault that accounts for four fifths of an error is named: what is left over is rounding, or a second fault.
LEAST_SHARE = 0.8
WIDTH = 80
COMMON_FACTORS: dict[str, float] = {"2: added twice?": 2.0, "-1: the sign": -1.0}


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
    causes = find_causes(evidence, hypotheses)
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
