"""NCCL without peers: collectives answer as if every rank had sent what this one sent, and each is one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from nocuda import Seen
from perflab.predicted.world.lone_rank import OVER_NOCUDA, LoneRank, playing

from .active import needs_nocuda, told

pytestmark = needs_nocuda
RANK, RANKS = 2, 4
Op = distributed.ReduceOp


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    with playing(LoneRank(RANK, RANKS), OVER_NOCUDA):
        yield


def sent(*values: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype).cuda()


@pytest.mark.parametrize(
    ("op", "dtype", "expected"),
    [
        (Op.SUM, torch.float32, [12.0, -8.0]),
        (Op.SUM, torch.int64, [12, -8]),
        (Op.PRODUCT, torch.float64, [81.0, 16.0]),
        (Op.AVG, torch.float32, [3.0, -2.0]),
        (Op.MAX, torch.bfloat16, [3.0, -2.0]),
        (Op.SUM, torch.float16, [0.0, 0.0]),  # halves are not added up here, so nothing is known
    ],
)
def test_what_the_host_has_sent_is_reduced_over_equal_ranks(op: Any, dtype: torch.dtype, expected: list[float]) -> None:
    x = sent(3, -2, dtype=dtype)
    distributed.all_reduce(x, op)
    assert x.tolist() == expected


def test_gathered_parts_are_this_rank_s_and_scattered_ones_its_own_place() -> None:
    whole, part = torch.empty(RANKS * 2, device="cuda"), torch.empty(1, device="cuda")
    distributed.all_gather_into_tensor(whole, sent(5, 6))
    assert whole.tolist() == [5, 6] * RANKS
    distributed.reduce_scatter_tensor(part, sent(1, 2, 3, 4))
    assert part.item() == 3 * RANKS
    distributed.all_to_all_single(whole[:RANKS], sent(1, 2, 3, 4))
    assert whole[:RANKS].tolist() == [3] * RANKS


def test_objects_are_gathered_and_what_kernels_wrote_reads_as_zero() -> None:
    found: list[Any] = [None] * RANKS
    distributed.all_gather_object(found, {"rank": RANK})
    assert found == [{"rank": RANK}] * RANKS
    x = torch.ones(3, device="cuda") + 1
    distributed.all_reduce(x)
    assert x.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "call",
    [
        lambda x: distributed.all_reduce(x),
        lambda x: distributed.broadcast(x, 0),
        lambda x: distributed.reduce(x, 0),
        lambda x: distributed.send(x, 0),
        lambda x: distributed.recv(x, 0),
        lambda x: distributed.barrier(device_ids=[0]),
    ],
)
def test_each_is_a_launch_and_waits_for_nobody(call: Callable[[Tensor], object]) -> None:
    x = sent(1, 2)
    call(x)  # makes the communicator
    with told(Seen.LAUNCH) as seen:
        call(x)
    assert sum(one.name.startswith("nccl") for one in seen) == 1


def test_groups_and_graphs() -> None:
    pair, others = distributed.new_group([1, RANK]), distributed.new_group([0, 3])
    x = sent(1, 2)
    distributed.all_reduce(x, group=pair)
    assert x.tolist() == [2, 4]
    assert distributed.get_rank(others) == -1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        distributed.all_reduce(x)
    assert x.tolist() == [2, 4], "captured, not carried out"
