"""Finds elements that rounding decides: a quantised value at a tie, or the index of the larger of two equal numbers.

A definition that rounds or compares has jumps, and near them every order of sums has its own answer. Budgets do not
know that: plain's error is zero until it meets a tie itself. So where a few elements of a result are off, the
definition is asked again, for inputs that differ by a few roundings. An element at which it jumps then may have a
value that the definition has there; if it is no integer, also one in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from perflab.correctness.budget import error_and_size, widest
from perflab.correctness.compare import Report

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_NUDGES, _FURTHER_NUDGES = 16, 48
_FEW = 64
"""One of so many elements may be off, or a single one; a result with more is not looked at, and is wrong."""
_JUMP = 64.0
"""A jump changes an element so many times as much as the median element; a smooth function changes all alike.
Integers only jump."""
_ROUNDINGS, _SHORT_ROUNDINGS = 4.0, 0.25
"""The size of a nudge in eps; in 16 bit and less it must not reach the next number, whose order is certain."""
_SIZES = (1.0, 4.0, 16.0)
"""Sizes of nudges in eps where values were computed in the inputs' precision, so that each step has rounded."""
_SPARED = 8
"""Beside twice as many elements as plain has, one of so many that plain has off may be far from a tie."""
_FEW_AT_TIES = 4
"""Elements that may be off at ties beside twice as many as plain has, or one of _FEW: plain may have met none."""
_FEWEST_NUDGES = 8
"""Nudges without an integer of plain's that is off, after which none is a matter of rounding."""
_MOST_NUDGES = 1024
"""Nudges in which equal numbers may meet their places, at most."""
_TINY = 1e-40
"""The largest nudge of a zero."""


