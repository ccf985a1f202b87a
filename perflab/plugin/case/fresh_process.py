"""Measures cases in fresh processes: each such measurement is a replicate for judging and saving.

The child process runs the same pytest command with a job file. The child collects only the files that it needs, runs
only the cases of its job, judges nothing, and appends each measurement to the results file at once.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from perflab.child import Ended, run_child, variables_of_a_child, workplace
from perflab.data import Data, to_json
from perflab.errors import FreshProcessError
from perflab.measure.records import Measurement, OutOfMemory
from perflab.plugin.case.hanging import patience_of, suspended
from perflab.plugin.config.kinds import is_perf_case, tier_asked_by
from perflab.plugin.noting import case_id
from perflab.plugin.options import REPLICATE_OPTION
from perflab.tiers import tiers
from perflab.units import format_ns

_SILENCED = {
    "basetemp": None,  # pytest empties this folder at start, which would delete the parent's temporary files
    "xmlpath": None,
    "log_file": None,
    "pastebin": None,
    "report_log": None,
    "htmlpath": None,
    "json_report_file": None,
    "usepdb": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "stepwise_reset": False,
    "trace": False,
    "maxfail": 0,
    "reruns": None,
}
"""Options of the parent's command that would make a child overwrite the parent's files, choose tests or wait for
input, with the values that replace them."""


START_S = 120.0
"""The time in seconds that a process may take before its first case, to load Python and PyTorch on a busy machine and
to collect its files."""


class Serve(Data, frozen=True):
    """The source of the code that a process of a paired run uses."""

    foreign: str | None = None
    """The other side's tree, from which nothing may be imported."""
    own: str | None = None
    """The process's own tree, which may lie within the other side's tree."""
    first: list[str] = []
    """Folders from which top-level modules are imported before any other place."""


class Job(Data, frozen=True):
    """The job of a fresh process: the cases to measure, and the destination of the results."""

    cases: list[str] | None
    """The node ids of the cases; None: all cases that the command selects."""
    others: bool = False
    """Whether the process also serves all other cases that the command selects."""
    results: str | None = None
    """The path of the file to which measurements are appended."""
    budget_s: float | None = None
    """The time limit in seconds for measuring a case if the run's time is short; the case's own budget also applies."""
    profiled: list[str] = []
    """The cases that are also profiled."""
    profile_ns: float | None = None
    """The time in nanoseconds that a profile may take; None: as long as a profile that explains a failure."""
    profile_files: str | None = None
    """The path to which one profiled call is written for other tools, as in ``ProfilePlan``; None: no file."""
    under_callgrind: bool = False
    """Whether the process only counts the instructions of a call, and reports nothing itself."""
    serve: Serve | None = None
    """The code to use in a process of a paired run, which measures in turns and answers on a socket; else None."""


class JobResult(Data, frozen=True):
    """One line of the results file: a case's measurement, or why there is none."""

    case: str
    measurement: Measurement | None = None
    out_of_memory: OutOfMemory | None = None
    problem: str | None = None
    """Why there is neither a measurement nor an out-of-memory record, if the process knows the reason."""


def read_job(path: str) -> Job:
    """Read the job for which this process was started."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Job)


def begin(path: str) -> None:
    """Let the tiers prepare this process for its job, before any of the user's code is imported."""
    job = read_job(path)
    for one in tiers():
        one.begin(job)


def report_result(job: Job, result: JobResult) -> None:
    """Append a case's result to the job's results file at once, so that a later crash does not lose it."""
    assert job.results is not None
    with open(job.results, "ab") as file:
        file.write(to_json(result) + b"\n")


