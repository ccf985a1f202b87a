"""Measures cases in fresh processes: each such measurement is a replicate for judging and saving.

The child process runs the same pytest command with a job file. The child collects only the files that it needs, runs
only the cases of its job, judges nothing, and sends each measurement at once.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest

from perflab.base.data import Data, changed
from perflab.base.errors import FreshProcessError
from perflab.base.identity import file_of
from perflab.noting import case_id
from perflab.options import REPLICATE_OPTION
from perflab.processes.channel import Alive
from perflab.processes.child import Start, variables_of_a_child, workplace
from perflab.processes.peer import Ending, How, Peer
from perflab.ranks.group import places, variables_of_a_rank
from perflab.ranks.run import EndedError, RankError, wait_for_all
from perflab.running.case.hanging import patience_of, suspended
from perflab.running.config.kinds import is_perf_case, tier_asked_by
from perflab.tiers.job import JOB_RESULTS, Job, JobResult, write_job

Answer = TypeVar("Answer")

_SILENCED: dict[str, object] = {
    "basetemp": None,  # pytest empties this folder at start, which would delete the parent's temporary files
    **dict.fromkeys(("xmlpath", "log_file", "pastebin", "report_log", "htmlpath", "json_report_file", "reruns")),
    **dict.fromkeys(("lf", "failedfirst", "newfirst", "stepwise", "stepwise_skip", "stepwise_reset"), False),
    **dict.fromkeys(("usepdb", "trace"), False),
    "maxfail": 0,
}
"""Options of the parent's command that would make a child overwrite the parent's files, choose tests or wait for
input, with the values that replace them."""


_LINES_SHOWN = 15
COLLECTIVE_S = 24 * 3600.0
"""The time in seconds that a collective of a case may take: each rank is watched, and its case's own limit ends it."""
START_S = 120.0
"""The time in seconds that a process may take before its first case, to load Python and PyTorch on a busy machine and
to collect its files."""


class FreshProcess:
    """Hooks that make a child process collect and run only the cases of its job."""

    def __init__(self, config: pytest.Config, job: Job) -> None:
        """Reset the options of the parent's command that are meant only for the parent."""
        for dest, value in _SILENCED.items():
            if hasattr(config.option, dest):
                setattr(config.option, dest, value)
        self._wanted = dict.fromkeys(job.cases or ())
        self._others = job.others or job.cases is None
        self._files = {(config.rootpath / file_of(case)).resolve() for case in self._wanted}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Ignore files that contain no case of the job."""
        if self._others or collection_path.suffix != ".py" or collection_path.name == "__init__.py":
            return None
        return None if collection_path.resolve() in self._files else True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Keep the job's cases in the job's order, even if other plugins deselect them.

        A plugin that splits tests would otherwise split them a second time.
        """
        found = {case_id(item): item for item in items}
        yield
        found |= {case_id(item): item for item in items}
        others = [item for item in items if self._others and case_id(item) not in self._wanted]
        items[:] = [found[case] for case in self._wanted if case in found] + others
        if self._others:
            items[:] = [item for item in items if is_perf_case(item) and tier_asked_by(item) is None]


