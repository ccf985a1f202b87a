"""Hints from an error's shape: a constant factor, wrong rows after a tile's edge, lower precision.

Pure functions of a result and its reference; each returns a sentence, or "" if the error does not show its pattern.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from perflab.correctness.budget import error_and_size, short_dtype

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

# Tiles in use, the widest first. Edges at multiples of 16 and more are a tile's; 8 could have another cause.
_TILES = (256, 128, 64, 32, 16)
_COARSER = {"float16 or TF32": 2.0**-11, "bfloat16": 2.0**-8, "float8": 2.0**-4}


def find_hints(
    got: Tensor,
    wanted: Tensor,
    *,
    dimensions: Sequence[str] = (),
    factors: Mapping[str, float] | None = None,
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
