"""A function in several processes: its results, and how it ends when one of them does."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import torch

from perflab.base.errors import UsageError
from perflab.measure.counts.collectives import Collective, communicates, counts_of
from perflab.measured.run.replicates import PROCESS_BYTES, no_room
from perflab.ranks.group import ALONE, together
from perflab.ranks.run import RankError, in_ranks
from perflab.results.measurement import Measurement, RankFigures
from tests.harness import rank_functions
from tests.harness.make import memory, record


def of_ranks() -> set[int]:
    """The processes of ranks on this machine that this process has started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"perflab.ranks.run" in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def test_each_rank_returns_its_result_in_order() -> None:
    assert in_ranks(rank_functions.all_sums, 2, 10.0) == [30.0, 30.0]


@pytest.mark.usefixtures("warm_start")
def test_a_rank_that_raises_is_told_with_its_traceback_and_what_the_other_waited_for() -> None:
    with pytest.raises(RankError) as caught:
        in_ranks(rank_functions.second_rank_raises, 2)
    assert caught.value.rank == 1
    told = str(caught.value)
    assert told.startswith("rank 1 of 2 failed\nTraceback (most recent call last):\n")
    assert "\nValueError: of its own\n" in told
    assert "ranks/run.py" not in told.partition("ValueError")[0]
    assert "rank 0 " in told


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
def test_a_rank_that_is_killed_ends_all() -> None:
    before = of_ranks()
    with pytest.raises(RankError, match=r"^rank 1 of 2 was killed by signal 9\n") as caught:
        in_ranks(rank_functions.second_rank_dies_after, 2, 0.3)
    assert caught.value.rank == 1
    until = time.monotonic() + 30
    while of_ranks() - before and time.monotonic() < until:
        time.sleep(0.05)
    assert not of_ranks() - before


def test_ranks_that_hang_are_told_with_what_each_was_in() -> None:
    with pytest.raises(RankError) as caught:
        in_ranks(rank_functions.second_rank_leaves_a_collective, 2, limit_s=20.0)
    told = str(caught.value)
    assert "hung and was stopped" in told
    assert "in second_rank_leaves_a_collective" in told
    assert "in all_reduce" in told


def test_what_other_processes_cannot_import_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"cannot be sent to other processes(.|\n)*define it at the top level of a module"
    ):
        in_ranks(lambda: os.getpid(), 2)
    with pytest.raises(UsageError, match="world_size=0"):
        in_ranks(rank_functions.all_sums, 0, 1.0)


def test_a_rank_that_cannot_be_started_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setattr("perflab.processes.child.with_lifeline", lambda command: command)
    with pytest.raises(RankError, match=r"^rank 0 of 2 could not be started: No such file or directory"):
        in_ranks(rank_functions.all_sums, 2, 1.0)


@pytest.mark.usefixtures("warm_start")
def test_each_kind_of_collective_is_counted_whoever_calls_it() -> None:
    first, second = in_ranks(rank_functions.counted_collectives, 2)
    received = second.pop("one way")
    assert second == {name: found for name, found in first.items() if name != "one way"}

    # Gradients that the backward reduces itself overlap with it; what it gathers in its forward does not.
    order = ("collectives_outside_backward", "collective_order", "collective_groups", "collective_waits")
    places = {name: [found.pop(one) for one in order] for name, found in {**first, "received": received}.items()}
    assert places.pop("DDP, four layers in buckets")[:2] == [0, 0]  # its waits are in C++
    assert places.pop("FSDP2") == [1, 1, 0, 2]
    assert first["FSDP2"].pop("collective_order:all_gather>reduce_scatter") == 1
    assert places.pop("nothing") == [0, 0, 0, 0]
    assert set(map(tuple, places.values())) == {(1, 0, 0, 1)}

    def counts(kind: str, dtype: str, times: int, size: int) -> dict[str, int]:
        return {"collectives": times, "collective_bytes": size, f"collectives:{kind}:{dtype}": times}

    of_ddp = first.pop("DDP, four layers in buckets")
    assert of_ddp["collectives"] == of_ddp["collectives:all_reduce:float32"] > 1
    assert of_ddp["collective_bytes"] == 4 * 4 * (300 * 300 + 300)
    assert first.pop("FSDP2") == {
        "collectives": 2,
        "collective_bytes": 2 * 4 * (4 * 8 + 8),
        "collectives:all_gather:float32": 1,
        "collectives:reduce_scatter:float32": 1,
    }
    assert first == {
        "nothing": {"collectives": 0, "collective_bytes": 0},
        "all_reduce": counts("all_reduce", "float32", 1, 32),
        "in the background": counts("all_reduce", "bfloat16", 1, 16),
        "all_gather": counts("all_gather", "float32", 1, 32),
        "all_gather_into_tensor": counts("all_gather", "float32", 1, 64),
        "reduce_scatter_tensor": counts("reduce_scatter", "float32", 1, 32),
        "reduce_scatter": counts("reduce_scatter", "float32", 1, 32),
        "broadcast": counts("broadcast", "float32", 1, 32),
        "all_to_all_single": counts("all_to_all", "float32", 1, 32),
        "one way": counts("send", "float32", 1, 32),
        "barrier": {"collectives": 1, "collective_bytes": 0, "collectives:barrier": 1},
        "functional": counts("all_reduce", "float32", 1, 32),
        "compiled": counts("all_reduce", "float32", 1, 32),
        "custom operator": counts("all_reduce", "float32", 1, 32),
    }
    assert received == counts("recv", "float32", 1, 32)


