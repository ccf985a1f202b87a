"""What kernels take and launch that sort, count and put rows elsewhere, as a mixture of experts does with its tokens.

From PyTorch's sources, below ``aten/src/ATen/native``, with their constants; CUB's part is what it launches on compute
capability 8.0 and above. Its temporary memory is that of its second lists; the few bytes a tile that it keeps beside
them are left out, since they depend on registers. Bytes are as they are asked for, of the worst moment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_INDEX = 8
SORTED_IN_PLACE = 4096
"""Numbers in a row that ``sort_key_value_inplace`` takes (``cuda/Sort.cpp``, ``should_use_small_sort``)."""
FEW_ROWS = 128
"""Fewer long rows than that are sorted as one list, twice (``cuda/SortStable.cu``)."""
ONE_TILE = 2304
"""Pairs that CUB sorts in one block: 256 threads of 9."""
_DIGIT_BITS = 8
_TOP_K_IN_MANY_BLOCKS = ((4001, 400), (800, 800), (200, 3000), (81, 5000), (41, 8000), (21, 10_000), (1, 20_000))
"""From so many rows on, rows of which length (``cuda/TensorTopK.cu``, ``should_use_multiblock``)."""
_CHECKS = 5
"""That indices are within bounds: the least and the largest of each, two comparisons, two assertions."""


def _rows(tensor: Tensor, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[int, int]:
    """How many rows, and how long, along the dimension that is named; by default the last."""
    dim = keywords.get("dim", next((one for one in arguments if type(one) is int), -1))
    size = tensor.shape[dim] if tensor.dim() else 1
    return (tensor.numel() // size if size else 0), size


def _sort(tensor: Tensor, *arguments: Any, **keywords: Any) -> int:
    """Places in a row; of long rows a list of places and CUB's second lists, for few rows with their numbers too."""
    rows, size = _rows(tensor, arguments, keywords)
    if size <= SORTED_IN_PLACE:
        return size * _INDEX
    each = 3 * _INDEX + 2 * tensor.element_size() if 1 < rows < FEW_ROWS else 2 * _INDEX + tensor.element_size()
    return tensor.numel() * each


def _sort_launches(tensor: Tensor, *arguments: Any, **keywords: Any) -> int:
    """Short rows: places, three copies, a kernel. Long ones: a histogram, its sums, a pass a digit, places, a copy."""
    rows, size = _rows(tensor, arguments, keywords)
    if not tensor.numel():
        return 0
    return 5 if size <= SORTED_IN_PLACE else 4 + tensor.element_size() + 4 * (1 < rows < FEW_ROWS)


def _topk_launches(tensor: Tensor, k: int, *arguments: Any, **keywords: Any) -> int:
    """One, or three a digit and seven where few rows are long; one more to sort what was found."""
    rows, size = _rows(tensor, arguments, keywords)
    flags = [one for one in arguments if type(one) is bool]
    is_sorted = keywords.get("sorted", flags[1] if len(flags) > 1 else True)
    in_many = next((size >= length for least, length in _TOP_K_IN_MANY_BLOCKS if rows >= least), False)
    return (3 * tensor.element_size() + 7 if in_many else 1) + (is_sorted and k > 1) + (not tensor.is_contiguous())


def _cumsum_converts(tensor: Tensor, keywords: Mapping[str, Any]) -> bool:
    wanted = keywords.get("dtype") or (tensor.dtype if tensor.dtype.is_floating_point else torch.int64)
    return bool(wanted != tensor.dtype)


def _cumsum(tensor: Tensor, dim: int, **keywords: Any) -> int:
    """Numbers as the result has them."""
    wanted = keywords.get("dtype") or torch.int64
    return tensor.numel() * wanted.itemsize if _cumsum_converts(tensor, keywords) else 0


def _cumsum_launches(tensor: Tensor, dim: int, **keywords: Any) -> int:
    """``cuda/ScanKernels.cpp``: CUB's two for all in one row, else one."""
    if not tensor.numel():
        return 0
    in_one_row = tensor.dim() == 0 or tensor.shape[dim] == tensor.numel()
    return 1 + in_one_row + _cumsum_converts(tensor, keywords)


