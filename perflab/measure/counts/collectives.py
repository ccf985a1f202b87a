"""Counts the collectives of one call, by kind and dtype, and the bytes of their tensors.

- ``collectives``: calls of a process group's operations, whoever makes them: Python, DDP in C++, a compiled graph.
- ``collective_bytes``: bytes of their tensors in this rank, each time of the larger side: of an all-gather what it
  returns, of a reduce-scatter what it is given. That is S in nccl-tests' bandwidths.
- ``collectives:all_reduce:float32``: the calls of one kind with tensors of one dtype. Forms of one kind
  (``reduce_scatter``, ``reduce_scatter_tensor``, their functional and coalesced forms) count as that kind.

A barrier has no bytes. Waits are not counted: a process group's work is waited for without an operator.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from perflab.internals.of_torch.dispatch import seeing_operators

KINDS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "recv_any_source": "recv",
    "monitored_barrier": "barrier",
}
"""Kinds of operators whose own names, without a final underscore, are others."""
BY_KIND = "collectives:"
"""The beginning of the names of counts by kind and dtype."""
_NO_COLLECTIVES = ("check_for_nan",)


def communicates() -> bool:
    """Whether this process has joined a process group, so that its calls may communicate."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def collectives_of(call: Callable[[], Any]) -> dict[str, int]:
    """Make a call, and return its counts of collectives; zeros if it makes none."""
    counts: Counter[str] = Counter(collectives=0, collective_bytes=0)

    def see(name: str, arguments: tuple[Any, ...]) -> None:
        plain = name.removesuffix("_")
        if plain in _NO_COLLECTIVES:
            return
        kind = KINDS.get(plain, plain)
        sides = [list(_tensors(side)) for side in arguments[:2]]
        dtype = next((str(one.dtype).removeprefix("torch.") for side in sides for one in side), "")
        counts["collectives"] += 1
        counts[f"{BY_KIND}{kind}" if kind == "barrier" else f"{BY_KIND}{kind}:{dtype}"] += 1
        if kind != "barrier":  # its tensor is a stand-in that selects the device
            counts["collective_bytes"] += max(sum(one.nbytes for one in side) for side in sides)

    with seeing_operators("c10d", see):
        call()
    return dict(counts)


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
