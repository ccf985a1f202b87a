"""Temporary memory and launches of kernels that sort, count and move rows, such as tokens in a mixture of experts.

The rules follow PyTorch's sources, with their constants; file names are relative to ``aten/src/ATen/native``. CUB's
launches are those on compute capability 8.0 and above. CUB's temporary memory is that of its second lists; its few
other bytes per tile are left out, since they depend on registers. Bytes are as requested, unrounded, at the peak within
the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_INDEX = 8
SORTED_IN_PLACE = 4096
"""The longest row that ``sort_key_value_inplace`` sorts (``cuda/Sort.cpp``, ``should_use_small_sort``)."""
FEW_ROWS = 128
"""Several long rows, if fewer than this number, are sorted as one list, twice (``cuda/SortStable.cu``)."""
ONE_TILE = 2304
"""The most pairs that CUB sorts in one block: 256 threads with 9 pairs each."""
_DIGIT_BITS = 8
_TOP_K_IN_MANY_BLOCKS = ((4001, 400), (800, 800), (200, 3000), (81, 5000), (41, 8000), (21, 10_000), (1, 20_000))
"""Pairs of a least number of rows, and the row length from which ``topk`` uses many blocks for a row
(``cuda/TensorTopK.cu``, ``should_use_multiblock``)."""
_TOP_K_THREADS = 256
_CHECKS = 5
"""The launches that check the bounds of one index tensor: its least and largest value in one kernel, two comparisons,
two assertions."""


def _rows(tensor: Tensor, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of rows and their length along the given dimension; by default the last dimension."""
    dim = keywords.get("dim", next((one for one in arguments if type(one) is int), -1))
    size = tensor.shape[dim] if tensor.dim() else 1
    return (tensor.numel() // size if size else 0), size


def _sort(tensor: Tensor, *arguments: Any, **keywords: Any) -> int:
    """Bytes of a sort: for short rows, the positions of one row; for long rows, all positions and CUB's second lists.

    Few long rows, which are sorted as one list, have the rows' numbers in these lists too.
    """
    rows, size = _rows(tensor, arguments, keywords)
    if size <= SORTED_IN_PLACE:
        return size * _INDEX
    each = 3 * _INDEX + 2 * tensor.element_size() if 1 < rows < FEW_ROWS else 2 * _INDEX + tensor.element_size()
    return tensor.numel() * each


def _sort_launches(tensor: Tensor, *arguments: Any, **keywords: Any) -> int:
    """Launches of a sort; for few long rows, which are sorted twice, 4 more.

    Short rows: positions, three copies, one kernel. Long rows: a histogram, its sums, one pass per digit, positions, a
    copy.
    """
    rows, size = _rows(tensor, arguments, keywords)
    if not tensor.numel():
        return 0
    return 5 if size <= SORTED_IN_PLACE else 4 + tensor.element_size() + 4 * (1 < rows < FEW_ROWS)


def _in_many_blocks(rows: int, size: int) -> bool:
    return next((size >= length for least, length in _TOP_K_IN_MANY_BLOCKS if rows >= least), False)


def topk(sms: int, tensor: Tensor, k: int, *arguments: Any, **keywords: Any) -> int:
    """Return the bytes of the counts of digits, by which many blocks find the values of few long rows.

    ``mbtopk::launch`` in ``cuda/TensorTopK.cu``.
    """
    rows, size = _rows(tensor, arguments, keywords)
    if not _in_many_blocks(rows, size):
        return 0
    each = min(max(math.ceil(rows * size / (sms * 6 * _TOP_K_THREADS)), 4), 64) * _TOP_K_THREADS
    blocks = rows * math.ceil(size / each)
    digits = 2**_DIGIT_BITS
    return int(blocks * (2 * digits + 8) + rows * (4 * digits + 8 + 3 * tensor.element_size()))


def _topk_launches(tensor: Tensor, k: int, *arguments: Any, **keywords: Any) -> int:
    """Launches: one, or three per digit and seven more for few long rows; one more to sort the results."""
    flags = [one for one in arguments if type(one) is bool]
    is_sorted = keywords.get("sorted", flags[1] if len(flags) > 1 else True)
    in_many = _in_many_blocks(*_rows(tensor, arguments, keywords))
    return (3 * tensor.element_size() + 7 if in_many else 1) + (is_sorted and k > 1)


def _cumsum_converts(tensor: Tensor, keywords: Mapping[str, Any]) -> bool:
    wanted = keywords.get("dtype") or (tensor.dtype if tensor.dtype.is_floating_point else torch.int64)
    return bool(wanted != tensor.dtype)


def _cumsum(tensor: Tensor, dim: int, **keywords: Any) -> int:
    """Bytes of the input converted to the result's dtype; 0 if the input has that dtype."""
    wanted = keywords.get("dtype") or torch.int64
    return tensor.numel() * wanted.itemsize if _cumsum_converts(tensor, keywords) else 0


def _cumsum_launches(tensor: Tensor, dim: int, **keywords: Any) -> int:
    """Launches: CUB's two if all elements are in one row, else one; one more to convert (``cuda/ScanKernels.cpp``)."""
    if not tensor.numel():
        return 0
    in_one_row = tensor.dim() == 0 or tensor.shape[dim] == tensor.numel()
    return 1 + in_one_row + _cumsum_converts(tensor, keywords)


def _indices(indices: Sequence[Tensor | None]) -> list[Tensor]:
    return [one for one in indices if one is not None]


def _places(found: Sequence[Tensor]) -> int:
    """Return how many positions several index tensors name together."""
    shape: torch.Size = torch.broadcast_shapes(*(one.shape for one in found))  # type: ignore[no-untyped-call]
    return math.prod(shape)


def _passes(tensor: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Return the number of passes that sort positions: one for each 8-bit digit of the largest position."""
    rows = math.prod(tensor.shape[at] for at, one in enumerate(indices) if one is not None)
    return math.ceil(max(1, (rows - 1).bit_length()) / _DIGIT_BITS)


def _index_put(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> int:
    """Bytes if rows accumulate: lists of positions and of their order; two lists more if the sort takes several passes.

    Strided values are copied (``cuda/Indexing.cu``).
    """
    found = _indices(indices)
    if not accumulate or not found:
        return 0
    count, strided = _places(found), 0 if values.is_contiguous() else values.nbytes
    return count * _INDEX * (4 if count <= ONE_TILE or _passes(tensor, indices) == 1 else 6) + 1 + strided


def _index_put_unchecked(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> int:
    """Launches without the bounds checks.

    If rows accumulate, strided values are copied, and positions are sorted first: in one kernel, or by a histogram, its
    sums and one pass per digit.
    """
    found = _indices(indices)
    if not accumulate or not found:
        return 1
    strided = not values.is_contiguous()
    return 3 + 3 * len(found) + strided + (1 + _passes(tensor, indices) if _places(found) > ONE_TILE else 0)


def _index_put_in_place(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> int:
    checks = _CHECKS * len(_indices(indices)) if accumulate else 0
    return _index_put_unchecked(tensor, indices, values, accumulate) + checks


def _finds_bounds(tensor: Tensor, bins: int = 100, min: float = 0, max: float = 0, **_: Any) -> bool:
    """Whether ``histc`` finds the least and largest value first, since its bounds are equal, by default 0 and 0."""
    return tensor.numel() > 0 and min == max


def _weights_converted(weights: Tensor | None) -> bool:
    return weights is not None and weights.dtype not in (torch.float32, torch.float64)


def _bincount(tensor: Tensor, weights: Tensor | None = None, *_: Any, **__: Any) -> int:
    """Bytes of the least and the largest value, and of weights converted to float64 if not float32 or float64."""
    if not tensor.numel():
        return 0
    return 2 * tensor.element_size() + (tensor.numel() * 8 if _weights_converted(weights) else 0)


def grouped_mm_launches(
    architecture: int, left: Tensor, right: Tensor, offs: Tensor | None = None, *_: Any, **__: Any
) -> int:
    """Return the launches of a grouped product (``cuda/GroupedBlas.cpp``).

    In bfloat16 on compute capability 9.x and 10.x: one kernel for the groups' addresses, one for all products.
    Otherwise the offsets are copied to the host, which launches one product per group; without offsets one for all.
    """
    if {left.dtype, right.dtype} == {torch.bfloat16} and architecture // 10 in (9, 10):
        return 2
    return 1 if offs is None else 1 + offs.size(0)


HIDDEN: dict[str, Callable[..., int]] = {
    "sort": _sort,
    "cumsum": _cumsum,
    "index_put": _index_put,
    "index_put_": _index_put,
    "_index_put_impl_": _index_put,
    "histc": lambda tensor, *given, **named: 2 * tensor.element_size() * _finds_bounds(tensor, *given, **named),
    "bincount": _bincount,
}

LAUNCHES: dict[str, int | Callable[..., int]] = {
    "sort": _sort_launches,
    "topk": _topk_launches,
    "cumsum": _cumsum_launches,
    "index_put": lambda *given, **named: 1 + _index_put_in_place(*given, **named),  # a copy before it
    "index_put_": _index_put_in_place,
    "_index_put_impl_": _index_put_unchecked,
    # Zeros, the counts, and one more to find bounds that are not given (cuda/SummaryOps.cu).
    "histc": lambda tensor, *given, **named: 1 + (tensor.numel() > 0) + _finds_bounds(tensor, *given, **named),
    "bincount": lambda tensor, weights=None, *_, **__: 3 + _weights_converted(weights) if tensor.numel() else 1,
    # A copy, then the operator in place.
    "scatter": 2,
    "scatter_add": 2,
    "scatter_reduce": 3,
    "index_add": 2,
    "index_copy": 3,
    "index_fill": 2,
}
