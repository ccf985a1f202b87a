"""Lets DDP, FSDP2 and ``DeviceMesh`` run on fake tensors, where they read numbers: ranks, and the order of buckets.

A group of one process has a store of its own, in a dry run too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, cast

import torch
from torch.distributed import Store, Work  # type: ignore[attr-defined] # Store is public, and not in __all__

from perflab.internals.of_torch import OpOverload, TorchDispatchMode
from perflab.internals.of_torch.dispatch import (
    answer_alone,
    dispatch_modes_off,
    schema_of,
    without_dispatch_modes,
    without_torch_function,
)
from perflab.internals.of_torch.patched import (
    BACKWARD,
    BEFORE_FORWARD_OF_DDP,
    MAKING_OF_A_MESH,
    MAKING_OF_DDP,
    METADATA_OF_DTENSORS,
    PARAMETERS_COMPARED_BY_DDP,
    attributes_replaced,
)
from perflab.internals.of_torch.tracing import is_fake, storage_key
from perflab.predicted.cuda.devices import put_on_host
from perflab.predicted.trace.operators import tensors_in
from perflab.predicted.world.lone_rank import LoneRank

_ID_BYTES = 128


@contextmanager
def ranks_on_fakes(alone: LoneRank) -> Iterator[None]:
    """Within the block, a rank can shard a model of fake tensors, wrap it in DDP and train it.

    Nothing is compared between ranks, since the others do not exist. The rank notes that DDP is used.
    """
    mesh = MAKING_OF_A_MESH.target()
    make_mesh = getattr(*mesh)
    real_indices = cast("Any", _RealIndices)

    def make_mesh_here(self: Any, device_type: str, *arguments: Any, _rank_map: Any = None, **keywords: Any) -> None:
        device_type = "cpu" if is_fake(torch.empty(0)) else device_type  # where fake tensors that stand for CUDA's are
        with without_dispatch_modes(), without_torch_function():
            if is_fake(_rank_map):  # without a mesh of the caller's own it is always 0, 1, 2 and so on
                _rank_map = torch.arange(_rank_map.numel(), dtype=torch.int)
                put_on_host(_rank_map)
            make_mesh(self, device_type, *arguments, _rank_map=_rank_map, **keywords)

    def making_ddp() -> Any:
        alone.uses_ddp = True
        return real_indices()

    replaced = [
        (*mesh, make_mesh_here),
        # Whole tensors, which no rank has; PyTorch 2.11 asks in every step of an optimizer.
        METADATA_OF_DTENSORS.run_in(dispatch_modes_off),
        MAKING_OF_DDP.run_in(making_ddp),
        BEFORE_FORWARD_OF_DDP.run_in(real_indices),
        BACKWARD.run_in(lambda: real_indices() if alone.uses_ddp else nullcontext()),
        (*PARAMETERS_COMPARED_BY_DDP.target(), lambda *_: None),
    ]
    with attributes_replaced(replaced):
        yield


class _RealIndices(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Has DDP's C++ write down the order of buckets, and what a step used: 32-bit integers in real memory."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = list(tensors_in([args, kwargs]))
        are_indices = all(one.dtype is torch.int32 and not is_fake(one) for one in tensors)
        if are_indices and (tensors or kwargs.get("dtype") is torch.int32):
            with without_dispatch_modes():
                return func(*args, **kwargs)
        return func(*args, **kwargs)


class AnsweredAlone:
    """Answers collectives at once, without communication.

    NCCL keeps what an asynchronous collective takes until somebody waits for it, and so does this.
    """

    def __init__(self) -> None:
        self._taken: dict[int, tuple[Any, ...]] = {}
        """The arguments of collectives that nobody has waited for, by the storage of their first result."""

    def answer(self, operator: OpOverload, arguments: tuple[Any, ...]) -> Any:
        """Return the results of an operator of ``c10d``: its tensors as they are."""
        is_async = next((at for at, one in enumerate(schema_of(operator).arguments) if one.name == "async_op"), None)
        if is_async is not None and all(arguments[is_async : is_async + 1]):  # left out where it is true
            self._taken.update((key, arguments) for key in _keys_in(arguments[:1]))
        return answer_alone(operator, arguments)

    def waited(self, work: Work) -> None:
        """Let go what a collective has taken."""
        for key in _keys_in(work.get_future().value()):
            self._taken.pop(key, None)


def _keys_in(value: Any) -> list[int]:
    return [storage_key(one.untyped_storage()) for one in tensors_in(value)]


def store_of_one() -> Store:
    """Return a store that answers alone: whoever waits for another rank's key does not wait, and reads zeros."""
    return _StoreOfOne()


class _StoreOfOne(Store):
    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, bytes] = {}

    def set(self, key: str, value: str | bytes) -> None:
        self._known[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key: str) -> bytes:
        return self._known.get(key, bytes(_ID_BYTES))

    def add(self, key: str, amount: int) -> int:
        total = int(self._known.get(key, b"0")) + amount
        self._known[key] = str(total).encode()
        return total

    def check(self, keys: list[str]) -> bool:
        return all(key in self._known for key in keys)

    def wait(self, *_: object) -> None:
        """Wait for no one."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self._known.setdefault(key, desired.encode())

    def delete_key(self, key: str) -> bool:
        return self._known.pop(key, None) is not None

    def num_keys(self) -> int:
        return len(self._known)

    def set_timeout(self, _: object) -> None:
        """Take note of nothing: no call waits."""