def beside_ties(
    compared: Callable[[Mapping[str, Tensor | None]], Report],
    got: Mapping[str, Tensor | None],
    reference: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    again: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> Report:
    """Compare results with the reference, and once more without elements that rounding decides, if those alone are off.

    Args:
        compared: compares results with the reference.
        got: the candidate's results.
        reference: the definition's results.
        inputs: the inputs as the candidate had them, whose dtypes say what a rounding is.
        again: calls the definition on other inputs of the same shapes, the floating ones in float64.
    """
    report = compared(got)
    indices = {one.name for one in report.tensors if not one.ok and one.numbers and one.dtype is torch.int64}
    if ordered := _with_equal_numbers_in_order(indices, got, reference, inputs, again):
        got = {**got, **ordered}
        report = compared(got)
    wrong = [one for one in report.tensors if not one.ok]
    is_rare = all(one.numbers and one.numbers.off <= _most(math.prod(one.shape)) for one in wrong)
    if not wrong or not is_rare or not any(one.is_floating_point() for one in inputs.values()):
        return report
    found = {one.name: result for one in wrong if (result := got[one.name]) is not None}
    try:
        ties = _ties(found, reference, inputs, again)
    except Exception:  # a definition may refuse such inputs: then nothing is known of ties
        return report
    if any(int(one.sum()) > _most(one.numel()) for one in ties.values()):
        return report
    settled = {name: torch.where(ties[name], reference[name].to(one.dtype), one) for name, one in found.items()}
    other = compared({**got, **settled})
    return other if other.ok else report


def without_rounded_ties(
    got: Mapping[str, Tensor | None],
    plain: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    again: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
    plainly: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> tuple[Mapping[str, Tensor | None], Mapping[str, Tensor]]:
    """Return results, and plain's, with the reference's integers instead of those that differ at a rounded tie.

    An index at such a tie is off by any number. Plain's would allow any index anywhere, and where plain happens to meet
    no tie, none. So an integer may be plain's, or the definition's for inputs that differ by some roundings; nearly as
    many others as plain has are allowed. What is left is wrong. Integers that are no matter of rounding stay as they
    are: those of inputs that are whole, and those at which plain never differs from the definition.

    Args:
        got: the candidate's results.
        plain: plain's results.
        reference: the definition's results.
        inputs: the inputs as the candidate had them.
        again: calls the definition on inputs of the same shapes, the floating ones in float64.
        plainly: calls plain on inputs of the same shapes and dtypes.
    """
    mine = {
        name: found
        for name, one in reference.items()
        if one.dtype is torch.int64 and (found := got[name]) is not None and found.dtype == plain[name].dtype
        if found.shape == one.shape
    }
    own = {name: widest(plain[name]) for name in mine}
    far = {name: (widest(one) != reference[name]) & (widest(one) != own[name]) for name, one in mine.items()}
    off = {name: one != reference[name] for name, one in own.items()}
    differs = {name: widest(one) != reference[name] for name, one in mine.items()}
    most_off = {name: 2 * int(off[name].sum()) + max(_FEW_AT_TIES, one.numel() // _FEW) for name, one in mine.items()}
    unknown = [name for name, one in differs.items() if 0 < int(one.sum()) <= most_off[name]]
    of_plain = dict(off)
    generator = torch.Generator().manual_seed(0)
    is_rounded = any(bool(one.any()) for one in off.values())
    for number in range(_FURTHER_NUDGES if unknown else 0):
        if number >= _FEWEST_NUDGES and not is_rounded:
            break
        if is_rounded and not any(bool(far[name].any()) for name in unknown):
            break
        nudged = {name: _nudged(one, generator, _SIZES[number % len(_SIZES)]) for name, one in inputs.items()}
        if all(torch.equal(one, inputs[name].to(one.dtype)) for name, one in nudged.items()):
            return got, plain
        try:
            moved = again(nudged)
            if not is_rounded:
                short = {name: one.to(inputs[name].dtype) for name, one in nudged.items()}
                exact, rounded = again(short), plainly(short)
                is_rounded = any(not torch.equal(widest(exact[name]), widest(rounded[name])) for name in mine)
        except Exception:  # a definition may refuse such inputs: then nothing is known of ties
            return got, plain
        for name, one in mine.items():
            there = widest(moved[name]).to(one.device)
            far[name], of_plain[name] = far[name] & (widest(one) != there), of_plain[name] & (own[name] != there)
    if not is_rounded:
        return got, plain
    settled = {}
    for name, one in mine.items():
        if int(differs[name].sum()) > most_off[name]:  # of a lower precision than plain's
            wrong = differs[name]
        elif int(far[name].sum()) > 2 * int(of_plain[name].sum()) + int(off[name].sum()) // _SPARED:
            wrong = far[name]
        else:
            wrong = torch.zeros_like(differs[name])
        settled[name] = torch.where(wrong, one, reference[name].to(one.dtype))
    return {**got, **settled}, {**plain, **{name: reference[name].to(plain[name].dtype) for name in mine}}


def _most(elements: int) -> int:
    """Return how many elements of so many may be off for a tie."""
    return max(1, elements // _FEW)


def _ties(
    found: Mapping[str, Tensor],
    reference: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    again: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Return by result which elements are off, and have a value that the definition jumps to, or passes, when nudged.

    An integer has to be one of the definition's own values; other numbers may lie between two of them.
    """
    generator = torch.Generator().manual_seed(0)
    passed = {name: torch.zeros(one.shape, dtype=torch.bool, device=one.device) for name, one in found.items()}
    reach = {name: torch.zeros(one.shape, dtype=torch.float64, device=one.device) for name, one in found.items()}
    lost = {name: _lost_along(one, reference[name]) for name, one in found.items()}
    for _ in range(_NUDGES):
        moved = again({name: _nudged(one, generator) for name, one in inputs.items()})
        for name, one in found.items():
            there = moved[name].to(one.device)
            jump, _ = error_and_size(there, reference[name])
            reach[name] = torch.maximum(reach[name], jump)
            if one.is_floating_point() or one.is_complex():
                (before, _), (behind, _) = error_and_size(one, reference[name]), error_and_size(one, there)
                passed[name] |= (before > 0) & (before + behind <= 1.01 * jump)
            else:
                lost[name] = [along for along in lost[name] if not _holds_one_twice(there, along)]
                passed[name] |= (widest(one) == widest(there)) & (jump > 0)
    for name, one in found.items():
        if lost[name]:
            passed[name].zero_()
        if one.is_floating_point() or one.is_complex():
            passed[name] &= reach[name] > _JUMP * reach[name].median()
    return passed


def _with_equal_numbers_in_order(
    names: Collection[str],
    got: Mapping[str, Tensor | None],
    reference: Mapping[str, Tensor],
    inputs: Mapping[str, Tensor],
    again: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Return results with the reference's indices instead of those in another order of equal numbers of the inputs.

    A sorted row in 16 bit has equal numbers nearly everywhere, so any number of indices may differ. Such an index is
    decided by comparing inputs with each other: it stays where all are scaled alike, unlike one that a constant
    decides, such as a bucket's. It is the definition's for inputs that differ by less than the step to the next
    number, in which only equal ones change places.
    """
    mine = {name: one for name in names if (one := got[name]) is not None}
    lost = {name: _lost_along(one, reference[name]) for name, one in mine.items()}
    apart = {name: one != reference[name].to(one.device) for name, one in mine.items()}
    kept = {name: torch.ones_like(one) for name, one in apart.items()}
    generator = torch.Generator().manual_seed(0)
    try:
        for sign in (1, -1) if mine else ():
            moved = again({name: _scaled(one, sign * torch.ones(())) for name, one in inputs.items()})
            for name, one in mine.items():
                kept[name] &= (moved[name].to(one.device) == reference[name].to(one.device)) | ~apart[name]
        far = {name: one for name, one in apart.items() if kept[name].all() and len(torch.unique(reference[name])) > 2}
        idle = 0
        for number in range(_MOST_NUDGES):
            if idle == _FURTHER_NUDGES or not any(bool(one.any()) for one in far.values()):
                break
            if number == _FEWEST_NUDGES:  # an order of equal numbers has met many of its indices by now
                far = {name: one for name, one in far.items() if 16 * int(one.sum()) <= 15 * int(apart[name].sum())}
            shares = {name: torch.rand(one.shape, generator=generator) * 2 - 1 for name, one in inputs.items()}
            moved = again({name: _scaled(one, shares[name]) for name, one in inputs.items()})
            before = sum(int(one.sum()) for one in far.values())
            far = {name: one & (mine[name] != moved[name].to(one.device)) for name, one in far.items()}
            for name in far:
                lost[name] = [along for along in lost[name] if not _holds_one_twice(moved[name], along)]
            idle = 0 if sum(int(one.sum()) for one in far.values()) < before else idle + 1
    except Exception:  # a definition may refuse such inputs: then nothing is known of their order
        return {}
    return {name: reference[name].to(mine[name]) for name, one in far.items() if not one.any() and not lost[name]}


def _scaled(tensor: Tensor, shares: Tensor) -> Tensor:
    """Return a copy in float64 that differs by these shares of half a step to the next number; whole dtypes stay."""
    if not tensor.is_floating_point():
        return tensor.clone()
    size = torch.finfo(tensor.dtype).eps * _SHORT_ROUNDINGS
    moved = shares.to(tensor.device, torch.float64)
    # Zeros are equal numbers, too, and any product of theirs is zero.
    return torch.where(tensor == 0, _TINY * moved, tensor.detach().double() * (1 + size * moved))


def _lost_along(found: Tensor, wanted: Tensor) -> list[int]:
    """Return along which dimensions whole numbers hold one twice, and the definition's do not."""
    if wanted.dtype is not torch.int64:
        return []
    return [one for one in range(wanted.dim()) if _holds_one_twice(found, one) and not _holds_one_twice(wanted, one)]


def _holds_one_twice(rows: Tensor, along: int) -> bool:
    """Whether a number stands twice in a row along a dimension."""
    ordered = rows.movedim(along, -1).sort(-1).values
    return bool((ordered[..., 1:] == ordered[..., :-1]).any())


def _nudged(tensor: Tensor, generator: torch.Generator, roundings: float | None = None) -> Tensor:
    """Return a copy that differs by so many roundings, or a few. Whole numbers stay: nothing has rounded them."""
    if not tensor.is_floating_point():
        return tensor.clone()
    exact = tensor.detach().double()
    if torch.equal(exact, exact.round()):
        return exact.clone()
    if roundings is None:
        roundings = _SHORT_ROUNDINGS if tensor.itemsize <= 2 else _ROUNDINGS
    size = torch.finfo(tensor.dtype).eps * roundings
    signs = torch.randint(0, 2, tensor.shape, generator=generator, dtype=torch.float64).to(tensor.device) * 2 - 1
    return exact * (1 + size * signs)
