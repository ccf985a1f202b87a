"""Runs Gluon's kernels on tensors, program by program: all that can be known of one without a GPU.

The kernel's own source is called with stand-ins for Gluon's language. An asynchronous copy leaves NaN where it goes,
and arrives when its group is waited for, so a wait that is missing, or a tile that is overwritten before it was read,
is seen. Layouts mean nothing here, and warps do not exist: what these do wrong is not seen.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Pointer:
    """Places in a tensor's memory: one, or a tile of them."""

    memory: Tensor
    places: Tensor

    def __add__(self, offset: Any) -> Pointer:
        return Pointer(self.memory, self.places + offset)

    @property
    def dtype(self) -> types.SimpleNamespace:
        """The type of the pointer, which has that of its elements."""
        return types.SimpleNamespace(element_ty=self.memory.dtype)


class Shared:
    """A tile of shared memory."""

    def __init__(self, data: Tensor) -> None:
        self.data, self.dtype = data, data.dtype

    def index(self, number: Any) -> Shared:
        """Return one of several tiles."""
        return Shared(self.data[int(number)])

    def slice(self, first: int, rows: int) -> Shared:
        """Return some rows."""
        return Shared(self.data[first : first + rows])

    def permute(self, order: tuple[int, ...]) -> Shared:
        """Return the tile with its dimensions in another order."""
        return Shared(self.data.permute(order))

    def load(self, _layout: object) -> Tensor:
        """Read the tile."""
        return self.data.clone()

    def store(self, values: Tensor) -> None:
        """Write the tile."""
        self.data.copy_(values)


class _Language:
    """The functions of ``triton.experimental.gluon.language`` and of ``triton.language`` for one program."""

    int64, float32 = torch.int64, torch.float32
    SliceLayout = DotOperandLayout = staticmethod(lambda *_: None)
    where, exp2 = staticmethod(torch.where), staticmethod(torch.exp2)
    static_range = builtins.range

    def __init__(self, number: int) -> None:
        self._number = number

    def program_id(self, _axis: int) -> Tensor:
        return torch.tensor(self._number)

    def arange(self, first: int, end: int, layout: object = None) -> Tensor:
        return torch.arange(first, end)

    def zeros(self, shape: list[int], dtype: torch.dtype, layout: object = None) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def minimum(self, one: Any, other: Any) -> Tensor:
        return torch.minimum(torch.as_tensor(one), torch.as_tensor(other))

    def maximum(self, one: Any, other: Any) -> Tensor:
        return torch.maximum(torch.as_tensor(one), torch.as_tensor(other))

    def cdiv(self, one: Any, other: int) -> Tensor:
        return -(-torch.as_tensor(one) // other)

    def load(self, pointer: Pointer) -> Tensor:
        return pointer.memory[pointer.places]

    def store(self, pointer: Pointer, values: Tensor) -> None:
        pointer.memory[pointer.places] = values

    def atomic_add(self, pointer: Pointer, values: Tensor, sem: str) -> None:
        pointer.memory.index_add_(0, pointer.places.flatten(), values.flatten())

    def allocate_shared_memory(self, dtype: torch.dtype, shape: list[int], _layout: object) -> Shared:
        return Shared(torch.full(shape, float("nan"), dtype=dtype))


class _Copies:
    """Asynchronous copies to shared memory, in groups."""

    def __init__(self) -> None:
        self._begun: list[tuple[Tensor, Tensor]] = []
        self._groups: list[list[tuple[Tensor, Tensor]]] = []

    def load(self, tile: Shared, pointer: Pointer) -> None:
        self._begun.append((tile.data, pointer.memory[pointer.places]))
        tile.data.fill_(float("nan"))

    def commit_group(self) -> None:
        self._groups.append(self._begun)
        self._begun = []

    def wait_group(self, outstanding: int) -> None:
        while len(self._groups) > outstanding:
            for target, values in self._groups.pop(0):
                target.copy_(values)


def _range(first: Any, end: Any, step: int) -> Iterator[Tensor]:
    return map(torch.tensor, builtins.range(int(first), int(end), step))


def run(kernel: Any, programs: int, arguments: Mapping[str, Any]) -> None:
    """Run the kernel's programs one after another; tensors among the arguments are given as pointers.

    Raises:
        IndexError: a program reads or writes beyond the memory of a tensor.
    """
    given: dict[str, Any] = {}
    for name, value in arguments.items():
        is_tensor = isinstance(value, Tensor)
        given[name] = Pointer(_memory_of(value), torch.tensor(0)) if is_tensor else value
    for number in range(programs):
        language, copies = _Language(number), _Copies()
        stands_for = {
            "gl": language,
            "tl": language,
            "async_copy": copies,
            "copy_to_shared": copies.load,
            "range": _range,
        }
        stands_for["mma_v2"] = lambda left, right, sums: sums + left.float() @ right.float()
        _called(kernel, stands_for)(**given)


def _memory_of(tensor: Tensor) -> Tensor:
    """Return a tensor's memory from its first element on, without strides."""
    memory = tensor.untyped_storage().nbytes() // tensor.itemsize - tensor.storage_offset()
    return tensor.as_strided((memory,), (1,))


def _called(kernel: Any, stands_for: Mapping[str, Any]) -> Any:
    """Return a kernel's function, and those that it calls, with stand-ins; constants are their values."""
    names = dict(kernel.fn.__globals__)
    for name in kernel.fn.__code__.co_names:
        value = names.get(name)
        if name in stands_for:
            names[name] = stands_for[name]
        elif hasattr(value, "fn"):
            names[name] = _called(value, stands_for)
        elif hasattr(value, "value"):
            names[name] = value.value
    return types.FunctionType(kernel.fn.__code__, names, kernel.fn.__name__, kernel.fn.__defaults__)
