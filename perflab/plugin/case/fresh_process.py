"""Measuring in fresh processes: a replicate, as judging and saving need it.

The child runs the same pytest command with a job file; it collects only the files it needs, runs only the cases
it was given, judges nothing, and appends each measurement to the results file as soon as it has it.
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
    "basetemp": None,  # pytest empties it at start, and the parent's temporary files with it
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
"""Options of the parent's command that would make a child overwrite its files, choose tests or wait for input."""


START_S = 120.0
"""What a process may take before its first case: an interpreter and PyTorch on a busy machine, collecting its files."""


class Serve(Data, frozen=True):
    """Whose code a process of a paired run is to use."""

    foreign: str | None = None
    """The other side's tree: nothing may be imported from there."""
    own: str | None = None
    """This side's tree, which may lie within the other's."""
    first: list[str] = []
    """Folders that top-level modules are taken from before anything else."""


class Job(Data, frozen=True):
    """What a fresh process is to measure, and where its results go."""

    cases: list[str] | None
    """Node ids; None: whatever the command selects."""
    others: bool = False
    """Whether whatever else the command selects is served besides them."""
    results: str | None = None
    """Path of the file that measurements are appended to."""
    budget_s: float | None = None
    """The most that a case's measuring may take, where the run's time is short; its own budget is heeded too."""
    profiled: list[str] = []
    """Of the cases, those of which a call is profiled too."""
    profile_ns: float | None = None
    """How long a profile may take; None: as long as that of evidence."""
    profile_files: str | None = None
    """Where one profiled call is written for other tools, as in ``ProfilePlan``; None: nowhere."""
    under_callgrind: bool = False
    """Whether the process only counts the instructions of a call, and reports nothing itself."""
    serve: Serve | None = None
    """Set in a process of a paired run, which measures in turns and answers on a socket."""


class JobResult(Data, frozen=True):
    """One line of the results file."""

    case: str
    measurement: Measurement | None = None
    out_of_memory: OutOfMemory | None = None
    problem: str | None = None
    """Why there is neither, where the process knows."""


def read_job(path: str) -> Job:
    """The job that this process was started for."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Job)


def begin(path: str) -> None:
    """Have the tiers prepare this process for its job, before anything of the user's is imported."""
    job = read_job(path)
    for one in tiers():
        one.begin(job)


def report_result(job: Job, result: JobResult) -> None:
    """Append a case's result to the job's, at once, so that a later crash loses nothing."""
    assert job.results is not None
    with open(job.results, "ab") as file:
        file.write(to_json(result) + b"\n")


class FreshProcess:
    """In a child: hooks that let it collect and run the cases of its job alone."""

    def __init__(self, config: pytest.Config, job: Job) -> None:
        """Drop what the parent's command asks of the parent alone."""
        for dest, value in _SILENCED.items():
            if hasattr(config.option, dest):
                setattr(config.option, dest, value)
        self._wanted = dict.fromkeys(job.cases or ())
        self._others = job.others or job.cases is None
        self._files = {(config.rootpath / case.split("::")[0]).resolve() for case in self._wanted}

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Pass over the files that hold none of them."""
        if self._others or collection_path.suffix != ".py" or collection_path.name == "__init__.py":
            return None
        return None if collection_path.resolve() in self._files else True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None]:
        """Keep them in the job's order, whatever others leave out: what splits tests would split these again."""
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
        device: where to measure, exactly: a worker's GPU would be another one in a process that is no worker.
        budget_s: what measuring a case may take, if that is less than its budget.
        left_s: of the run's time: then the process is ended; None: it has no limit but its own.
        profiled: those of which a call is profiled too.
        profile_ns: how long that may take; None: as long as for evidence.
        profile_files: where one profiled call is written, as in ``ProfilePlan``; None: nowhere.

    Returns:
        Node id to what was measured; a case that the child could not measure is missing.

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
    """A line of the results; None of one that a child was killed in, or for which the disk had no room."""
    try:
        return msgspec.json.decode(line, type=JobResult)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _no_result(ended: Ended, result: JobResult) -> tuple[str, str]:
    """What is wrong with a process that did not measure a case, and the remedy."""
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
    """Run a job in a process of its own, to its end.

    A case that hangs there is found there, and its process goes on to the next. If the process as a whole gives no
    sign of life for longer, it is ended; what it had measured by then stands in the job's results.

    Args:
        config: the running session's configuration, whose command is repeated.
        job: what to do.
        device: where to measure.
        folder: for its files.
        wrapper: what the command runs under.
        extra: variables that its environment has besides.
        most_s: when it is ended at the latest.
    """
    assert job.results is not None
    sign = Path(job.results)
    sign.touch()
    job_file = folder / "job.json"
    job_file.write_bytes(msgspec.json.encode(job))
    words = [*repeated_arguments(config), f"--perf-device={device}", f"{REPLICATE_OPTION}={job_file}"]
    # The parent's import path, whichever way it came by it (rootdir, conftest, `python -m`, pythonpath).
    path = os.pathsep.join(entry for entry in sys.path if entry)
    with suspended(config):  # the process has a limit of its own
        return run_child(
            [*wrapper, sys.executable, "-m", "pytest", *words],
            directory=config.invocation_params.dir,
            environment={**variables_of_a_child(), "PYTHONPATH": path, **(extra or {})},
            sign=sign,
            patience_s=START_S + patience_of(config, job),
            most_s=most_s,
        )


def repeated_arguments(config: pytest.Config, *, plugins_too: bool = True) -> list[str]:
    """The session's own arguments, for a process that repeats it; pytest-xdist gives its workers the controller's.

    ``plugins_too``: whether the plugins of this process are there too, to be told to do nothing.
    """
    arguments = [os.fspath(argument) for argument in config.invocation_params.args]
    if plugins_too and hasattr(config.option, "numprocesses"):
        arguments.append("-n0")
    if plugins_too and config.pluginmanager.hasplugin("_cov"):
        arguments.append("--no-cov")
    return arguments
