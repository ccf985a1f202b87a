"""The staging buffers that reductions take in passing, by how CUDA divides them among thread blocks.

A sum with many numbers for each result and few results is divided among several blocks, which leave their parts in
global memory. The division follows ``setReduceConfig`` and ``gpu_reduce_kernel`` in ``ATen/native/cuda/Reduce.cuh``,
the order of dimensions ``reorder_dimensions`` and ``coalesce_dimensions`` in ``ATen/TensorIterator.cpp``. It asks for
the GPU's multiprocessors, and not for a kernel's registers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import torch

WARP = 32
MOST_THREADS = 512
"""Of a block that reduces: ``mnt_wrapper``."""
LEAST_VALUES, MOST_VALUES = 16, 256
"""Of a thread: ``min_values_per_thread`` and ``max_values_per_thread``."""
_ADDRESSABLE = 2**31 - 1
"""Numbers and bytes that one kernel can address: ``can_use_32bit_indexing``."""
_THREADS_OF_SM = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536, 121: 1536}
_THREADS_OF_OTHER_SMS = 2048


class Processor(NamedTuple):
    """The properties of a GPU that its kernels and their number depend on."""

    sms: int
    architecture: int
    """Its compute capability, 90 for 9.0."""

    @property
    def threads_of_sm(self) -> int:
        """``maxThreadsPerMultiProcessor``."""
        return _THREADS_OF_SM.get(self.architecture, _THREADS_OF_OTHER_SMS)


class _Dim(NamedTuple):
    """One dimension of an iteration: strides in numbers, 0 of a result that is reduced over it."""

    size: int
    stride: int
    result_stride: int


def staging(
    tensor: torch.Tensor, dims: Sequence[int] | None, result_dtype: torch.dtype, gpu: Processor
) -> tuple[int, int]:
    """Bytes of the two blocks that a reduction over ``dims`` takes: the parts, and a counter for each group of blocks.

    Args:
        tensor: what is reduced.
        dims: over which dimensions; none or an empty sequence: over all.
        result_dtype: what the result is of; parts are of what it is accumulated in.
        gpu: on what.
    """
    if tensor.numel() == 0 or tensor.dtype.is_complex:
        return 0, 0
    accumulated = _accumulated_bytes(tensor.dtype, result_dtype)
    over = {dim % max(1, tensor.dim()) for dim in dims} if dims else set(range(tensor.dim()))
    found = _dims(tensor, over)
    return _staging(found, tensor.element_size(), accumulated, int(tensor.storage_offset()), gpu)


def _accumulated_bytes(dtype: torch.dtype, result: torch.dtype) -> int:
    """``acc_type``: halves in float32, whole numbers as the result is."""
    return max(4, result.itemsize) if dtype.is_floating_point else result.itemsize


def _dims(tensor: torch.Tensor, over: set[int]) -> list[_Dim]:
    """Reduced dimensions first, by their strides; then the others by those of the result; neighbours that are one."""
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


def _staging(dims: list[_Dim], itemsize: int, accumulated: int, offset: int, gpu: Processor) -> tuple[int, int]:
    farthest = sum((one.size - 1) * one.stride for one in dims) * itemsize
    if math.prod(one.size for one in dims) > _ADDRESSABLE or farthest > _ADDRESSABLE:
        # with_32bit_indexing(): halves of the dimension that reaches farthest, one after the other.
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
    """``ReduceConfig``."""

    outputs: int
    inputs: int
    vector: int = 1
    """``output_vec_size``: results that a thread makes."""
    width: int = 1
    step_input: int = 1
    step_output: int = 1
    blocks: int = 1
    """``ctas_per_output``."""
    reduces_in_width: bool = False

    @property
    def values(self) -> int:
        """``values_per_thread``."""
        return math.ceil(self.inputs / self.step_input)

    @property
    def grid(self) -> int:
        return math.ceil(self.outputs // self.vector / self.step_output)

    def staging_bytes(self, accumulated: int) -> tuple[int, int]:
        """``global_memory_size`` and ``semaphore_size``."""
        if self.blocks == 1:
            return 0, 0
        lanes = 1 if self.reduces_in_width else self.width * self.vector
        return accumulated * self.outputs * self.blocks * lanes, 4 * self.grid


def _divided(dims: list[_Dim], offset: int, input_vector: int, gpu: Processor) -> _Division:
    """``setReduceConfig``."""
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
    """``get_output_vec_size``; storages begin at multiples of 512 B."""
    others = [one.stride for at, one in enumerate(dims) if at != reduced]
    return math.gcd(4, offset, dims[reduced].size, *others)


def _power_of_two_within(number: int, most: int) -> int:
    return most if number >= most else 1 << (max(1, number).bit_length() - 1)
