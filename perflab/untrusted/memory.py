"""Tensors in memory that the judge and another process share, and where the outputs of that process lie."""

from __future__ import annotations

import fcntl
import math
import mmap
import os
import secrets
from collections.abc import Sequence

import torch
from torch import Tensor

from perflab.untrusted.errors import UnfitError
from perflab.untrusted.messages import TensorAt

_ALIGNED = 64
_PLACES = 61
"""The number of aligned places within some pages at which a tensor may begin, drawn at random for each call."""
_MOST_BYTES = 1 << 32
_DTYPES = frozenset(
    ("float16", "bfloat16", "float32", "float64", "complex64", "complex128", "bool", "uint8", "int8", "int16", "int32")
).union(
    ("int64", "uint16", "uint32", "uint64"),
    ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
NAME = "inputs"
"""The name of shared memory, as the kernel lists it."""


class Shared:
    """Memory that the judge and one process share."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.handle = os.memfd_create(NAME, os.MFD_ALLOW_SEALING)
        os.ftruncate(self.handle, size)
        fcntl.fcntl(self.handle, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._pages = mmap.mmap(self.handle, size)

    def __del__(self) -> None:
        os.close(self.handle)

    def bytes_at(self, place: TensorAt) -> Tensor:
        """Return the memory at a place, as bytes."""
        if not place.size:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(self._pages, dtype=torch.uint8, count=place.size, offset=place.at)


def placed(sets: Sequence[Sequence[Tensor]], at: int) -> tuple[list[list[TensorAt]], int]:
    """Return random places for tensors in the shared memory behind an offset, and where the last one ends."""
    told: list[list[TensorAt]] = []
    for tensors in sets:
        told.append([])
        for tensor in tensors:
            at += _ALIGNED * (1 + secrets.randbelow(_PLACES))
            told[-1].append(form_of(tensor, at))
            at += -(-told[-1][-1].size // _ALIGNED) * _ALIGNED
    return told, at


def form_of(tensor: Tensor, at: int, *, in_arguments: bool = False) -> TensorAt:
    """Return the form of a tensor whose storage begins at a place or an address."""
    return TensorAt(
        at=at,
        size=tensor.untyped_storage().nbytes(),
        dtype=str(tensor.dtype).removeprefix("torch."),
        shape=list(tensor.shape),
        stride=list(tensor.stride()),
        offset=int(tensor.storage_offset()),
        needs_gradient=tensor.requires_grad,
        in_arguments=in_arguments,
    )


def extent_of(told: TensorAt) -> tuple[torch.dtype, int, int]:
    """Return the dtype of an output, and the addresses at which its bytes begin and end; equal ones if it has none.

    Raises:
        UnfitError: the form makes no sense, or is larger than what a judge reads.
    """
    if told.dtype not in _DTYPES or len(told.shape) != len(told.stride):  # sizes have the bounds of the message
        raise UnfitError("the form of its output makes no sense")
    dtype: torch.dtype = getattr(torch, told.dtype)
    if math.prod(max(1, one) for one in told.shape) * dtype.itemsize > _MOST_BYTES:
        raise UnfitError("its output is larger than 4 GiB")
    if 0 in told.shape:
        return dtype, told.at, told.at
    last = told.offset + sum((n - 1) * step for n, step in zip(told.shape, told.stride, strict=True))
    begins, ends = told.offset * dtype.itemsize, (last + 1) * dtype.itemsize
    if ends > told.size or ends - begins > _MOST_BYTES:
        raise UnfitError("its output does not lie within the memory that it names, or is spread over 4 GiB")
    return dtype, told.at + begins, told.at + ends
