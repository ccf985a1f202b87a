"""Error budgets: how far a tensor may be from the float64 reference, derived from a plain low-precision run.

    candidate's error  <=  multiple * plain's error + rounding band

`plain` is the reference's mathematics, step by step, in the candidate's own precision: its error is the cost
of that precision. With multiple = 2 this is the bound of FlashAttention's tests (Dao et al., flash-attention,
tests/test_flash_attn.py: at most twice the error of a PyTorch implementation in the same precision).

The band is the cost of rounding where plain happens to be luckier: half a unit in the last place of the
result, and one unit in the sums behind the result,

    eps(dtype) / 2 * |reference|  +  eps(float32) * magnitude

The magnitude is the sum of the absolute values of the terms that make up the result, the factor by which
rounded sums are off (Higham, "Accuracy and Stability of Numerical Algorithms", 2nd ed., section 3.1);
sums are held to float32, as on every GPU, whatever the inputs are. It is |reference| unless the caller
knows that larger terms cancel. No tolerance is typed by hand.

Four metrics have a budget, because each is blind to errors that another sees: the largest error misses a small
error everywhere, the mean and the norm miss a few wrong elements, and all three miss a wrong row whose
values are small beside those of the others (the last rows of causal attention, say).

Pure functions of tensors; they raise nothing for finite input of one shape.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

import torch
from torch import Tensor

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


# Plain's error is a matter of chance. Rounding moves a row as a whole, through its softmax or its delta, so
# plain's largest error in a handful of rows is a poor guess at what it can be, and twice that error is now and
# then less than another candidate's. Where a result has few rows, plain is run on further data until so many
# rows were seen, or so many times: the budget takes the largest error.
MIN_PLAIN_ROWS = 64


@dataclass(frozen=True, slots=True)
class Errors:
    """The distance between a tensor and its reference, in four metrics.

    max            largest absolute error
    mean           mean absolute error
    relative_norm  Euclidean norm of the error, over the norm of the reference
    worst_row      relative norm of the worst row (last dimension); the error of a row smaller than the
                   rows' root mean square is divided by that root mean square: a row of nearly zero
                   gives no scale

    The relative metrics are zero where the reference is zero throughout; max and mean judge such a tensor.
    """

    max: float
    mean: float
    relative_norm: float
    worst_row: float

    def items(self) -> tuple[tuple[str, float], ...]:
        """Return pairs (metric, value), in the order of the fields."""
        return tuple((field.name, getattr(self, field.name)) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Budget:
    """The allowed errors, and the values from which they are derived."""

    plain: Errors
    band: Errors
    multiple: float

    @property
    def limit(self) -> Errors:
        """The allowed error of each metric: multiple * plain + band."""
        pairs = zip(astuple(self.plain), astuple(self.band), strict=True)
        return Errors(*(self.multiple * plain + band for plain, band in pairs))

    def exceeded_by(self, errors: Errors) -> tuple[str, ...]:
        """Return the metrics that are past their limit. NaN is past every limit."""
        limit = self.limit
        return tuple(name for name, error in errors.items() if not error <= getattr(limit, name))


def measure_errors(got: Tensor, reference: Tensor) -> Errors:
    """Return the errors of `got` (any dtype) from `reference` (the widest dtype of its kind, the shape of `got`).

    Only elements that are finite in both tensors count; `compare` judges the other elements.
    """
    return errors_of(*error_and_size(got, reference))


def rounding_band(reference: Tensor, dtype: torch.dtype, magnitude: Tensor | None = None) -> Errors:
    """Return the errors that rounding alone may cost a result in `dtype`. `reference` and `magnitude` have one shape.

    Integers are exact: their band is zero.
    """
    _, size = error_and_size(reference, reference)
    if not (dtype.is_floating_point or dtype.is_complex):
        return errors_of(torch.zeros_like(size), size)
    accumulator = torch.float64 if dtype in (torch.float64, torch.complex128) else torch.float32
    terms = size if magnitude is None else torch.maximum(magnitude, size)
    return errors_of(torch.finfo(dtype).eps / 2 * size + torch.finfo(accumulator).eps * terms, size)


def derive_budget(
    plain: Tensor,
    reference: Tensor,
    dtype: torch.dtype,
    *,
    multiple: float = 2.0,
    magnitude: Tensor | None = None,
    other_draws: Sequence[Errors] = (),
) -> Budget:
    """Return the budget for a result in `dtype`, given plain's result, the reference and the terms' magnitude.

    `other_draws` are plain's errors on other data of this kind; in each metric the largest error counts. Where plain
    in 32 or 64 bit is the reference, bit by bit, nothing tells its error, which then is one unit in the last place: the
    reference has computed in float64 or in float32 as plain has, of inputs in float64 or of whole numbers, say.
    """
    draws = (measure_errors(plain, reference), *other_draws)
    if dtype.itemsize > 2 and (dtype.is_floating_point or dtype.is_complex) and torch.equal(widest(plain), reference):
        _, size = error_and_size(reference, reference)
        draws = (*draws, errors_of(torch.finfo(dtype).eps * size, size))
    largest = Errors(*(max(values) for values in zip(*map(astuple, draws), strict=True)))
    return Budget(largest, rounding_band(reference, dtype, magnitude), multiple)


def error_and_size(got: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Return |got - reference| and |reference| in float64, both zero where either tensor is not finite."""
    mine, wanted = widest(got.detach()), widest(reference)
    # Integers are subtracted before they are rounded.
    error, size = (one.abs() if one.is_complex() else one.double().abs() for one in (mine - wanted, wanted))
    finite = error < torch.inf  # not where either tensor is infinite or no number
    if finite.all():
        return error, size
    return torch.where(finite, error, 0.0), torch.where(finite, size, 0.0)


def widest(tensor: Tensor) -> Tensor:
    """Return a tensor in the widest dtype of its kind: complex128, float64, or int64 (of uint64 up to 2**63)."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.double() if tensor.is_floating_point() else tensor.long()


def row_errors(error: Tensor, size: Tensor) -> Tensor:
    """Return each row's error norm over the row's scale; a row is the last dimension, a scalar is a row of one."""
    scales = row_scales(size)
    return torch.where(scales > 0, _rows(error).norm(dim=-1) / scales, 0.0)


def row_scales(size: Tensor) -> Tensor:
    """Return the scale of each row's error: the row's norm, or the rows' root mean square norm if that is larger."""
    norms = _rows(size).norm(dim=-1)
    return torch.maximum(norms, norms.square().mean().sqrt())


def errors_of(error: Tensor, size: Tensor) -> Errors:
    """Return the metrics of an elementwise error, given the size of what was wanted, as from ``error_and_size``."""
    if error.numel() == 0:
        return Errors(0.0, 0.0, 0.0, 0.0)
    norm = size.norm().item()
    return Errors(
        max=error.max().item(),
        mean=error.mean().item(),
        relative_norm=error.norm().item() / norm if norm > 0.0 else 0.0,
        worst_row=row_errors(error, size).max().item(),
    )


def _rows(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1] if tensor.dim() else 1)


def short_dtype(dtype: torch.dtype | None) -> str:
    """Return a dtype's name without ``torch.``: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")
