"""The temporary staging buffers of reductions, from the way CUDA divides a reduction among thread blocks.

A sum with many inputs for each result, and few results, is divided among several blocks, which write partial results to
global memory. The division follows ``setReduceConfig`` and ``gpu_reduce_kernel`` in ``ATen/native/cuda/Reduce.cuh``;
the order of dimensions follows ``reorder_dimensions`` and ``coalesce_dimensions`` in ``ATen/TensorIterator.cpp``. The
division depends on the GPU's multiprocessors, and not on a kernel's registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch

from perflab.predicted.data_sheets import Gpu

WARP = 32
MOST_THREADS = 512
"""The most threads of a block that reduces: ``mnt_wrapper``."""
LEAST_VALUES, MOST_VALUES = 16, 256
"""The least and the most inputs per thread: ``min_values_per_thread`` and ``max_values_per_thread``."""
_ADDRESSABLE = 2**31 - 1
"""The most elements, and the farthest byte, that one kernel can address: ``can_use_32bit_indexing``."""


class _Dim(NamedTuple):
    """One dimension of an iteration, with strides in elements; the result's stride is 0 in a reduced dimension."""

    size: int
    stride: int
    result_stride: int


class Reduction(NamedTuple):
    """An operator that uses ``cuda/Reduce.cuh``."""

    dims_at: int
    """The position of the argument for dimensions, after the tensor."""
    accumulated: Callable[[torch.dtype, torch.dtype], int]
    """Returns the bytes of an accumulator (``arg_t``) for the dtypes of the tensor and the result."""
    is_sum: bool = False
    """Whether the operand is converted to the result's dtype first."""


def _as_sum(dtype: torch.dtype, result: torch.dtype) -> int:
    """Return the bytes of ``acc_type``: half precision accumulates in float32, integers in the result's dtype."""
    return max(4, result.itemsize) if dtype.is_floating_point else result.itemsize


def _with_index(dtype: torch.dtype, _: torch.dtype) -> int:
    return 16  # a value of up to 8 bytes, aligned with the index of 8


def _welford(dtype: torch.dtype, _: torch.dtype) -> int:
    """Return the bytes of a mean, a sum of squares and two counts: ``WelfordData``."""
    return 32 if dtype is torch.float64 else 16


_SUM, _INDEXED, _VARIANCE = Reduction(0, _as_sum, is_sum=True), Reduction(0, _with_index), Reduction(0, _welford)
_LARGEST = Reduction(0, lambda dtype, _: dtype.itemsize)
REDUCTIONS: dict[str, Reduction] = {
    **dict.fromkeys(("mean", "nansum", "prod", "sum"), _SUM),
    **dict.fromkeys(("linalg_vector_norm", "norm"), _SUM._replace(dims_at=1)),
    **dict.fromkeys(("all", "any"), Reduction(0, lambda *_: 1)),
    **dict.fromkeys(("amax", "amin", "max", "min"), _LARGEST),
    "aminmax": Reduction(0, lambda dtype, _: 2 * dtype.itemsize),
    **dict.fromkeys(("argmax", "argmin", "max.dim", "min.dim"), _INDEXED),
    **dict.fromkeys(("std", "std_mean", "var", "var_mean"), _VARIANCE),
}
"""The operators, by name; two that return an index too if they are given a dimension have a second name for it."""


def staging(tensor: torch.Tensor, dims: Sequence[int] | None, accumulated: int, gpu: Gpu) -> tuple[int, int]:
    """Return the bytes of a reduction's two temporary blocks: partial results, and a counter per group of blocks.

    Args:
        tensor: the tensor to reduce.
        dims: the dimensions to reduce; None or an empty sequence: all.
        accumulated: the bytes of an accumulator, in which partial results are kept.
        gpu: the GPU that reduces.
    """
    if tensor.numel() == 0 or tensor.dtype.is_complex:
        return 0, 0
    over = {dim % max(1, tensor.dim()) for dim in dims} if dims else set(range(tensor.dim()))
    found = _dims(tensor, over)
    return _staging(found, tensor.element_size(), accumulated, int(tensor.storage_offset()), gpu)


