"""Measuring in fresh processes: a replicate, as judging and saving need it.

The child runs the same pytest command with a job file; it collects only the files it needs, runs only the cases
it was given, judges nothing, and appends each measurement to the results file as soon as it has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from perflab.errors import FreshProcessError
from perflab.plugin.options import REPLICATE_OPTION
from perflab.records import Data, Measurement, OutOfMemory

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
    results: str | None = None
    """Path of the file that measurements are appended to."""
    under_callgrind: bool = False
    """Whether the process only counts the instructions of a call, and reports nothing itself."""
    serve: Serve | None = None
    """Set in a process of a paired run, which measures in turns and answers on a socket."""


class JobResult(Data, frozen=True):
    """One line of the results file."""

    case: str
    measurement: Measurement | None = None
    out_of_memory: OutOfMemory | None = None


def read_job(path: str) -> Job:
    """The job that this process was started for."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Job)


def report_measurement(job: Job, case: str, measurement: Measurement | None, out_of_memory: OutOfMemory | None) -> None:
    """Append a measurement to the job's results, at once, so that a later crash loses nothing."""
    assert job.results is not None
    with open(job.results, "ab") as file:
        file.write(
            msgspec.json.encode(JobResult(case=case, measurement=measurement, out_of_memory=out_of_memory)) + b"\n"
        )


def quieten(config: pytest.Config) -> None:
    """In a child: drop what the parent's command asks of the parent alone."""
    for dest, value in _SILENCED.items():
        if hasattr(config.option, dest):
            setattr(config.option, dest, value)


def measure_fresh(config: pytest.Config, cases: Sequence[str], device: str) -> dict[str, JobResult]:
    """Measure cases in one fresh process.

    Args:
        config: the running session's configuration, whose command is repeated.
        cases: node ids.
        device: where to measure, exactly: a worker's GPU would be another one in a process that is no worker.

    Returns:
        Node id to what was measured; a case that the child could not measure is missing.

    Raises:
        FreshProcessError: the child measured none of the cases; its last output is in the error.
    """
    with tempfile.TemporaryDirectory(prefix="perflab-") as folder:
        job = Job(cases=list(cases), results=str(Path(folder, "results.jsonl")))
        job_file = Path(folder, "job.json")
        job_file.write_bytes(msgspec.json.encode(job))
        command, environment = child_command(config, job_file, device)
        done = subprocess.run(
            command,
            cwd=config.invocation_params.dir,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        results = Path(folder, "results.jsonl")
        lines = results.read_bytes().splitlines() if results.exists() else []
    found = [msgspec.json.decode(line, type=JobResult) for line in lines]
    if not found:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise FreshProcessError(
            f"a fresh process measured nothing (exit status {done.returncode}); it said:\n{tail}",
            f"run the case alone: pytest {cases[0]!r}",
        )
    return {line.case: line for line in found}


def child_command(config: pytest.Config, job_file: Path, device: str) -> tuple[list[str], dict[str, str]]:
    """The running session's command again, for a job, and the environment to run it in."""
    command = [sys.executable, "-m", "pytest", *repeated_arguments(config), f"--perf-device={device}"]
    command.append(f"{REPLICATE_OPTION}={job_file}")
    # The parent's import path, whichever way it came by it (rootdir, conftest, `python -m`, pythonpath).
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    for name in [name for name in environment if name.startswith("PYTEST_XDIST")]:
        del environment[name]
    return command, environment


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
