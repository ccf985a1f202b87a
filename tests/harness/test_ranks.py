"""A function in several processes: its results, and how it ends when one of them does."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from perflab.base.errors import UsageError
from perflab.ranks.run import RankError, in_ranks
from tests.harness import rank_functions


def of_ranks() -> set[int]:
    """The processes of ranks on this machine that this process has started."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"perflab.ranks.worker" in path.read_bytes():
                found.add(int(path.parent.name))
        except OSError:
            continue
    return found


def test_each_rank_returns_its_result_in_order() -> None:
    assert in_ranks(rank_functions.all_sums, 3, 10.0) == [60.0, 60.0, 60.0]


def test_a_rank_that_raises_is_told_with_its_traceback_and_what_the_other_waited_for() -> None:
    with pytest.raises(RankError) as caught:
        in_ranks(rank_functions.second_rank_raises, 2)
    assert caught.value.rank == 1
    told = str(caught.value)
    assert told.startswith("rank 1 of 2 raised\nTraceback (most recent call last):\n")
    assert "\nValueError: of its own\n" in told
    assert "worker.py" not in told.partition("ValueError")[0]
    assert "rank 0 " in told


@pytest.mark.skipif(sys.platform != "linux", reason="processes are listed in /proc")
@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_a_rank_that_is_killed_ends_all(seconds: float) -> None:
    before = of_ranks()
    with pytest.raises(RankError, match=r"^rank 1 of 2 was killed by signal 9\n") as caught:
        in_ranks(rank_functions.second_rank_dies_after, 2, seconds)
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
