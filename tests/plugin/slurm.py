"""A Slurm of this machine alone: a controller and two nodes on loopback, for the length of a test."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "squeue", "scancel", "scontrol")
_CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=2
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 Gres=gpu:4 State=UNKNOWN
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 Gres=gpu:4 State=UNKNOWN
PartitionName=test Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Why there can be no Slurm here; None if there can."""
    found = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if found:
        return f"no {', '.join(found)}: apt-get install slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge"
    return None if os.geteuid() == 0 else "slurmd runs as root"


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class Slurm:
    """Two nodes of this machine, each with four GPUs that do not exist.

    ``variables``: what a process needs to submit to it.
    """

    def __init__(self, folder: Path) -> None:
        self.variables = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}

    def run(self, *command: str) -> str:
        told = subprocess.run(command, env=os.environ | self.variables, capture_output=True, text=True, timeout=60)
        assert told.returncode == 0, told.stderr
        return told.stdout


@contextmanager
def slurm(folder: Path) -> Iterator[Slurm]:
    """Start one; skip the test if its nodes are not idle within 30 seconds, as in a container that forbids it."""
    (folder / "state").mkdir()
    sockets = [socket.socket() for _ in range(3)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    (folder / "slurm.conf").write_text(_CONFIG.format(folder=folder, ports=ports))
    for number in range(4):  # what stands for a GPU's device file
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={folder}/gpu[0-3]\n")
    for node in ("n1", "n2"):
        (folder / f"spool-{node}").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    made = Slurm(folder)
    variables = os.environ | made.variables
    munged = ["munged", "-F", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    munged += [f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"]
    commands = [munged, ["slurmctld", "-D", "-i"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"]]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            log = (folder / f"{command[0]}-{len(running)}.out").open("wb")
            running.append(subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True))
            time.sleep(0.5)
        end = time.monotonic() + 30
        while "idle" not in (states := _states(made)) or "n1" not in states:
            if time.monotonic() > end:
                pytest.skip(f"Slurm did not start: {states}\n{_logs(folder)}")
            time.sleep(0.2)
        yield made
    finally:
        for one in reversed(running):
            one.terminate()
        for one in running:
            try:
                one.wait(10)
            except subprocess.TimeoutExpired:
                one.kill()


def _states(made: Slurm) -> str:
    told = subprocess.run(
        ["sinfo", "--noheader", "-N", "-o", "%N %t"], env=os.environ | made.variables, capture_output=True, text=True
    )
    return told.stdout + told.stderr


def _logs(folder: Path) -> str:
    return "\n".join(
        path.read_text(errors="replace")[-2000:] for path in sorted([*folder.glob("*.log"), *folder.glob("*.out")])
    )