def measure_fresh(
    config: pytest.Config,
    job: Job,
    device: str,
    *,
    world_sizes: Mapping[str, int] | None = None,
    left_s: float | None = None,
) -> dict[str, JobResult]:
    """Measure a job's cases in one fresh process; a case in ranks in fresh processes of its own.

    Args:
        config: the running session's configuration, whose command is repeated.
        job: the cases, and how they are measured.
        device: the exact device to measure on, since ``auto`` in the child may be another GPU than the worker's.
        world_sizes: the number of processes that run a case at once, by node id; None: each case runs in one.
        left_s: the time left for the run, after which the process is ended; None: only its own limits apply.

    Returns:
        The result of each case by node id; a case that the child could not measure is missing.

    Raises:
        FreshProcessError: the child measured none of the cases; its last output is in the error.
    """
    in_ranks = {case: size for case, size in (world_sizes or {}).items() if size > 1}
    alone = [case for case in job.cases or () if case not in in_ranks]
    found: dict[str, JobResult] = {}
    problem: FreshProcessError | None = None
    for case, size in in_ranks.items():
        try:
            found[case] = measure_in_ranks(config, changed(job, cases=[case]), size, device, left_s=left_s)
        except RankError as error:
            problem = FreshProcessError(error.problem, error.remedy)
    if not alone:
        if problem is not None and not found:
            raise problem
        return found
    told, ending = run_job(config, changed(job, cases=alone), device, left_s=left_s)
    found |= {result.case: result for result in told if result.problem is None}
    if not found:
        raise FreshProcessError(*_no_result(ending, told[0] if told else JobResult(case=alone[0])))
    return found


def measure_in_ranks(
    config: pytest.Config, job: Job, world_size: int, device: str, *, left_s: float | None = None
) -> JobResult:
    """Run a case in several fresh processes at once, the ranks of one group, and return the group's result.

    Args:
        config: the running session's configuration, whose command is repeated.
        job: the one case, and how it is measured or called once. Rank 0 alone writes a profile's files.
        world_size: the number of processes.
        device: the device to measure on; on CUDA rank r has GPU r.
        left_s: the time left for the run, after which the processes are ended; None: no limit.

    Raises:
        RankError: a rank failed; the error tells which was first, and where the others were.
    """
    with ranks_with(config, job, world_size, device, JOB_RESULTS, left_s=left_s) as peers:
        # Other ranks would wait in vain for one whose answer is no measurement.
        found = wait_for_all(
            peers,
            lambda answer: answer,
            lambda answer: any(one is not None for one in (answer.problem, answer.skipped, answer.out_of_memory)),
        )
        early = [one for one in found.answers.values() if one.out_of_memory is not None or one.skipped is not None]
        if early:
            return early[0]
        found.check()
        for peer in peers:
            peer.leave()  # fixtures are torn down
        return found.answers[0]


@contextlib.contextmanager
def ranks_with(
    config: pytest.Config,
    job: Job,
    world_size: int,
    device: str,
    answers: msgspec.json.Decoder[Answer | Alive],
    *,
    left_s: float | None = None,
) -> Iterator[list[Peer[Data, Answer]]]:
    """Start the ranks of a job's one case, each a fresh process that answers; end them with the block.

    ``answers`` decodes the answers. The other arguments and the error are those of ``measure_in_ranks``.
    """
    until_s = math.inf if left_s is None else time.monotonic() + left_s
    on_cuda = device.startswith("cuda")
    with workplace() as folder, suspended(config), contextlib.ExitStack() as processes:
        peers: list[Peer[Data, Answer]] = []
        patience_s = START_S + patience_of(config, job)
        for place in places(folder, world_size, "nccl" if on_cuda else "gloo", COLLECTIVE_S):
            own = changed(job, place=place, profile_files=job.profile_files if place.rank == 0 else None)
            start = _start(config, own, f"cuda:{place.rank}" if on_cuda else device, folder)
            start = replace(
                start, role=f"rank {place.rank} of {world_size}", environment=variables_of_a_rank(start.environment)
            )
            try:
                peer = Peer[Data, Answer](
                    start, answers, EndedError, silent_s=patience_s, seconds_left=lambda: until_s - time.monotonic()
                )
            except OSError as error:
                raise RankError(f"{start.role} could not be started: {error.strerror or error}", place.rank) from error
            peers.append(processes.enter_context(peer))
        yield peers


