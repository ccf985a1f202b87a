"""Compares tensors with their reference and budget; reports what is wrong, where and by how much.

Input: three tensors of one shape, the candidate's (any dtype), the reference's (the widest dtype of its kind) and
plain's (the candidate's precision). Output: frozen reports whose text fits 80 columns. Nothing is raised for a wrong
candidate; ValueError where the reference itself is NaN, since nothing can be right there.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from perflab.correctness.budget import (
    Budget,
    Errors,
    derive_budget,
    error_and_size,
    errors_of,
    row_errors,
    row_scales,
    short_dtype,
    widest,
)

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

METRIC_NAMES = {"max": "max", "mean": "mean", "relative_norm": "norm", "worst_row": "worst row"}


# Larger elements hide smaller ones, in which no digit is right where the error is so much of their norm. They are
# looked at by decades of sizes that have one of so many elements, and no fewer than these, and as the smaller half.
_LOST, _SHARE, _FEWEST = 0.5, 64, 4


@dataclass(frozen=True, slots=True)
class Lost:
    """Elements of like size without a right digit, though plain's have one: the error's share of their norm.

    `decade` is the power of ten that their sizes have at least; None for the smaller half of all elements.
    """

    decade: int | None
    share: float

    def __str__(self) -> str:
        which = "its smaller half" if self.decade is None else f"elements of 1e{self.decade} to 1e{self.decade + 1}"
        return f"no digit is right in {which}: the error is {self.share:.2g} of their norm"


@dataclass(frozen=True, slots=True)
class Numbers:
    """The measured errors of a tensor that could be compared.

    `index`, `got` and `wanted` belong to the worst element; `off` counts the elements past their budget, and
    `region` holds for each dimension the first and last index of such elements. `lost` tells of smaller elements.
    """

    errors: Errors
    budget: Budget
    exceeded: tuple[str, ...]
    index: tuple[int, ...]
    got: complex
    wanted: complex
    off: int
    non_finite: int
    region: tuple[tuple[int, int], ...]
    lost: Lost | None = None


@dataclass(frozen=True, slots=True)
class TensorReport:
    """One tensor's comparison; or, if the tensors could not be compared, `mismatch`, which says why."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype | None
    numbers: Numbers | None
    mismatch: str = ""

    @property
    def ok(self) -> bool:
        """Whether the tensor is within budget, and finite where it should be."""
        numbers = self.numbers
        return numbers is not None and not (numbers.exceeded or numbers.non_finite or numbers.lost)

    def __str__(self) -> str:
        if self.numbers is None:
            return f"{self.name} is wrong: {self.mismatch}"
        return _passed(self, self.numbers) if self.ok else _failed(self, self.numbers)


@dataclass(frozen=True, slots=True)
class Report:
    """The reports of one run's tensors; the text has wrong tensors first and in full, right tensors on a line each."""

    tensors: tuple[TensorReport, ...]

    @property
    def ok(self) -> bool:
        """Whether every tensor is right."""
        return all(tensor.ok for tensor in self.tensors)

    def __str__(self) -> str:
        return "\n".join(str(tensor) for tensor in sorted(self.tensors, key=lambda tensor: tensor.ok))


def compare_all(
    got: Mapping[str, Tensor | None],
    reference: Mapping[str, Tensor],
    plain: Mapping[str, Tensor],
    *,
    multiple: float = 2.0,
    magnitudes: Mapping[str, Tensor] | None = None,
    other_draws: Sequence[Mapping[str, Errors]] = (),
    cancelling: Collection[str] = (),
) -> Report:
    """Call `compare` for every name in `reference`; a name without a magnitude has the default magnitude.

    `cancelling` names results in which larger terms cancel, such as gradients: small elements of these, and of those
    with a magnitude, have no digit that has to be right.
    """
    reports = (
        compare(
            name,
            got.get(name),
            wanted,
            plain[name],
            multiple=multiple,
            magnitude=(magnitudes or {}).get(name),
            other_draws=[errors[name] for errors in other_draws],
            hides=name not in cancelling,
        )
        for name, wanted in reference.items()
    )
    return Report(tuple(reports))


