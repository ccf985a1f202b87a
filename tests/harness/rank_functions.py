"""Functions for test_ranks.py: new processes import them."""

from __future__ import annotations

import os
import signal
import threading
import time

import torch
from torch import distributed

from perflab.measure.calls.workload import Workload
from perflab.measure.counts.collectives import collectives_of
from perflab.measure.stopping import Plan
from perflab.measurement.measurement import measure
from perflab.ranks.group import measure_together, together


def all_sums(factor: float) -> float:
    total = torch.tensor(distributed.get_rank() + 1.0)
    distributed.all_reduce(total)
    return total.item() * factor


def second_rank_raises() -> None:
    if distributed.get_rank() == 1:
        raise ValueError("of its own")
    distributed.all_reduce(torch.ones(3))


def second_rank_dies_after(seconds: float) -> None:
    began = time.monotonic()
    while True:
        distributed.all_reduce(torch.ones(3))
        if distributed.get_rank() == 1 and time.monotonic() - began >= seconds:
            os.kill(os.getpid(), signal.SIGKILL)


def second_rank_leaves_a_collective() -> None:
    if distributed.get_rank() == 0:
        distributed.all_reduce(torch.ones(3))
    else:
        time.sleep(600)


@torch.library.custom_op("perflab_ranks::sum_of_all", mutates_args=())
def sum_of_all(x: torch.Tensor) -> torch.Tensor:
    total = x.clone()
    distributed.all_reduce(total)
    return total


@sum_of_all.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def counted_collectives() -> dict[str, dict[str, int]]:
    """The counts of calls whose collectives are known, by name."""
    from torch.distributed._functional_collectives import all_reduce
    from torch.distributed.fsdp import fully_shard

    rank, group = distributed.get_rank(), distributed.group.WORLD
    assert group is not None
    x, two, half = torch.ones(8), torch.empty(16), torch.empty(4)
    wide = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(4))), bucket_cap_mb=1
    )
    sharded = fully_shard(torch.nn.Linear(4, 8))
    given = torch.randn(3, 300)
    for _ in range(2):  # DDP lays its buckets out anew after the first backward pass
        wide(given).sum().backward()
    compiled = torch.compile(lambda x: all_reduce(x, "sum", group) + 1, backend="aot_eager")
    compiled(x)

    def sharded_step() -> None:
        sharded(torch.randn(3, 4)).sum().backward()

    def one_way() -> None:
        if rank == 0:
            distributed.send(x, 1)
        else:
            distributed.recv(x, 0)

    calls = {
        "nothing": lambda: x + x,
        "all_reduce": lambda: distributed.all_reduce(x),
        "in the background": lambda: distributed.all_reduce(x.bfloat16(), async_op=True).wait(),
        "all_gather": lambda: distributed.all_gather([half, half.clone()], half),
        "all_gather_into_tensor": lambda: distributed.all_gather_into_tensor(two, x),
        "reduce_scatter_tensor": lambda: distributed.reduce_scatter_tensor(half, x),
        "reduce_scatter": lambda: distributed.reduce_scatter(half, [half.clone(), half.clone()]),
        "broadcast": lambda: distributed.broadcast(x, 0),
        "all_to_all_single": lambda: distributed.all_to_all_single(torch.empty(8), x),
        "one way": one_way,
        "barrier": distributed.barrier,
        "functional": lambda: all_reduce(x, "sum", group) + 1,
        "compiled": lambda: compiled(x),
        "custom operator": lambda: sum_of_all(x),
        "DDP, four layers in buckets": lambda: wide(given).sum().backward(),
        "FSDP2": sharded_step,
    }
    return {name: collectives_of(call) for name, call in calls.items()}


def counted_groups() -> dict[str, int]:
    """The counts by group of collectives in a row, a column and an irregular part of four ranks."""
    rank, x = distributed.get_rank(), torch.ones(8)
    rows = [distributed.new_group([0, 1]), distributed.new_group([2, 3])]
    columns = [distributed.new_group([0, 2]), distributed.new_group([1, 3])]
    irregular = distributed.new_group([0, 1, 3])

    def call() -> None:
        distributed.all_reduce(x)
        distributed.all_reduce(x, group=rows[rank // 2])
        distributed.all_gather_into_tensor(torch.empty(16), x, group=columns[rank % 2])
        if rank != 2:
            distributed.all_reduce(x, group=irregular)

    return {name: value for name, value in collectives_of(call).items() if name.startswith("collective_groups")}


def slower_ranks_measure() -> tuple[list[int], list[float], list[float]]:
    """Measure a call that takes longer in each further rank; return samples, each rank's median, and decisions."""
    measure_together()
    rank, in_step = distributed.get_rank(), together()

    def call() -> None:
        time.sleep(0.002 * (1 + rank))

    found = measure(
        Workload(call, (), {}), torch.device("cpu"), Plan(budget_ns=3e8), lambda _: None, "ranks"
    ).measurement
    return found.samples_ns, [one.median_ns for one in found.ranks], in_step.most(rank, -rank)


def die(victim: int, how: str, after_s: float) -> None:
    """Call all-reduces without end; the victim ends after so many seconds."""
    rank, begun = distributed.get_rank(), time.monotonic()

    def end() -> None:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(0)

    if rank == victim and how in ("kill", "exit"):
        threading.Timer(after_s, end).start()  # in the middle of a collective, too
    x = torch.ones(100_000)
    while True:
        if rank == victim and how == "raise" and time.monotonic() - begun >= after_s:
            raise ValueError("of its own")
        if rank == victim and how == "stop" and time.monotonic() - begun >= after_s:
            time.sleep(3600)
        distributed.all_reduce(x)