def _no_result(ending: Ending, result: JobResult) -> tuple[str, str]:
    """Return the problem of a process that did not measure a case, and the remedy."""
    remedy = f"run the case alone: pytest {result.case!r}"
    if result.problem is not None:
        return f"{result.case} in a fresh process {result.problem}", remedy
    if ending.how is How.HUNG:
        remedy += "; if it needs that long, raise --perf-timeout"
    if ending.how is How.UNSTARTED:
        return (
            f"a fresh process {ending.told}",
            "times are of this process alone then; the system's limits may keep it from starting one: ulimit -a",
        )
    said = "\n".join(ending.last_lines(_LINES_SHOWN))
    return f"a fresh process {ending.told}, before it had measured {result.case}; its output:\n{said}", remedy


def run_job(
    config: pytest.Config,
    job: Job,
    device: str,
    wrapper: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    left_s: float | None = None,
) -> tuple[list[JobResult], Ending]:
    """Run a job in its own process until the process ends; return its results, and how it ended.

    The process itself detects a case that hangs, and goes on to the next case. If the whole process gives no sign of
    life for longer, it is ended; the results up to then are returned.

    Args:
        config: the running session's configuration, whose command is repeated.
        job: the cases to measure, and how.
        device: the device to measure on.
        wrapper: a command, such as a tool, under which the process runs.
        extra: further variables of the process's environment.
        left_s: the time in seconds after which the process is ended at the latest; None: no limit.
    """
    with workplace() as folder, suspended(config):  # the process has its own time limit
        start = _start(config, job, device, folder, wrapper, extra)
        return results_from(start, START_S + patience_of(config, job), left_s)


def _start(
    config: pytest.Config,
    job: Job,
    device: str,
    folder: Path,
    wrapper: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
) -> Start:
    """Return the start of a process that repeats the session's command for a job, whose file is put into ``folder``."""
    words = [*repeated_arguments(config), f"--perf-device={device}", f"{REPLICATE_OPTION}={write_job(job, folder)}"]
    # The parent's import path, however it was made (rootdir, conftest, `python -m`, pythonpath).
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return Start(
        role="a fresh process",
        command=[*wrapper, sys.executable, "-m", "pytest", *words],
        environment={**variables_of_a_child(), "PYTHONPATH": path, **(extra or {})},
        directory=config.invocation_params.dir,
    )


def results_from(start: Start, silent_s: float, left_s: float | None = None) -> tuple[list[JobResult], Ending]:
    """Start a process that has a job; return its results once the process has ended, and how it ended.

    A process that is silent for longer than ``silent_s`` seconds is ended, and every process after ``left_s`` seconds.
    """
    until_s = math.inf if left_s is None else time.monotonic() + left_s
    results: list[JobResult] = []
    try:
        started = Peer[Job, JobResult](
            start, JOB_RESULTS, EndedError, silent_s=silent_s, seconds_left=lambda: until_s - time.monotonic()
        )
    except OSError as error:
        return results, Ending(How.UNSTARTED, problem=str(error.strerror or error))
    with started as process:
        while True:
            try:
                results.append(process.answer())
            except EndedError as end:
                return results, end.ending


def repeated_arguments(config: pytest.Config, *, plugins_too: bool = True) -> list[str]:
    """Return the session's own arguments, for a process that repeats its command, with plugins switched off.

    In a worker, pytest-xdist provides the controller's arguments. ``plugins_too``: whether the process has the plugins
    of this process.
    """
    arguments = [os.fspath(argument) for argument in config.invocation_params.args]
    return [*arguments, *further_arguments(config)] if plugins_too else arguments


def further_arguments(config: pytest.Config) -> list[str]:
    """Return what a process that repeats the session's command is told besides, because of plugins that both have.

    pytest-xdist and pytest-cov must be switched off, and pytest-randomly would draw another seed, by which tests make
    other inputs, and keep it for ``--randomly-seed=last``.
    """
    seed = getattr(config.option, "randomly_seed", None)
    return [
        *(["-n0"] if hasattr(config.option, "numprocesses") else []),
        *(["--no-cov"] if config.pluginmanager.hasplugin("_cov") else []),
        *([f"--randomly-seed={seed}"] if isinstance(seed, int) else []),
    ]
