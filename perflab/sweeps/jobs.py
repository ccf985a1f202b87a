"""Plans the jobs of a sweep, submits them with submitit, and passes their reports on.

The file of ``--perf-slurm`` says how; cases are packed into few jobs by their cost. Slurm's accounting, which tells
submitit how a job ended, is missing on many clusters: a job that was killed would then run for ever. So ``squeue`` is
asked which jobs still exist.

A job appends its reports to a file, a line a test, and the session reads what is new. A test that has begun has a line
too, so that a job that dies leaves the name of the test that it died in.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perflab.base.data import Data, Positive
from perflab.base.errors import SettingError, UsageError
from perflab.noting import case_id

_START_S = 60.0
"""The seconds that a job takes before its first case: Python, PyTorch, collection."""
_ROOM = 3.0
"""How many times its cost a job may take."""
_LEAST_MIN = 5


class Cluster(Data, frozen=True):
    """How jobs are submitted, as the file says."""

    cluster: str | None = None
    """``slurm``, or ``local`` for processes of this machine; None: Slurm where ``sbatch`` is found."""
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time: Positive | None = None
    """The time limit of a job in minutes; None: three times what its cases are expected to take."""
    job_minutes: Positive = 20.0
    """The minutes that the cases of a job are expected to take together."""
    gpus: int = 0
    """GPUs for a case, or for each rank of a case in ranks, unless its mark says ``gpus=``."""
    cpus: int = 2
    """Cores for each job."""
    memory_gb: Positive | None = None
    python: list[str] = []
    """The command that begins Python, a container's too; empty: the running interpreter."""
    setup: list[str] = []
    """Lines of shell that a job of Slurm's runs first: ``module load cuda``."""


def read_cluster(path: Path | None) -> Cluster:
    """Read the file of ``--perf-slurm``; without one everything has its default.

    Raises:
        SettingError: the file cannot be read, or has a key or a value that is not known.
    """
    if path is None:
        return Cluster()
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Cluster)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        known = ", ".join(Cluster.__struct_fields__)
        raise SettingError(f"--perf-slurm: {path}: {error}", f"name a TOML file with some of {known}") from error


@dataclass(frozen=True)
class Case:
    """A case to run somewhere."""

    id: str
    cost_s: float
    """The seconds that it is expected to take."""
    gpus: int
    """The GPUs that it needs in each node."""
    nodes: int = 1
    ranks: int = 1
    """The ranks of a case on several nodes; of any other, perflab starts the ranks itself."""


@dataclass(frozen=True)
class Job:
    """Cases that one job runs, one after the other."""

    cases: tuple[str, ...]
    gpus: int
    minutes: int
    """The job's time limit."""
    nodes: int = 1
    ranks: int = 1


def pack(cases: Sequence[Case], cluster: Cluster) -> list[Job]:
    """Pack cases into few jobs: cases of the same GPUs, nodes and ranks, in their order, until a job is full."""
    jobs = []
    for needs in sorted({(one.gpus, one.nodes, one.ranks) for one in cases}):
        own = [one for one in cases if (one.gpus, one.nodes, one.ranks) == needs]
        total_s = sum(one.cost_s for one in own)
        share_s = total_s / math.ceil(total_s / (60 * cluster.job_minutes))
        packed: list[list[Case]] = [[]]
        for one in own:
            if packed[-1] and sum(other.cost_s for other in packed[-1]) + one.cost_s / 2 > share_s:
                packed.append([])
            packed[-1].append(one)
        for some in packed:
            cost_s = _START_S + sum(one.cost_s for one in some)
            minutes = cluster.time or max(_LEAST_MIN, _ROOM * cost_s / 60)
            jobs.append(Job(tuple(one.id for one in some), needs[0], math.ceil(minutes), *needs[1:]))
    return jobs


_LINES = 20