def _indices(indices: Sequence[Tensor | None]) -> list[Tensor]:
    return [one for one in indices if one is not None]


def _places(found: Sequence[Tensor]) -> int:
    """How many places several indices name together."""
    shape: torch.Size = torch.broadcast_shapes(*(one.shape for one in found))  # type: ignore[no-untyped-call]
    return math.prod(shape)


def _passes(tensor: Tensor, indices: Sequence[Tensor | None]) -> int:
    """Digits of the largest place: places are sorted by no more."""
    rows = math.prod(tensor.shape[at] for at, one in enumerate(indices) if one is not None)
    return math.ceil(max(1, (rows - 1).bit_length()) / _DIGIT_BITS)


def _index_put(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> int:
    """``cuda/Indexing.cu``, where rows add up: the places, sorted, with their order; in several passes twice."""
    found = _indices(indices)
    if not accumulate or not found:
        return 0
    count = _places(found)
    return count * _INDEX * (4 if count <= ONE_TILE or _passes(tensor, indices) == 1 else 6) + 1


def _index_put_unchecked(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> int:
    """Where rows add up, places are sorted first: in one kernel, or a histogram, its sums and a pass a digit."""
    found = _indices(indices)
    if not accumulate or not found:
        return 1
    return 3 + 3 * len(found) + (1 + _passes(tensor, indices) if _places(found) > ONE_TILE else 0)


def _index_put_in_place(
    tensor: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False, *_: Any, **__: Any
) -> int:
    checks = _CHECKS * len(_indices(indices)) if accumulate else 0
    return _index_put_unchecked(tensor, indices, values, accumulate) + checks


def _index_put_launches(*arguments: Any, **keywords: Any) -> int:
    return 1 + _index_put_in_place(*arguments, **keywords)


def _has_bounds(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Of ``histc``: by default, 0 and 0, it looks for the least and the largest itself."""
    least, most = ([*arguments[1:3], 0, 0][at] for at in (0, 1))
    return bool(keywords.get("min", least) != keywords.get("max", most))


def _histc(tensor: Tensor, *arguments: Any, **keywords: Any) -> int:
    return 0 if _has_bounds(arguments, keywords) or not tensor.numel() else 2 * tensor.element_size()


def _histc_launches(tensor: Tensor, *arguments: Any, **keywords: Any) -> int:
    """``cuda/SummaryOps.cu``: zeros, then the counts."""
    return 1 + (1 + (not _has_bounds(arguments, keywords)) if tensor.numel() else 0)


def _weights_converted(weights: Tensor | None) -> bool:
    return weights is not None and weights.dtype not in (torch.float32, torch.float64)


def _bincount(tensor: Tensor, weights: Tensor | None = None, *_: Any, **__: Any) -> int:
    """The least and the largest; weights in float64, where they are neither that nor float32."""
    if not tensor.numel():
        return 0
    return 2 * tensor.element_size() + (tensor.numel() * 8 if _weights_converted(weights) else 0)


def _bincount_launches(tensor: Tensor, weights: Tensor | None = None, *_: Any, **__: Any) -> int:
    return 3 + _weights_converted(weights) if tensor.numel() else 1


def grouped_mm_launches(
    architecture: int, left: Tensor, right: Tensor, offs: Tensor | None = None, *_: Any, **__: Any
) -> int:
    """``cuda/GroupedBlas.cpp``: the groups' addresses, then all products, in bfloat16 on 9.0 and 10.0 alone.

    Elsewhere the offsets are copied to the host, which launches a product for each group; without offsets one for all.
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
    "histc": _histc,
    "bincount": _bincount,
}

LAUNCHES: dict[str, int | Callable[..., int]] = {
    "sort": _sort_launches,
    "topk": _topk_launches,
    "cumsum": _cumsum_launches,
    "index_put": _index_put_launches,
    "index_put_": _index_put_in_place,
    "_index_put_impl_": _index_put_unchecked,
    "histc": _histc_launches,
    "bincount": _bincount_launches,
    # A copy, then the same in place.
    "scatter": 2,
    "scatter_add": 2,
    "scatter_reduce": 3,
    "index_add": 2,
    "index_copy": 3,
    "index_fill": 2,
}
