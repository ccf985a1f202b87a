"""Cases in ranks: the session leaves their bodies to the ranks' processes, and a rank reports how its body ended.

In the session nothing of such a case is set up: its fixtures may communicate, which only the ranks can.
"""

from __future__ import annotations

import os
import time
import unittest
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from perflab.base.errors import UsageError
from perflab.noting import case_id
from perflab.processes.channel import say
from perflab.ranks.group import launched, leave, together
from perflab.ranks.run import RankError
from perflab.running.case.fresh_process import measure_in_ranks
from perflab.running.case.perf import CaseState
from perflab.running.config.kinds import is_perf_case, reason_of_skip
from perflab.settings.settings import Settings
from perflab.tiers.job import Job, JobResult, Stated

if TYPE_CHECKING:
    import torch

FAILED_BY_VERDICT: pytest.StashKey[bool] = pytest.StashKey()
"""Whether a case fails because it got worse, and not because its body failed."""
FOUND: pytest.StashKey[JobResult] = pytest.StashKey()
"""The answer of a rank that has measured its case, until the case's body has ended."""


def runs_in_others(settings: Settings) -> bool:
    """Whether a case in ranks is left to other processes: this one neither is nor plays one of its ranks."""
    return settings.world_size > 1 and not settings.predict and together().world_size == 1 and launched() is None


def leave_to_ranks(item: pytest.Item, settings: Settings) -> None:
    """Set up no fixtures for a case that runs in other processes.

    Raises:
        UsageError: the case is a test of unittest, which has a set-up of its own.
    """
    if not runs_in_others(settings):
        return
    if issubclass(getattr(item, "cls", None) or object, unittest.TestCase):
        raise UsageError(
            f"{item.nodeid}: @pytest.mark.perf(world_size={settings.world_size}) on a test of unittest.TestCase",
            "write it as a function, or as a method of a plain class",
        )
    item.fixturenames = []  # type: ignore[attr-defined] # of a Function


def ranks_on_a_device(world_size: int, device: torch.device) -> int:
    """Return how many of a case's ranks share the memory of a device: on CUDA each has a GPU of its own."""
    return 1 if device.type == "cuda" else world_size


def too_few_gpus(world_size: int, device: torch.device) -> str | None:
    """Return why a case in ranks cannot run on a device; None if it can: each rank has a GPU of its own."""
    if device.type != "cuda":
        return None
    import torch

    known = torch.cuda.device_count()
    return f"{world_size} ranks need as many GPUs, and there are {known}" if known < world_size else None


def run_in_ranks(
    config: pytest.Config, state: CaseState, job: Job, device: str, left_s: float | None = None
) -> JobResult:
    """Run a job's case in its ranks, and put what its body stated into ``state``.

    Raises:
        RankError: a rank failed.
        pytest.skip.Exception: the ranks skipped the case, or the run's time was over.
    """
    size, begun_s = state.settings.world_size, time.monotonic()
    try:
        found = measure_in_ranks(config, job, size, device, left_s=left_s)
    except RankError as error:
        if left_s is not None and time.monotonic() - begun_s >= left_s:
            state.skip_for_time()
        state.problem = f"rank {error.rank} of {size} failed"
        raise
    if found.skipped is not None:
        pytest.skip(found.skipped)
    stated = found.stated or Stated()
    state.work, state.quotes, state.facts = stated.work, stated.quotes, stated.facts
    state.matmul_flops_per_second, state.matmul_precision = stated.matmul_flops_per_second, stated.matmul_precision
    state.done = True
    return found


class InRank:
    """Hooks of a rank's process, which leaves its group at the end.

    A process that was interrupted just ends: the others are in the midst of a call, and would never leave with it.
    """

    _is_interrupted = False

    def pytest_keyboard_interrupt(self) -> None:
        """Note that ``pytest.exit``, ``KeyboardInterrupt`` or the like ended the tests."""
        self._is_interrupted = True

    def pytest_internalerror(self) -> None:
        """Note that an error in a hook ended the tests."""
        self._is_interrupted = True

    def pytest_unconfigure(self) -> None:
        """Leave the group."""
        if not self._is_interrupted:
            leave()


class ToldRank(InRank):
    """Hooks of a rank's process that report how the body of its case ended."""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Send the rank's answer once the body has ended, or could not be set up."""
        report = yield
        if report.when == "teardown" or (report.when == "setup" and report.passed):
            return report
        answer = item.stash.get(FOUND, JobResult(case=case_id(item)))
        if report.failed:
            answer = JobResult(case=case_id(item), problem=report.longreprtext, at_ns=time.monotonic_ns())
        elif report.skipped and answer.out_of_memory is None:
            answer = JobResult(case=case_id(item), skipped=reason_of_skip(report))
        say(answer)
        return report


class LaunchedRank(InRank):
    """Hooks of a session that is one of the ranks that ``torchrun`` has started. Rank 0 alone writes anything.

    A case whose body fails in a rank ends that process, and ``torchrun`` then the others, which would wait in vain.
    """

    def __init__(self, config: pytest.Config, rank: int) -> None:
        self._rank = rank
        reporter = config.pluginmanager.getplugin("terminalreporter")
        if rank > 0 and reporter is not None:  # pytest needs it for messages of assertions, so it stays
            reporter._tw = type(reporter._tw)(open(os.devnull, "w"))  # noqa: SIM115 - until the process ends

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Print a failure that no report shows; end this process if it is a case's body or set-up, and no verdict."""
        report = yield
        ends = is_perf_case(item) and not item.stash.get(FAILED_BY_VERDICT, False)
        if report.failed and (ends or self._rank > 0):
            lines = [f"perf: rank {self._rank} failed in {item.nodeid}, in its {report.when}", report.longreprtext, ""]
            os.write(2, "\n".join(lines).encode("utf-8", "replace"))
            if ends:
                os._exit(1)
        return report
