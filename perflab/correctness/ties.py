"""Finds elements that rounding decides: a quantised value at a tie, or the index of the larger of two equal numbers.

A definition that rounds or compares has jumps, and near them every order of sums has its own answer. Budgets do not
know that: plain's error is zero until it meets a tie itself. So where a few elements of a result are off, the
definition is asked again, for inputs that differ by a few roundings. An element at which it jumps then may have any
value up to there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from perflab.correctness.budget import error_and_size
from perflab.correctness.compare import Report

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_NUDGES = 16
_FEW = 64
"""One of so many elements may be off, or a single one; a result with more is not looked at, and is wrong."""
_JUMP = 64.0
"""A jump changes an element so many times as much as the median element; a smooth function changes all alike.
Integers only jump."""
_ROUNDINGS, _SHORT_ROUNDINGS = 4.0, 0.25
"""The size of a nudge in eps; in 16 bit and less it must not reach the next number, whose order is certain."""


def beside_ties(
    compared: Callable[[Mapping[str, Tensor | None]], Report],
    got: Mapping[str, Tensor | None],
    reference: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    again: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> tuple[Report, Mapping[str, Tensor | None]]:
    """Compare results with the reference, and once more without elements that rounding decides, if those alone are off.

    Args:
        compared: compares results with the reference.
        got: the candidate's results.
        reference: the definition's results.
        inputs: the inputs as the candidate had them, whose dtypes say what a rounding is.
        again: calls the definition on other inputs of the same shapes, the floating ones in float64.

    Returns:
        The report, and the results that it is about.
    """
    report = compared(got)
    wrong = [one for one in report.tensors if not one.ok]
    is_rare = all(one.numbers and one.numbers.off <= max(1, math.prod(one.shape) // _FEW) for one in wrong)
    if not wrong or not is_rare or not any(one.is_floating_point() for one in inputs.values()):
        return report, got
    settled = dict(got)
    try:
        reach = _reach([one.name for one in wrong], reference, inputs, again)
    except Exception:  # a definition may refuse such inputs: then nothing is known of ties
        return report, got
    for name, far in reach.items():
        found = settled[name]
        if found is not None:
            error, _ = error_and_size(found, reference[name])
            is_smooth = found.is_floating_point() or found.is_complex()
            is_tie = (error > 0) & (far > (_JUMP * far.median() if is_smooth else 0)) & (error <= 1.01 * far)
            settled[name] = torch.where(is_tie, reference[name].to(found.dtype), found)
    other = compared(settled)
    return (other, settled) if other.ok else (report, got)


def _reach(
    names: Sequence[str],
    reference: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    again: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Return how far each element of results moves when the inputs do by a few roundings, at most."""
    generator, moves = torch.Generator().manual_seed(0), []
    for _ in range(_NUDGES):
        moved = again({name: _nudged(one, generator) for name, one in inputs.items()})
        moves.append(
            {name: error_and_size(moved[name].to(reference[name].device), reference[name])[0] for name in names}
        )
    return {name: torch.stack([one[name] for one in moves]).amax(0) for name in names}


def _nudged(tensor: Tensor, generator: torch.Generator) -> Tensor:
    if not tensor.is_floating_point():
        return tensor.clone()
    size = torch.finfo(tensor.dtype).eps * (_SHORT_ROUNDINGS if tensor.itemsize <= 2 else _ROUNDINGS)
    signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device) * 2 - 1
    return tensor.detach().double() * (1 + size * signs)
