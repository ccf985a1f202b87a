"""The job of a fresh process, and what the process reports."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec

from perflab.base.data import Data, Parameters, to_json
from perflab.processes.channel import Alive
from perflab.ranks.group import Place
from perflab.results.measurement import Measurement, OutOfMemory, Quote
from perflab.results.records import Environment


class Serve(Data, frozen=True):
    """The source of the code that a process of a paired run uses."""

    foreign: str | None = None
    """The other side's tree, from which nothing may be imported."""
    own: str | None = None
    """The process's own tree, which may lie within the other side's tree."""
    first: list[str] = []
    """Folders from which top-level modules are imported before any other place."""


class Job(Data, frozen=True):
    """The job of a fresh process: the cases to measure, and how. A ``JobResult`` answers for each case."""

    cases: list[str] | None
    """The node ids of the cases; None: all cases that the command selects."""
    others: bool = False
    """Whether the process also serves all other cases that the command selects."""
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
    place: Place | None = None
    """The process's place among the ranks that run the job's one case together; None: it runs alone."""
    once: bool = False
    """Whether each case is called once, untimed, as in a run that measures nothing."""
    serve: Serve | None = None
    """The code to use in a process of a paired run, which measures in turns and answers on a socket; else None."""


class Stated(Data, frozen=True):
    """The statements of the body of a case in ranks (work, facts, quotes), and where the case ran."""

    environment: Environment | None = None
    work: dict[str, float] = {}
    quotes: list[Quote] = []
    facts: Parameters = {}
    matmul_flops_per_second: float | None = None
    matmul_precision: str | None = None


class JobResult(Data, frozen=True, tag=True):
    """A fresh process's answer: a case's measurement, or why there is none. It is sent at once: a crash may follow."""

    case: str
    measurement: Measurement | None = None
    out_of_memory: OutOfMemory | None = None
    problem: str | None = None
    """Why there is neither a measurement nor an out-of-memory record, if the process knows the reason."""
    at_ns: int = 0
    """The moment of the problem on the machine's monotonic clock, to tell which rank was first; 0: unknown."""
    skipped: str | None = None
    """Why the case was skipped in its rank; None if it was not, or is in no rank."""
    stated: Stated | None = None
    """The statements of the case's body; None for a case that is in no rank."""


JOB_RESULTS: msgspec.json.Decoder[JobResult | Alive] = msgspec.json.Decoder(JobResult | Alive)


def read_job(path: str) -> Job:
    """Read the job for which this process was started."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Job)


def write_job(job: Job, folder: Path) -> str:
    """Write a job into a new file in a folder, and return the file's path."""
    handle, path = tempfile.mkstemp(suffix=".json", dir=folder)
    with os.fdopen(handle, "wb") as file:
        file.write(to_json(job))
    return path
