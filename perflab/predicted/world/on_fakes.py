"""Lets DDP, FSDP2 and ``DeviceMesh`` run on fake tensors, where they read numbers: ranks, and the order of buckets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.dispatch import without_dispatch_modes, without_torch_function
from perflab.internals.of_torch.fakes import is_fake
from perflab.internals.of_torch.patched import (
    before_forward_of_ddp,
    making_of_a_mesh,
    making_of_ddp,
    parameters_compared_by_ddp,
)
from perflab.predicted.cuda.patching import attributes_replaced
from perflab.predicted.trace.operators import tensors_in


@contextmanager
def ranks_on_fakes() -> Iterator[None]:
    """Within the block, a rank can shard a model of fake tensors, wrap it in DDP and train it.

    Nothing is compared between ranks, since the others do not exist.
    """
    mesh, of_ddp = making_of_a_mesh(), [making_of_ddp(), before_forward_of_ddp()]
    make = getattr(*mesh)

    def make_mesh(self: Any, *arguments: Any, _rank_map: Any = None, **keywords: Any) -> None:
        with without_dispatch_modes(), without_torch_function():
            if is_fake(_rank_map):  # without a mesh of the caller's own it is always 0, 1, 2 and so on
                _rank_map = torch.arange(_rank_map.numel(), dtype=torch.int)
            make(self, *arguments, _rank_map=_rank_map, **keywords)

    def with_real_indices(usual: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            with _RealIndices():
                return usual(*arguments, **keywords)

        return call

    replaced = [(*mesh, make_mesh), (*parameters_compared_by_ddp(), lambda *_: None)]
    replaced += [(*one, with_real_indices(getattr(*one))) for one in of_ddp]
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
