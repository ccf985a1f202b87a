"""Plans the jobs of a sweep: reads the file of ``--perf-slurm``, and packs cases into few jobs by their cost."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perflab.base.data import Data, Positive
from perflab.base.errors import SettingError

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
