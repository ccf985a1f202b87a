"""Submits the jobs of a sweep with submitit, and knows which of them still exist.

Slurm's accounting, which tells submitit how a job ended, is missing on many clusters: a job that was killed would then
run for ever. So what exists is asked of ``squeue``.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perflab.base.errors import UsageError
from perflab.sweeps.plan import Cluster, Job

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
        self._jobs: list[Any] = []

    def submit(self, job: Job, command: Sequence[str], cwd: Path) -> str:
        """Submit a job that runs a command; return its number."""
        cluster = self._cluster
        known = {"partition": cluster.partition, "account": cluster.account, "qos": cluster.qos}
        known |= {"constraint": cluster.constraint}
        slurm: dict[str, Any] = {f"slurm_{name}": value for name, value in known.items() if value is not None}
        if self.is_slurm:
            # A job that begins again would run its cases again; what it lacks is run by the next session.
            slurm |= {"slurm_additional_parameters": {"no-requeue": True}, "slurm_signal_delay_s": 10}
            slurm |= {"slurm_setup": cluster.setup} if cluster.setup else {}
        memory = {"mem_gb": cluster.memory_gb} if cluster.memory_gb is not None else {}
        gpus = {"gpus_per_node": job.gpus} if job.gpus else {}
        self._executor.update_parameters(
            name="perflab",
            timeout_min=job.minutes,
            nodes=job.nodes,
            tasks_per_node=1,
            cpus_per_task=cluster.cpus,
            **memory,
            **gpus,
            **slurm,
        )
        made = self._executor.submit(self._function(list(command), cwd=str(cwd), verbose=True))
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
    return [
        "bash",
        "-c",
        f"exec {shlex.join(python)} -m torch.distributed.run {meeting} -m pytest {shlex.join(arguments)}",
    ]
