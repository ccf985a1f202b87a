"""Collectives of `torch.distributed` by size and number of processes, as nccl-tests counts their bandwidth.

S bytes, n processes, t the time of the slowest one: `bytes/s` is the algorithm bandwidth S / t, `bus_bytes/s` is that
times the factor by which hardware has to move the data (nccl-tests, doc/PERFORMANCE.md):

    all-reduce  2 (n - 1) / n        all-gather, reduce-scatter, all-to-all  (n - 1) / n        broadcast, send  1

S is the whole array: of an all-gather what each process has afterwards, of a reduce-scatter what it has before. The
medians of all processes stand in the results (`measurement.ranks`): nccl-tests shows their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, distributed

from perflab import Perf
from tests.perf.choice import collective_sizes

from .published import all_reduce_quotes

ALL_WORLDS = [2, 4, 6]
COPIES = 3.0
"""The tensors of a case and what gloo allocates for it, as multiples of S."""


@dataclass(frozen=True)
class Collective:
    """A collective of n processes: its factor of bandwidth, and how its tensors are made and checked."""

    bus_factor: Callable[[int], float]
    make: Callable[[Tensor, int, int], tuple[Callable[[], object], Tensor, Callable[[], Tensor]]]
    """From the array x (S,), r and n: the call, the tensor that it writes, and what that has to be."""


def all_reduce(x: Tensor, rank: int, world: int) -> tuple[Callable[[], object], Tensor, Callable[[], Tensor]]:
    x.fill_(rank + 1)
    return lambda: distributed.all_reduce(x), x, lambda: torch.full_like(x, world * (world + 1) / 2)


def broadcast(x: Tensor, rank: int, world: int) -> tuple[Callable[[], object], Tensor, Callable[[], Tensor]]:
    x.fill_(rank + 1)
    return lambda: distributed.broadcast(x, 0), x, lambda: torch.ones_like(x)


def all_gather(x: Tensor, rank: int, world: int) -> tuple[Callable[[], object], Tensor, Callable[[], Tensor]]:
    own = torch.full_like(x[: len(x) // world], rank + 1)
    return lambda: distributed.all_gather_into_tensor(x, own), x, lambda: by_rank(x, world)


def reduce_scatter(x: Tensor, rank: int, world: int) -> tuple[Callable[[], object], Tensor, Callable[[], Tensor]]:
    x.fill_(rank + 1)
    own = torch.empty_like(x[: len(x) // world])
    total = world * (world + 1) / 2
    return lambda: distributed.reduce_scatter_tensor(own, x), own, lambda: torch.full_like(own, total)


def all_to_all(x: Tensor, rank: int, world: int) -> tuple[Callable[[], object], Tensor, Callable[[], Tensor]]:
    given = torch.full_like(x, rank + 1)
    return lambda: distributed.all_to_all_single(x, given), x, lambda: by_rank(x, world)


def send(x: Tensor, rank: int, world: int) -> tuple[Callable[[], object], Tensor, Callable[[], Tensor]]:
    """From rank 0 to the last; the others in between only wait."""
    x.fill_(rank + 1)
    last = world - 1

    def call() -> None:
        if rank == 0:
            distributed.send(x, last)
        elif rank == last:
            distributed.recv(x, 0)

    return call, x, lambda: torch.full_like(x, 1 if rank == last else rank + 1)


def by_rank(x: Tensor, world: int) -> Tensor:
    """An array of n parts, part r filled with r + 1."""
    return torch.arange(1, world + 1, device=x.device).to(x.dtype).repeat_interleave(len(x) // world)


def share(world: int) -> float:
    return (world - 1) / world


COLLECTIVES = {
    "all_reduce": Collective(lambda world: 2 * share(world), all_reduce),
    "reduce_scatter": Collective(share, reduce_scatter),
    "all_gather": Collective(share, all_gather),
    "broadcast": Collective(lambda world: 1.0, broadcast),
    "all_to_all": Collective(share, all_to_all),
    "send": Collective(lambda world: 1.0, send),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A case for each size that --collective-size names."""
    if "size" in metafunc.fixturenames:
        metafunc.parametrize("size", list(collective_sizes(metafunc.config)))


@pytest.mark.perf(
    world_size=ALL_WORLDS,
    study="collectives",
    columns="median, spread, bytes/s, bus_bytes/s, quoted",
    budget=4,
    last=True,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collective(
    perf: Perf,
    process_group: distributed.ProcessGroup,
    device: torch.device,
    rank: int,
    world_size: int,
    request: pytest.FixtureRequest,
    name: str,
    size: str,
    dtype: str,
) -> None:
    num_bytes = collective_sizes(request.config)[size]
    of_dtype: torch.dtype = getattr(torch, dtype)
    length = num_bytes // of_dtype.itemsize // world_size * world_size  # in equal parts
    num_bytes = length * of_dtype.itemsize
    perf.requires(memory_bytes=COPIES * num_bytes)
    perf.work(bytes=num_bytes, bus_bytes=COLLECTIVES[name].bus_factor(world_size) * num_bytes)
    if (name, dtype) == ("all_reduce", "float32"):
        for source, seconds in all_reduce_quotes(size, world_size).items():
            perf.quote(source, seconds=seconds)
    call, written, wanted = COLLECTIVES[name].make(torch.empty(length, dtype=of_dtype, device=device), rank, world_size)
    call()
    assert torch.equal(written, wanted())
    written.zero_()  # sums of sums would overflow soon
    perf(call)
