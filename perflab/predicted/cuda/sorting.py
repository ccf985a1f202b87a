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


def _sort(tensor: Tensor, *arguments: Any, **keywords: Any) -> tuple[int, int]:
    """Bytes and launches of a sort.

    Short rows: the positions of one row; positions, three copies, one kernel. Long rows: all positions and CUB's second
    lists; a histogram, its sums, one pass per digit, positions, a copy. Few long rows are sorted as one list, twice:
    the rows' numbers are in these lists too, and there are 4 launches more.
    """
    (rows, size), itemsize = _rows(tensor, arguments, keywords), tensor.element_size()
    if size <= SORTED_IN_PLACE:
        return size * _INDEX, 5 if tensor.numel() else 0
    are_few = 1 < rows < FEW_ROWS
    each = 3 * _INDEX + 2 * itemsize if are_few else 2 * _INDEX + itemsize
    return tensor.numel() * each, 4 + itemsize + 4 * are_few if tensor.numel() else 0


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


def _cumsum(tensor: Tensor, dim: int, **keywords: Any) -> tuple[int, int]:
    """Bytes of the input converted to the result's dtype, if it has another.

    Launches: CUB's two if all elements are in one row, else one; one more to convert (``cuda/ScanKernels.cpp``).
    """
    wanted = keywords.get("dtype") or (tensor.dtype if tensor.dtype.is_floating_point else torch.int64)
    converts = wanted != tensor.dtype
    in_one_row = tensor.dim() == 0 or tensor.shape[dim] == tensor.numel()
    return tensor.numel() * wanted.itemsize * converts, 1 + in_one_row + converts if tensor.numel() else 0


def _index_put(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> tuple[int, int]:
    """Bytes if rows accumulate: lists of positions and of their order; two lists more if the sort takes several passes.

    Launches without the bounds checks. If rows accumulate, strided values are copied, and positions are sorted first:
    in one kernel, or by a histogram, its sums and one pass per 8-bit digit of the largest position
    (``cuda/Indexing.cu``).
    """
    found = [one for one in indices if one is not None]
    if not accumulate or not found:
        return 0, 1
    rows = math.prod(tensor.shape[at] for at, one in enumerate(indices) if one is not None)
    passes = math.ceil(max(1, (rows - 1).bit_length()) / _DIGIT_BITS)
    count = math.prod(torch.broadcast_shapes(*(one.shape for one in found)))  # type: ignore[no-untyped-call]
    strided, is_large = not values.is_contiguous(), count > ONE_TILE
    size_bytes = count * _INDEX * (6 if is_large and passes > 1 else 4) + 1 + strided * values.nbytes
    return size_bytes, 3 + 3 * len(found) + strided + (1 + passes if is_large else 0)


def _index_put_in_place(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> tuple[int, int]:
    size_bytes, launches = _index_put(tensor, indices, values, accumulate)
    return size_bytes, launches + (_CHECKS * sum(one is not None for one in indices) if accumulate else 0)


def _index_put_in_a_copy(*arguments: Any, **keywords: Any) -> tuple[int, int]:
    size_bytes, launches = _index_put_in_place(*arguments, **keywords)
    return size_bytes, 1 + launches


def _histc(tensor: Tensor, bins: int = 100, min: float = 0, max: float = 0, **_: Any) -> tuple[int, int]:
    """Bytes of the least and largest value, which it finds first if its bounds are equal, by default 0 and 0.

    Launches: zeros, the counts, and one more to find bounds (``cuda/SummaryOps.cu``).
    """
    finds_bounds = tensor.numel() > 0 and min == max
    return 2 * tensor.element_size() * finds_bounds, 1 + (tensor.numel() > 0) + finds_bounds


def _bincount(tensor: Tensor, weights: Tensor | None = None, *_: Any, **__: Any) -> tuple[int, int]:
    """Bytes of the least and the largest value, and of weights converted to float64 if not float32 or float64."""
    if not tensor.numel():
        return 0, 1
    converts = weights is not None and weights.dtype not in (torch.float32, torch.float64)
    return 2 * tensor.element_size() + tensor.numel() * 8 * converts, 3 + converts


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


RULES: dict[str, Callable[..., tuple[int, int]]] = {
    "sort": _sort,
    "cumsum": _cumsum,
    "index_put": _index_put_in_a_copy,
    "index_put_": _index_put_in_place,
    "_index_put_impl_": _index_put,
    "histc": _histc,
    "bincount": _bincount,
}
LAUNCHES: dict[str, int | Callable[..., int]] = {
    "topk": _topk_launches,
    # A copy, then the operator in place.
    "scatter": 2,
    "scatter_add": 2,
    "scatter_reduce": 3,
    "index_add": 2,
    "index_copy": 3,
    "index_fill": 2,
}