class FreshProcess:
    """Hooks that make a child process collect and run only the cases of its job."""

    def __init__(self, config: pytest.Config, job: Job) -> None:
        """Reset the options of the parent's command that are meant only for the parent."""
        for dest, value in _SILENCED.items():
            if hasattr(config.option, dest):
                setattr(config.option, dest, value)
        self._wanted = dict.fromkeys(job.cases or ())
        self._others = job.others or job.cases is None
        self._files = {(config.rootpath / case.split("::")[0]).resolve() for case in self._wanted}

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
    cases: Sequence[str],
    device: str,
    budget_s: float | None = None,
    *,
    left_s: float | None = None,
    profiled: Sequence[str] = (),
    profile_ns: float | None = None,
    profile_files: Path | None = None,
) -> dict[str, JobResult]:
    """Measure cases in one fresh process.

    Args:
        config: the running session's configuration, whose command is repeated.
        cases: node ids.
        device: the exact device to measure on, since ``auto`` in the child may be another GPU than the worker's.
        budget_s: the time limit for measuring a case, if it is less than the case's budget.
        left_s: the time left for the run, after which the process is ended; None: only its own limits apply.
        profiled: the cases that are also profiled.
        profile_ns: the time that a profile may take; None: as long as a profile that explains a failure.
        profile_files: the path to which one profiled call is written, as in ``ProfilePlan``; None: no file.

    Returns:
        The result of each case by node id; a case that the child could not measure is missing.

    Raises:
        FreshProcessError: the child measured none of the cases; its last output is in the error.
    """
    with workplace() as folder:
        results = folder / "results.jsonl"
        job = Job(
            cases=list(cases),
            results=str(results),
            budget_s=budget_s,
            profiled=list(profiled),
            profile_ns=profile_ns,
            profile_files=None if profile_files is None else str(profile_files),
        )
        ended = run_job(config, job, device, folder, most_s=math.inf if left_s is None else left_s)
        lines = results.read_bytes().splitlines()
    told = [result for line in lines if (result := _read(line)) is not None]
    found = {result.case: result for result in told if result.problem is None}
    if not found:
        raise FreshProcessError(*_no_result(ended, told[0] if told else JobResult(case=cases[0])))
    return found


def _read(line: bytes) -> JobResult | None:
    """Parse a line of the results file; return None if it is incomplete: the child was killed, or the disk was full."""
    try:
        return msgspec.json.decode(line, type=JobResult)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _no_result(ended: Ended, result: JobResult) -> tuple[str, str]:
    """Return the problem of a process that did not measure a case, and the remedy."""
    case = result.case
    if result.problem is not None:
        return f"{case} in a fresh process {result.problem}", f"run the case alone: pytest {case!r}"
    if ended.hung_after_s is not None:
        return (
            f"a fresh process made no progress and was stopped after {format_ns(1e9 * ended.hung_after_s)}, "
            f"before it had measured {case}; its output:\n{ended.said}",
            f"run the case alone: pytest {case!r}; if it needs that long, raise --perf-timeout",
        )
    return (
        f"a fresh process measured nothing (exit status {ended.status}); its output:\n{ended.said}",
        f"run the case alone: pytest {case!r}",
    )


def run_job(
    config: pytest.Config,
    job: Job,
    device: str,
    folder: Path,
    wrapper: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    most_s: float = math.inf,
) -> Ended:
    """Run a job in its own process, and wait until the process ends.

    The process itself detects a case that hangs, and goes on to the next case. If the whole process gives no sign of
    life for longer, it is ended; the measurements up to then are in the job's results file.

    Args:
        config: the running session's configuration, whose command is repeated.
        job: the cases to measure, and how.
        device: the device to measure on.
        folder: the folder for the job's files.
        wrapper: a command, such as a tool, under which the process runs.
        extra: further variables of the process's environment.
        most_s: the time in seconds after which the process is ended at the latest.
    """
    assert job.results is not None
    sign = Path(job.results)
    sign.touch()
    job_file = folder / "job.json"
    job_file.write_bytes(msgspec.json.encode(job))
    words = [*repeated_arguments(config), f"--perf-device={device}", f"{REPLICATE_OPTION}={job_file}"]
    # The parent's import path, however it was made (rootdir, conftest, `python -m`, pythonpath).
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with suspended(config):  # the process has its own time limit
        return run_child(
            [*wrapper, sys.executable, "-m", "pytest", *words],
            directory=config.invocation_params.dir,
            environment={**variables_of_a_child(), "PYTHONPATH": path, **(extra or {})},
            sign=sign,
            patience_s=START_S + patience_of(config, job),
            most_s=most_s,
        )


def repeated_arguments(config: pytest.Config, *, plugins_too: bool = True) -> list[str]:
    """Return the session's own arguments, for a process that repeats its command, with plugins switched off.

    In a worker, pytest-xdist provides the controller's arguments. ``plugins_too``: whether the process has the plugins
    of this process (pytest-xdist, pytest-cov), which then must be switched off.
    """
    arguments = [os.fspath(argument) for argument in config.invocation_params.args]
    if plugins_too and hasattr(config.option, "numprocesses"):
        arguments.append("-n0")
    if plugins_too and config.pluginmanager.hasplugin("_cov"):
        arguments.append("--no-cov")
    return arguments
