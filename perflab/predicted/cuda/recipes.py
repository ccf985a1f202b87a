"""Operators whose CUDA implementation calls other operators: the calls, from which launches and memory follow.

A recipe makes the calls of an implementation in PyTorch's sources, in the same order and with the same lifetimes, on
tensors without data; file names are relative to ``aten/src/ATen/native``. What a recipe comes to is the sum of its
calls, whose own rules are in the other modules.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.dispatch import aten, dispatch_modes_off, is_composite, without_torch_function
from perflab.internals.of_torch.tracing import storage_key
from perflab.predicted.cuda.norms import MEAN, NO_REDUCTION
from perflab.predicted.cuda.sorting import ONE_TILE
from perflab.predicted.trace.operators import is_operator, kind_of, tensors_in

if TYPE_CHECKING:
    from perflab.predicted.trace.operators import Hidden

_CALLS = "know what an operator calls in turn"
_FEW_ROWS = 25
"""The most rows of which ``cdist`` computes Euclidean distances one by one."""


class Inside(NamedTuple):
    """The work within one call."""

    launches: int
    blocks: tuple[int, ...]
    """The bytes of the blocks that are alive at the worst moment, beside the result."""


def inside(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any], hidden: Hidden) -> Inside | None:
    """Return the work within a call of the operator ``name`` without its namespace; None if it has no recipe."""
    recipe = RECIPES.get(name)
    if recipe is None:
        return None
    calls = _Calls(hidden)
    with dispatch_modes_off(), without_torch_function(), torch.no_grad():
        given = _on_meta([*arguments, *keywords.values()])
        named = dict(zip(keywords, given[len(arguments) :], strict=True))
        with calls:
            result = recipe(*given[: len(arguments)], **named)
        return calls.beside(result)


def _on_meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return [_on_meta(one) for one in value] if isinstance(value, list | tuple) else value


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operators that a recipe calls, and the most bytes that their results and temporary blocks take at once."""

    def __init__(self, hidden: Hidden) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._hidden = hidden
        self._launches = 0
        self._alive: dict[int, tuple[int, int]] = {}
        """The number and the bytes of each storage, by a key that a later storage may have again."""
        self._made = 0
        self._moments: list[tuple[dict[int, int], tuple[int, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if is_operator(func) and is_composite(func):  # within another dispatch nothing has taken it apart
            with self:
                return func.decompose(*args, **kwargs)
        known = {storage_key(one.untyped_storage()) for one in tensors_in((args, kwargs))}
        result = func(*args, **kwargs)
        kind = kind_of(func) if is_operator(func) else None
        if kind is None or kind.is_view:
            return result
        results = list(tensors_in(result))
        made = {storage_key(one.untyped_storage()): one.untyped_storage() for one in results}
        for key in made.keys() - known:
            self._made += 1
            self._alive[key] = self._made, made[key].nbytes()
            weakref.finalize(made[key], self._alive.pop, key, None)
        blocks: tuple[int, ...] = ()
        is_work = not made or made.keys() - known or kind.writes or kind.writes_by_name
        is_empty = results and not any(one.numel() for one in results)
        if kind.launches and is_work and not is_empty:
            self._launches += self._hidden.launches_of(kind.name, args, kwargs)
            blocks = self._hidden.blocks_of(kind.name, args, kwargs)
        self._moments.append((dict(self._alive.values()), blocks))
        return result

    def beside(self, result: Any) -> Inside:
        """Return the work beside the result, which is taken to be there from the beginning."""
        storages = {storage_key(one): one for one in (tensor.untyped_storage() for tensor in tensors_in(result))}
        own = dict(self._alive.get(key, (-key, one.nbytes())) for key, one in storages.items())
        worst: list[int] = []
        for alive, blocks in self._moments:
            found = sorted([*(size for made, size in alive.items() if made not in own), *blocks], reverse=True)
            missing = sum(size for made, size in own.items() if made not in alive)
            while found and missing:  # what the result will take later is free by then
                largest = found.pop(0)
                missing, largest = max(0, missing - largest), max(0, largest - missing)
                found += [largest] if largest else []
            if sum(found) > sum(worst):
                worst = found
        return Inside(self._launches, tuple(worst))


def _reduced(losses: Tensor, reduction: int) -> Tensor:
    return losses if reduction == NO_REDUCTION else losses.mean() if reduction == MEAN else losses.sum()


def _addbmm(self: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, **_: Any) -> Tensor:
    """Add products to the summand, or to zeros if it is multiplied by 0 (``addbmm_impl_``, ``LinearAlgebra.cpp``)."""
    result = self.new_empty((left.shape[1], right.shape[2]))
    return _add_products(result if beta == 0 else result.copy_(self), left, right)


def _add_products(self: Tensor, left: Tensor, right: Tensor, **_: Any) -> Tensor:
    """Add one product after the other; without one, scale the summand (``addbmm_impl_``, ``LinearAlgebra.cpp``)."""
    for one, other in zip(left, right, strict=True):
        self.addmm_(one, other)
    return self if len(left) else self.mul_(1)


def _multinomial(self: Tensor, num_samples: int, replacement: bool = False, **_: Any) -> Tensor:
    """Check and draw samples: ``multinomial_out`` in ``Distributions.cpp``, ``cuda/MultinomialKernel.cu``."""
    result = self.new_empty((*self.shape[:-1], num_samples), dtype=torch.int64)
    if replacement and num_samples > 1:
        rows = (self.unsqueeze(0) if self.dim() == 1 else self).clone()
        normed = rows.clone().relu_()
        sums = torch.cumsum(normed, 1, out=torch.empty_like(normed))
        return result.random_() if sums is not None else result
    least, most = self.aminmax()
    is_valid = (most < math.inf).bitwise_and(least >= 0)
    check = aten("_assert_async.default", _CALLS)
    check(is_valid)
    is_zero = self.sum() == 0 if self.dim() == 1 else (self.sum(1) == 0).any()
    check(~is_zero)
    q = torch.empty_like(self).exponential_()
    torch.div(self, q, out=q)
    if num_samples == 1:
        return torch.argmax(q, -1, keepdim=True, out=result)
    return torch.topk(q, num_samples, out=(self.new_empty(result.shape), result))[1]


def _roll(self: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Tensor:
    """Roll one dimension after the other, each into a copy (``roll_cuda`` in ``cuda/TensorTransformations.cu``)."""
    kept = [self]
    for _ in range(max(1, len(dims))):
        kept.append(kept[-1].contiguous().clone())
    return kept[-1]


def _cdist(left: Tensor, right: Tensor, p: float, mode: int | None = None) -> Tensor:
    """Compute distances; Euclidean ones of more than 25 rows by one product (``cdist_impl`` in ``Distance.cpp``)."""
    if p == 2 and (mode == 1 or (mode in (None, 0) and max(left.shape[-2], right.shape[-2]) > _FEW_ROWS)):
        batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])  # type: ignore[no-untyped-call]
        left, right = (one.expand(*batch, *one.shape[-2:]) for one in (left, right))
        return aten("_euclidean_dist", _CALLS)(left, right)  # type: ignore[no-any-return]
    return left.new_empty((*left.shape[:-1], right.shape[-2])).fill_(0)


def _cdist_backward(grad: Tensor, left: Tensor, right: Tensor, p: float, distances: Tensor) -> Tensor:
    """Make every difference, then sum over the second operand (``_cdist_backward`` in ``cuda/DistanceKernel.cu``)."""
    left, right = left.contiguous(), right.contiguous()
    differences = left.new_empty((right.shape[-2], *left.shape)).fill_(0)
    return differences.sum(0)


def _euclidean(left: Tensor, right: Tensor) -> Tensor:
    """Compute Euclidean distances by one product of padded operands (``_euclidean_dist`` in ``Distance.cpp``)."""
    squares = left.pow(2).sum(-1, keepdim=True)
    ones = torch.ones_like(squares)
    others = right.pow(2).sum(-1, keepdim=True)
    other_ones = torch.ones_like(others)
    first = torch.cat([left.mul(-2), squares, ones], -1)
    second = torch.cat([right, other_ones, others], -1)
    del squares, ones, others, other_ones
    return first.matmul(second.mT).clamp_min_(0).sqrt_()


def _for_cufft(self: Tensor, dims: Sequence[int]) -> Tensor:
    """Return the transformed dimensions behind all others: ``_exec_fft`` in ``cuda/SpectralOps.cpp``."""
    strides = self.stride()
    rest = [one for one in range(self.dim()) if one not in {dim % self.dim() for dim in dims}]
    rest.sort(key=lambda one: -strides[one])
    return self.permute(*rest, *dims).reshape(-1, *(self.shape[dim] for dim in dims))


def _scaled(result: Tensor, normalization: int) -> Tensor:
    return result.mul_(1) if normalization else result


def _complex_to_complex(self: Tensor, dims: Sequence[int], normalization: int, *_: Any) -> Tensor:
    given = _for_cufft(self, dims)
    return _scaled(given.new_empty(self.shape).fill_(0), normalization)


def _complex_to_real(self: Tensor, dims: Sequence[int], normalization: int, last: int) -> Tensor:
    overwritten = self.clone(memory_format=torch.contiguous_format)
    shape = list(self.shape)
    shape[dims[-1]] = last
    result = overwritten.new_empty(shape, dtype=self.real.dtype)
    return _scaled(result.fill_(0), normalization)


def _real_to_complex(self: Tensor, dims: Sequence[int], normalization: int, is_half: bool) -> Tensor:
    given = _for_cufft(self, dims)
    shape = list(self.shape)
    if is_half:
        shape[dims[-1]] = shape[dims[-1]] // 2 + 1
    result = _scaled(given.new_empty(shape, dtype=self.dtype.to_complex()).fill_(0), normalization)
    return result if is_half else result.fill_(0)  # the other half, by symmetry


def _randperm(n: int, *_: Any, **__: Any) -> Tensor:
    """Draw keys so wide that they hardly repeat, and sort by them (``randperm_out_cuda`` in ``cuda/Randperm.cu``)."""
    result = torch.empty(n, dtype=torch.int64, device="meta")
    if not n:
        return result
    bits = min(64, math.ceil(math.log2(n - (6 * n * n + 1) / (math.log(0.9) * 12))))
    numbers = torch.arange(n, device="meta")
    keys = torch.empty(n, dtype=torch.int32 if bits <= 32 else torch.int64, device="meta").random_()
    ordered = torch.empty_like(keys)
    if n > ONE_TILE:  # CUB's other lists; a histogram, its sums, one pass per digit
        more = torch.empty_like(keys), torch.empty_like(numbers)
        for _pass in range(1 + math.ceil(bits / 8)):
            more[0].fill_(0)
    ordered.fill_(0)
    result.fill_(0)
    return result.fill_(0)


def _safe_softmax(self: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Take a softmax, and set rows of minus infinity to 0 in place (``transformers/attention.cpp``)."""
    out = torch.softmax(self, dim, dtype)
    hidden = self == -math.inf
    rows = hidden.all(dim, keepdim=True)
    return torch.where(rows, out.new_zeros(()), out, out=out)


def _cross_entropy(self: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    """Compute the losses, whose memory the result keeps (``binary_cross_entropy_out_cuda`` in ``cuda/Loss.cu``)."""
    losses = self - target
    if weight is not None:
        losses.mul_(weight)
    if reduction != NO_REDUCTION:
        losses.copy_(_reduced(losses, reduction))
    return losses


def _elementwise_loss(self: Tensor, target: Tensor, reduction: int = MEAN, *_: Any) -> Tensor:
    """Compute a loss that one kernel gives for each element, then their mean or sum, as in ``Loss.cpp``."""
    return _reduced(self - target, reduction)


def _logsumexp(self: Tensor, dim: list[int], keepdim: bool = False) -> Tensor:
    """Convert integers, then sum exponentials below the largest (``logsumexp_out_impl`` in ``ReduceOps.cpp``)."""
    if not (self.is_floating_point() or self.is_complex()):
        self = self.to(torch.get_default_dtype())
    if not self.numel():
        return self.exp().sum(dim, keepdim=keepdim).log_()
    largest = torch.amax(self, dim, keepdim=True)
    largest.masked_fill_(largest.abs() == math.inf, 0)
    result: Tensor = (self - largest).exp_().sum(dim, keepdim=True).log_().add_(largest)
    return result


def _is_finite(self: Tensor) -> Tensor:
    """Combine two comparisons, whose operands all live until the end (``isfinite`` in ``TensorCompare.cpp``)."""
    if self.is_complex():
        return _is_finite(self.real).logical_and_(_is_finite(self.imag))
    if not self.is_floating_point():
        return torch.ones_like(self, dtype=torch.bool)
    parts = self == self, self.abs()
    return parts[0] * (parts[1] != math.inf)


def _is_infinite(self: Tensor) -> Tensor:
    """Compare with infinity, complex numbers part by part (``isinf`` in ``TensorCompare.cpp``)."""
    if self.is_complex():
        return _is_infinite(self.real).logical_or_(_is_infinite(self.imag))
    return self.abs() == math.inf if self.is_floating_point() else torch.zeros_like(self, dtype=torch.bool)


def _count_nonzero(self: Tensor, dim: int | list[int] | None = None) -> Tensor:
    """Sum what differs from 0 (``count_nonzero_cuda`` in ``TensorAdvancedIndexing.cpp``)."""
    return (self if self.dtype == torch.bool else self != 0).sum(dim)


def _soft_margin(self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """Compute the losses, whose memory the result keeps (``soft_margin_loss_out`` in ``Loss.cpp``)."""
    losses = self.neg().mul_(target).exp_().log1p_()
    return losses if reduction == NO_REDUCTION else losses.copy_(_reduced(losses, reduction))


def _soft_margin_backward(grad: Tensor, self: Tensor, target: Tensor, reduction: int = MEAN) -> Tensor:
    """Compute the gradient of a soft margin loss (``soft_margin_loss_backward_out`` in ``Loss.cpp``)."""
    negative = -target
    product = negative * self
    power = product.exp()
    del negative, product
    result = torch.mul(target, power).mul_(-1)
    power.add_(1)
    return result.div_(power).mul_(grad)


RECIPES: dict[str, Callable[..., Any]] = {
    "_cdist_backward": _cdist_backward,
    "_cdist_forward": _cdist,
    "_euclidean_dist": _euclidean,
    "_fft_c2c": _complex_to_complex,
    "_fft_c2r": _complex_to_real,
    "_fft_r2c": _real_to_complex,
    "_safe_softmax": _safe_softmax,
    "addbmm": _addbmm,
    "addbmm_": _add_products,
    "binary_cross_entropy": _cross_entropy,
    "count_nonzero": _count_nonzero,
    "dist": lambda self, other, p=2: (self - other).norm(p),
    "huber_loss": _elementwise_loss,
    "isfinite": _is_finite,
    "isinf": _is_infinite,
    "logsumexp": _logsumexp,
    "mse_loss": _elementwise_loss,
    "multinomial": _multinomial,
    "randperm": _randperm,
    "roll": _roll,
    "smooth_l1_loss": _elementwise_loss,
    "soft_margin_loss": _soft_margin,
    "soft_margin_loss_backward": _soft_margin_backward,
}