def compare(
    name: str,
    got: Tensor | None,
    reference: Tensor,
    plain: Tensor,
    *,
    multiple: float = 2.0,
    magnitude: Tensor | None = None,
    other_draws: Sequence[Errors] = (),
    hides: bool = True,
) -> TensorReport:
    """Compare `got` with `reference`, within the budget that `plain` gives (see `derive_budget`).

    `hides`: whether larger elements may hide smaller ones, which are looked at then (see `Lost`), unless a magnitude
    says that larger terms cancel.

    `got` must have the shape of the reference, and the dtype and device of plain. It must be finite where the
    reference, rounded to that dtype, is finite, and equal to the reference elsewhere.
    """
    if torch.isnan(reference).any():
        index = torch.isnan(reference).nonzero()[0].tolist()
        raise ValueError(f"the reference of {name} is NaN at {index}: define what is right there")
    if got is None and not reference.any():
        got = torch.zeros_like(plain)  # None is autograd's zero
    if got is None:
        return TensorReport(name, tuple(reference.shape), None, None, "missing: the candidate returned None")
    mismatch = _mismatch(got, reference, plain)
    if mismatch:
        return TensorReport(name, tuple(got.shape), got.dtype, None, mismatch)
    reference = reference.detach().to(got.device)
    budget = derive_budget(plain, reference, got.dtype, multiple=multiple, magnitude=magnitude, other_draws=other_draws)
    report = TensorReport(name, tuple(got.shape), got.dtype, _measure(got.detach(), reference, budget))
    # An integer of any size may be an index, which is as wrong beside a small one as beside a large one.
    if (
        hides
        and magnitude is None
        and report.numbers
        and report.ok
        and (plain.is_floating_point() or plain.is_complex())
    ):
        return replace(report, numbers=replace(report.numbers, lost=_lost(got.detach(), reference, plain)))
    return report


def _mismatch(got: Tensor, reference: Tensor, plain: Tensor) -> str:
    if got.shape != reference.shape:
        return f"its shape is {tuple(got.shape)}, wanted {tuple(reference.shape)}"
    if got.dtype != plain.dtype:
        return f"its dtype is {short_dtype(got.dtype)}, wanted {short_dtype(plain.dtype)}"
    if got.device != plain.device:
        return f"it is on {got.device}, wanted on {plain.device}"
    return ""