class Submitted:
    """The jobs of a sweep.

    Args:
        cluster: how they are submitted.
        folder: where logs lie; the machines of the cluster have to see it.

    Raises:
        UsageError: submitit is not installed, or there is no such cluster.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        try:
            import submitit
        except ImportError as error:
            raise UsageError("--perf-slurm needs submitit", "pip install 'perflab[slurm]'") from error
        self._cluster = cluster
        try:
            self._executor = submitit.AutoExecutor(folder=folder / "logs-%j", cluster=cluster.cluster)
        except (RuntimeError, ValueError) as error:
            raise UsageError(f"--perf-slurm: {error}", "give cluster = 'local', or submit where sbatch is") from error
        self.is_slurm: bool = self._executor.cluster == "slurm"
        self._function: Any = submitit.helpers.CommandFunction
        self._refused: type[Exception] = submitit.core.utils.FailedJobError
        self._jobs: list[Any] = []

    def submit(self, job: Job, command: Sequence[str], cwd: Path) -> str:
        """Submit a job that runs a command; return its number.

        Raises:
            UsageError: the cluster refuses the job.
        """
        cluster = self._cluster
        known = {name: getattr(cluster, name) for name in ("partition", "account", "qos", "constraint")}
        asked: dict[str, Any] = {f"slurm_{name}": value for name, value in known.items() if value is not None}
        if self.is_slurm:
            # A job that begins again would run its cases again; what it lacks is run by the next session.
            asked |= {"slurm_additional_parameters": {"no-requeue": True}, "slurm_signal_delay_s": 10}
            asked |= {"slurm_setup": cluster.setup} if cluster.setup else {}
        asked |= {"mem_gb": cluster.memory_gb} if cluster.memory_gb is not None else {}
        asked |= {"gpus_per_node": job.gpus} if job.gpus else {}
        asked |= {"name": "perflab", "timeout_min": job.minutes, "nodes": job.nodes, "tasks_per_node": 1}
        self._executor.update_parameters(cpus_per_task=cluster.cpus, **asked)
        try:
            made = self._executor.submit(self._function(list(command), cwd=str(cwd), verbose=True))
        except self._refused as error:
            remedy = "ask for what the cluster has, in the file of the option"
            raise UsageError(f"--perf-slurm: {str(error).strip()}", remedy) from error
        self._jobs.append(made)
        return str(made.job_id)

    def states(self) -> dict[str, str]:
        """Return the state of each job that still exists, by number: ``RUNNING``, ``PENDING (Resources)``."""
        if not self.is_slurm:
            return {str(job.job_id): "RUNNING" for job in self._jobs if not job.done()}
        asked = ["squeue", "--noheader", "--me", "--format=%i %T %r"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=60)
        if told.returncode:  # the controller is busy: nothing is known
            return {str(job.job_id): "UNKNOWN" for job in self._jobs}
        rows = [line.split(maxsplit=2) for line in told.stdout.splitlines()]
        own = {str(job.job_id) for job in self._jobs}
        return {
            number: state if reason in ("None", "") else f"{state} ({reason})"
            for number, state, reason in rows
            if number in own and state not in ("COMPLETED", "COMPLETING", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        }

    def log_of(self, number: str) -> str:
        """Return the end of what a job has printed, and the path of the file that has it whole."""
        (job,) = (one for one in self._jobs if str(one.job_id) == number)
        found = []
        for path in (job.paths.stdout, job.paths.stderr):
            if path.exists():
                found.append("\n".join([f"{path}:", *path.read_text(errors="replace").splitlines()[-_LINES:]]))
        return "\n".join(found)

    def cancel(self) -> None:
        """Cancel every job that still exists."""
        for job in self._jobs:
            job.cancel()


def command_of(job: Job, cluster: Cluster, arguments: Sequence[str]) -> list[str]:
    """Return the command that runs pytest in a job: on several nodes ``torchrun`` on each, which meet at the first."""
    python = cluster.python or [sys.executable]
    if job.nodes == 1:
        return [*python, "-m", "pytest", *arguments]
    meeting = (
        f"--nnodes={job.nodes} --nproc-per-node={job.ranks // job.nodes} --rdzv-backend=c10d --rdzv-id=$SLURM_JOB_ID "
        "--rdzv-endpoint=$SLURM_LAUNCH_NODE_IPADDR:$((20000 + SLURM_JOB_ID % 20000))"
    )
    script = f"exec {shlex.join(python)} -m torch.distributed.run {meeting} -m pytest {shlex.join(arguments)}"
    return ["bash", "-c", script]


class JobFile(Data, frozen=True):
    """The instructions of a job, in a file whose path is the job's option."""

    cases: list[str]
    reports: str
    """The path of the file to append reports to."""
    baselines: str | None = None
    """The folder of the job's own baselines, if it saves any: it begins as a copy of the project's."""


def read_job_file(path: str) -> JobFile:
    """Read what a job is told."""
    return msgspec.json.decode(Path(path).read_bytes(), type=JobFile)


def become_a_job(config: pytest.Config) -> None:
    """Make this process collect and run only the tests of its job, and write their reports."""
    from perflab.running.case.fresh_process import FreshProcess
    from perflab.tiers.job import Job

    job = read_job_file(config.getoption("perf_sweep_job"))
    config.pluginmanager.register(FreshProcess(config, Job(cases=job.cases)), "perflab-fresh-process")
    if os.environ.get("RANK", "0") == "0":  # of the ranks that torchrun has started on several nodes, the first
        config.pluginmanager.register(Writer(config, Path(job.reports)), "perflab-reports")


class Writer:
    """Plugin of a job that appends its tests' reports to the file."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path
        self._reports: dict[str, list[Any]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Write that a test begins."""
        self._append({"begun": case_id(item)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until its test has ended."""
        plain = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._reports.setdefault(report.nodeid, []).append(plain)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Write the test's reports."""
        self._append({"ended": nodeid, "reports": self._reports.pop(nodeid, [])})

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Write that the job has ended by itself, its baselines saved."""
        self._append({"whole": True})

    def _append(self, line: dict[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(line, default=str) + "\n")


class Reader:
    """Reads what a job has written since the last time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = 0
        self.running: str | None = None
        """The test that has begun and not ended."""
        self.is_whole = False
        """Whether the job has ended by itself."""

    def new(self) -> list[tuple[str, list[Any]]]:
        """Return the tests that have ended, each with its reports as plain data."""
        found = []
        if not self._path.exists():
            return []
        with self._path.open() as file:
            file.seek(self._position)
            while (line := file.readline()).endswith("\n"):  # the last one may be half written
                self._position = file.tell()
                told = json.loads(line)
                self.running = told.get("begun")
                self.is_whole = "whole" in told
                if "ended" in told:
                    found.append((told["ended"], told["reports"]))
        return found