def _dims(tensor: torch.Tensor, over: set[int]) -> list[_Dim]:
    """Return the dimensions in the order of the iteration, with neighbours that form one dimension merged.

    Reduced dimensions come first, by their strides; then come the other dimensions, by the result's strides.
    """
    strides, step = {}, 1
    for dim in reversed(range(tensor.dim())):
        strides[dim] = 0 if dim in over else step
        step *= 1 if dim in over else tensor.shape[dim]
    every = [
        _Dim(tensor.shape[dim], tensor.stride(dim), strides[dim])
        for dim in reversed(range(tensor.dim()))
        if tensor.shape[dim] > 1
    ]
    reduced = sorted((one for one in every if not one.result_stride), key=lambda one: one.stride)
    merged: list[_Dim] = []
    for one in (*reduced, *sorted((one for one in every if one.result_stride), key=lambda one: one.result_stride)):
        last = merged[-1] if merged else None
        if last is not None and (last.size * last.stride, last.size * last.result_stride) == one[1:]:
            merged[-1] = last._replace(size=last.size * one.size)
        else:
            merged.append(one)
    return merged


def _staging(dims: list[_Dim], itemsize: int, accumulated: int, offset: int, gpu: Gpu) -> tuple[int, int]:
    farthest = sum((one.size - 1) * one.stride for one in dims) * itemsize
    if math.prod(one.size for one in dims) > _ADDRESSABLE or farthest > _ADDRESSABLE:
        # with_32bit_indexing(): the dimension that reaches farthest is halved; the halves run one after the other.
        at = max(range(len(dims)), key=lambda one: (dims[one].size - 1) * dims[one].stride)
        half = dims[at].size // 2
        parts = [
            _staging([*dims[:at], dims[at]._replace(size=size), *dims[at + 1 :]], itemsize, accumulated, offset, gpu)
            for size in (half, dims[at].size - half)
        ]
        return max(parts)
    config = _divided(dims, offset, 8 if itemsize == 2 else 4, gpu)
    return config.staging_bytes(accumulated)


@dataclass
class _Division:
    """The division of a reduction among threads and blocks: ``ReduceConfig``."""

    outputs: int
    inputs: int
    vector: int = 1
    """The number of results per thread: ``output_vec_size``."""
    width: int = 1
    step_input: int = 1
    step_output: int = 1
    blocks: int = 1
    """The number of blocks per result: ``ctas_per_output``."""
    reduces_in_width: bool = False

    @property
    def values(self) -> int:
        """The number of inputs per thread: ``values_per_thread``."""
        return math.ceil(self.inputs / self.step_input)

    @property
    def grid(self) -> int:
        return math.ceil(self.outputs // self.vector / self.step_output)

    def staging_bytes(self, accumulated: int) -> tuple[int, int]:
        """Return the bytes of partial results and of counters: ``global_memory_size`` and ``semaphore_size``."""
        if self.blocks == 1:
            return 0, 0
        lanes = 1 if self.reduces_in_width else self.width * self.vector
        return accumulated * self.outputs * self.blocks * lanes, 4 * self.grid


def _divided(dims: list[_Dim], offset: int, input_vector: int, gpu: Gpu) -> _Division:
    """Divide a reduction among threads and blocks as ``setReduceConfig`` does."""
    counts = {kept: math.prod(one.size for one in some) for kept, some in groupby(dims, lambda one: bool(one[2]))}
    config = _Division(outputs=counts.get(True, 1), inputs=counts.get(False, 1))
    reduced = sum(not one.result_stride for one in dims)
    fastest = not dims or reduced == len(dims) or (reduced > 0 and dims[0].stride < dims[reduced].stride)
    across, down = (config.inputs, config.outputs) if fastest else (config.outputs, config.inputs)
    if dims and dims[0 if fastest else reduced].stride == 1:
        if fastest and across >= 128 and reduced == 1:
            across //= input_vector
        elif not fastest:
            config.vector = _vector(dims, reduced, offset)
            across //= config.vector
    most = MOST_THREADS // config.vector
    across, down = (_power_of_two_within(one, most) for one in (across, down))
    height = min(down, most // min(across, WARP))
    config.width = min(across, most // height)
    config.reduces_in_width = fastest
    if fastest:
        config.step_input *= config.width
    else:
        config.step_output *= config.width
    if config.values < min(height * 16, MOST_VALUES):
        config.step_output *= height
        return config
    config.step_input *= height
    at_once = gpu.sms * (gpu.threads_of_sm // (config.width * height))
    if config.values >= MOST_VALUES and config.grid <= at_once:
        fill, least = math.ceil(at_once / config.grid), math.ceil(config.values / MOST_VALUES)
        config.blocks = max(min(fill, math.ceil(config.values / LEAST_VALUES)), least)
    return config


def _vector(dims: list[_Dim], reduced: int, offset: int) -> int:
    """Return the number of results per thread (``get_output_vec_size``); storages begin at multiples of 512 B."""
    others = [one.stride for at, one in enumerate(dims) if at != reduced]
    return math.gcd(4, offset, dims[reduced].size, *others)


def _power_of_two_within(number: int, most: int) -> int:
    return most if number >= most else 1 << (max(1, number).bit_length() - 1)