def _lost(got: Tensor, reference: Tensor, plain: Tensor) -> Lost | None:
    """Return the smaller elements in which no digit is right, though plain's have one."""
    error, size = error_and_size(got, reference)
    own, _ = error_and_size(plain, reference)
    # Where plain in 32 or 64 bit is the reference, nothing tells its error: see derive_budget.
    if size.numel() and plain.dtype.itemsize > 2 and torch.equal(widest(plain), widest(reference)):
        own = torch.full_like(size, torch.finfo(plain.dtype).eps * float(size.max()))
    is_normal = size > torch.finfo(plain.dtype).tiny
    seen = size[is_normal]
    if not len(seen):
        return None
    decades = seen.log10().floor()
    lowest = int(decades.min())
    place, scale = (decades - lowest).long(), 10.0**decades
    groups = torch.zeros(int(place.max()) + 1, dtype=torch.float64, device=size.device)

    def norms(values: Tensor) -> Tensor:
        """Norms of each decade's elements, in units of the decade."""
        return groups.index_add(0, place, (values[is_normal] / scale).square()).sqrt()

    many = groups.index_add(0, place, torch.ones_like(seen)) >= max(_FEWEST, size.numel() // _SHARE)
    wrong, allowed = norms(error), _LOST * norms(size)
    is_lost = many & (wrong > allowed) & (allowed > 10 * norms(own))
    if is_lost.any():
        at = int(is_lost.nonzero()[0])
        return Lost(lowest + at, float(_LOST * wrong[at] / allowed[at]))
    half = (size < size.median()) & is_normal
    norm, of_error, of_plain = (float(one[half].norm()) for one in (size, error, own))
    return Lost(None, of_error / norm) if of_error > _LOST * norm > 10 * of_plain else None


def _measure(got: Tensor, reference: Tensor, budget: Budget) -> Numbers:
    # Rounded to the candidate's dtype, because a value past its range is rightly infinite there.
    # The formats of 8 bit without an infinity have NaN there.
    found, wanted = widest(got), widest(reference.to(got.dtype))
    same = (found == wanted) | (found.isnan() & wanted.isnan())
    non_finite = ~((torch.isfinite(found) & torch.isfinite(wanted)) | same)
    error, size = error_and_size(got, reference)
    errors = errors_of(error, size)
    error = torch.where(non_finite, torch.inf, error)
    off = (error > budget.limit.max) | _in_a_wrong_row(error, size, budget.limit.worst_row)
    judged = torch.where(off, error, -1.0) if off.any() else error
    index = tuple(map(int, torch.unravel_index(judged.argmax(), judged.shape))) if judged.numel() else ()
    places = off.nonzero()
    ends = (places.amin(dim=0).tolist(), places.amax(dim=0).tolist()) if len(places) else ((), ())
    return Numbers(
        errors=errors,
        budget=budget,
        exceeded=budget.exceeded_by(errors),
        index=index,
        got=found[index].item() if got.numel() else 0.0,
        wanted=reference[index].item() if got.numel() else 0.0,
        off=int(off.sum()),
        non_finite=int(non_finite.sum()),
        region=tuple(zip(*ends, strict=True)),
    )


def _in_a_wrong_row(error: Tensor, size: Tensor, limit: float) -> Tensor:
    """Mark the elements of rows past `limit` that are themselves past a row's root-mean-square share of the limit."""
    if error.numel() == 0:
        return torch.zeros_like(error, dtype=torch.bool)
    length = error.shape[-1] if error.dim() else 1
    wrong = row_errors(error, size) > limit
    share = limit * row_scales(size) / length**0.5
    off: Tensor = wrong[:, None] & (error.reshape(-1, length) > share[:, None])
    return off.reshape(error.shape)


def _passed(report: TensorReport, numbers: Numbers) -> str:
    shares = ", ".join(
        f"{METRIC_NAMES[name]} {_share(error, getattr(numbers.budget.limit, name))}"
        for name, error in numbers.errors.items()
    )
    return f"{report.name} is right, using {shares} of its budget"


def _share(error: float, limit: float) -> str:
    return "0 %" if error == 0.0 else f"{error / limit:.0%}".replace("%", " %")


def _failed(report: TensorReport, numbers: Numbers) -> str:
    count = math.prod(report.shape)
    lines = [
        f"{report.name} is wrong: shape {report.shape}, {short_dtype(report.dtype)}",
        f"  worst at {list(numbers.index)}: got {numbers.got:.6g}, wanted {numbers.wanted:.6g}, "
        f"error {abs(numbers.got - numbers.wanted):.3g}",
    ]
    if numbers.non_finite:
        lines.append(
            f"  {numbers.non_finite} of {count} elements are not finite where the reference is, or differ"
            f"\n  from its infinity (NaN: memory that was never written holds NaN here)"
        )
    if numbers.off:
        lines.append(f"  {numbers.off} of {count} elements are off ({numbers.off / count:.2%}).")
        region = [str(low) if low == high else f"{low}:{high + 1}" for low, high in numbers.region]
        lines.append(f"  all of them within [{', '.join(region)}]")
    elif numbers.exceeded:
        lines.append("  no element alone is past its budget: the error is small and everywhere")
    if numbers.lost:
        lines.append(f"  {numbers.lost}")
    multiple = f"{numbers.budget.multiple:g} x plain"
    lines.append(f"  {'':9}  {'error':>9}  {'budget':>9} = {multiple:>9} + {'rounding':>9}")
    for name, error in numbers.errors.items():
        limit = getattr(numbers.budget.limit, name)
        plain = numbers.budget.multiple * getattr(numbers.budget.plain, name)
        times = f"{error / limit:.3g}x" if limit > 0.0 else "any is"
        verdict = f"  {times} over" if name in numbers.exceeded else ""
        band = getattr(numbers.budget.band, name)
        lines.append(f"  {METRIC_NAMES[name]:9}  {error:9.2e}  {limit:9.2e} = {plain:9.2e} + {band:9.2e}{verdict}")
    return "\n".join(lines)