@pytest.mark.usefixtures("warm_start")
def test_the_groups_of_collectives_are_told_with_the_ranks_between_their_members() -> None:
    assert in_ranks(rank_functions.counted_groups, 4) == [
        {
            "collective_groups": 3,
            "collective_groups:all_reduce:2 of 4": 1,
            "collective_groups:all_gather:2 of 4 by 2": 1,
            "collective_groups:all_reduce:3 of 4": 1,
        }
    ] * 2 + [
        {
            "collective_groups": 2,
            "collective_groups:all_reduce:2 of 4": 1,
            "collective_groups:all_gather:2 of 4 by 2": 1,
        },
        {
            "collective_groups": 3,
            "collective_groups:all_reduce:2 of 4": 1,
            "collective_groups:all_gather:2 of 4 by 2": 1,
            "collective_groups:all_reduce:3 of 4": 1,
        },
    ]


def collective(kind: str, *, in_backward: bool = False) -> Collective:
    return Collective(kind, "float32", 8, "", in_backward)


def test_overlap_that_is_lost_and_an_order_that_changed_raise_a_count() -> None:
    gathers, scatters = [collective("all_gather")] * 2, [collective("reduce_scatter", in_backward=True)] * 2
    before = counts_of([*gathers, *scatters])
    late = counts_of([*gathers, *[collective("reduce_scatter")] * 2])
    swapped = counts_of([gathers[0], scatters[0], gathers[1], scatters[1]])
    assert before["collectives_outside_backward"] == 2
    assert {name: value for name, value in late.items() if value > before.get(name, 0)} == {
        "collectives_outside_backward": 4
    }
    assert {name: value for name, value in swapped.items() if value > before.get(name, 0)} == {
        "collective_order": 3,
        "collective_order:all_gather>reduce_scatter": 2,
        "collective_order:reduce_scatter>all_gather": 1,
    }


@pytest.mark.parametrize(("device", "needed"), [("cpu", 3 * 2), ("cuda", 3)])
def test_memory_is_that_of_all_ranks_where_they_share_a_device(
    monkeypatch: pytest.MonkeyPatch, device: str, needed: int
) -> None:
    figures = [RankFigures(median_ns=1.0)] * 2
    measurement = Measurement(
        samples_ns=[1], repetitions=1, warmup_calls=0, settled=None, clock="host", memory=memory(1 << 30), ranks=figures
    )
    one = record(measurement=measurement)
    of_all = needed * ((1 << 30) + PROCESS_BYTES)
    monkeypatch.setattr("perflab.measured.run.replicates.available_bytes", lambda _device: of_all)
    assert no_room(one, torch.device(device), 3) is None
    monkeypatch.setattr("perflab.measured.run.replicates.available_bytes", lambda _device: of_all - 1)
    assert no_room(one, torch.device(device), 3) is not None


@pytest.mark.usefixtures("warm_start")
def test_ranks_measure_in_step_and_the_slowest_counts() -> None:
    (samples, medians, decisions), other = in_ranks(rank_functions.slower_ranks_measure, 2)
    assert (samples, medians, decisions) == other
    assert decisions == [1, 0]
    assert 2e6 <= medians[0] < medians[1] <= max(samples)


def test_alone_nothing_is_agreed_on() -> None:
    assert together() is ALONE
    assert ALONE.most(1, 2.5) == [1, 2.5]
    assert ALONE.gathered("one") == ["one"]
    assert not communicates()
