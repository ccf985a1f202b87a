"""Cases as jobs of a cluster: nothing is lost, nothing runs twice, and the same command runs the rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perflab.base.errors import SettingError
from perflab.sweeps.jobs import Case, Cluster, Reader, pack, read_cluster
from tests.plugin.conftest import CONFTEST
from tests.plugin.slurm import Slurm, missing, slurm

CASES = """
import os, signal, subprocess, time
from pathlib import Path
import pytest, torch
from conftest import Virtual

def work(x):
    Virtual.now_ns += 10_000_000
    return x + 1

@pytest.mark.parametrize("number", range(12))
def test_it(perf, number):
    if Path("kill").exists() and number == int(Path("kill").read_text()):
        Path("kill").unlink()
        if "SLURM_JOB_ID" in os.environ:
            subprocess.run(["scancel", "--full", "--signal=KILL", os.environ["SLURM_JOB_ID"]], check=True)
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)
    with open("ran", "a") as file:
        file.write(f"{number} {os.environ.get('SLURMD_NODENAME', '')}\\n")
    perf(work, torch.ones(8))
"""


NO_GRACE = """
import perflab.sweeps.session as session

session._GRACE_S = 0.5  # one machine: no folder lags

def pytest_configure(config):  # takes what its own hook has sent to each worker, as pytest-rerunfailures does
    assert getattr(config, "workerinput", {"own": 1})["own"]
"""


class Sweeps:
    """A project whose cases write down that they have run."""

    def __init__(self, folder: Path, python: str, variables: dict[str, str] | None = None) -> None:
        self.folder = folder
        self._python = python
        self._variables = variables or {}
        (folder / "test_it.py").write_text(CASES)
        (folder / "conftest.py").write_text(CONFTEST + NO_GRACE)
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\n")

    def start(self, *options: str) -> subprocess.Popen[str]:
        # Where CI is set, pytest's summary repeats a failure whole.
        ours = ("PERFLAB", "PYTEST", "CI", "BUILD_NUMBER")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        plain |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | self._variables
        command = [self._python, "-m", "pytest", "-m", "perf", "--perf-json=out.json", "--perf-budget=0.05"]
        command += ["--perf-counts=off", "--perf-slurm=cluster.toml", *options]
        piped = subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=plain, stdout=piped, stderr=subprocess.STDOUT, text=True)

    def run(self, *options: str) -> str:
        return self.start(*options).communicate(timeout=300)[0]

    def cluster(self, text: str) -> None:
        # Submitit sets the variable for every job; a warm process does not heed it.
        python = json.dumps(["env", "--unset=CUDA_VISIBLE_DEVICES", self._python])
        (self.folder / "cluster.toml").write_text(f"python = {python}\n{text}")

    def verdicts(self) -> Counter[str]:
        results = json.loads((self.folder / "out.json").read_text())["results"]
        return Counter(one["judgement"]["verdict"] for one in results)

    def ran(self) -> Counter[int]:
        return Counter(int(line.split()[0]) for line in (self.folder / "ran").read_text().splitlines())


@pytest.fixture
def cluster() -> Iterator[Slurm]:
    if (why := missing()) is not None:
        pytest.skip(why)
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # paths of sockets are short
        Path(name).chmod(0o755)
        with slurm(Path(name)) as made:
            yield made


def test_a_killed_job_and_a_drained_node_lose_nothing_and_a_rerun_finishes_the_rest(
    cluster: Slurm, tmp_path: Path, python: str
) -> None:
    project = Sweeps(tmp_path, python, cluster.variables)
    project.cluster("job_minutes = 0.005\ncpus = 1\n")  # four jobs of three cases
    (tmp_path / "kill").write_text("4")
    running = project.start()
    assert running.stdout is not None
    for line in running.stdout:
        if "running" in line:
            break
    cluster.run("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    said = running.communicate(timeout=300)[0]
    killed = re.search(r"its job (\d+) ended before it did", said)
    assert killed is not None, said
    assert "the same command runs what is missing, and nothing twice" in said
    first = project.ran()
    assert max(first.values()) == 1
    assert 4 not in first
    verdicts = project.verdicts()
    assert verdicts.total() == 12
    assert verdicts["failed"] == 12 - len(first), "the case that was killed, and those that came after it in its job"

    cluster.run("scontrol", "update", "nodename=n2", "state=resume")
    said = project.run()
    assert f"{len(first)} tests of this sweep had ended in an earlier session" in said
    assert project.ran() == Counter(range(12)), "each once"
    assert project.verdicts() == {"new": 12}
    assert not list((tmp_path / ".perflab" / "sweeps").iterdir()), "the sweep is whole"


def test_gpus_are_asked_of_slurm_for_each_rank_or_as_the_mark_says(cluster: Slurm, tmp_path: Path, python: str) -> None:
    project = Sweeps(tmp_path, python, cluster.variables)
    project.cluster("gpus = 1\ncpus = 1\n")
    (tmp_path / "test_it.py").write_text(
        "import os, pytest\n"
        "from conftest import Virtual\n"
        "def work():\n    Virtual.now_ns += 10_000_000\n"
        "def note(perf, name):\n"
        "    open(name, 'w').write(os.environ.get('SLURM_GPUS_ON_NODE', ''))\n"
        "    perf(work)\n"
        "def test_one(perf):\n    note(perf, 'one')\n"
        "@pytest.mark.perf(gpus=3)\n"
        "def test_three(perf):\n    note(perf, 'three')\n"
    )
    said = project.run("--perf-device=cpu")
    assert (tmp_path / "three").is_file(), said
    assert [(tmp_path / name).read_text() for name in ("one", "three")] == ["1", "3"]
    project.cluster('partition = "nope"\n')
    assert "ERROR: --perf-slurm: sbatch: error: invalid partition" in project.run()


def test_a_case_on_two_nodes_is_one_group_of_all_their_ranks(cluster: Slurm, tmp_path: Path, python: str) -> None:
    project = Sweeps(tmp_path, python, cluster.variables)
    project.cluster("cpus = 1\n")
    (tmp_path / "test_it.py").write_text(
        "import os, pytest, torch\nfrom conftest import Virtual\nfrom torch import distributed\n"
        "def work(x):\n    Virtual.now_ns += 10_000_000\n    distributed.all_reduce(x)\n"
        "@pytest.mark.perf(world_size=2, nodes=2)\n"
        "def test_sum(perf, process_group, rank):\n"
        "    open(f'node-{rank}', 'w').write(os.environ['SLURMD_NODENAME'])\n"
        "    x = torch.full((4,), rank + 1.0)\n"
        "    distributed.all_reduce(x)\n"
        "    assert x.tolist() == [3.0] * 4\n"
        "    perf(work, x)\n"
    )
    said = project.run("--perf-device=cpu")
    assert project.verdicts() == {"new": 1}, said
    assert {(tmp_path / f"node-{rank}").read_text() for rank in (0, 1)} == {"n1", "n2"}


def test_without_slurm_the_jobs_run_here_failures_have_logs_and_baselines_are_joined(
    tmp_path: Path, python: str
) -> None:
    project = Sweeps(tmp_path, python)
    project.cluster('cluster = "local"\njob_minutes = 0.1\n')
    (tmp_path / "test_it.py").write_text(CASES.replace("range(12)", "range(4)"))
    (tmp_path / "kill").write_text("2")
    update = ("--perf-update", "--perf-replicates=2")
    said = project.run(*update)
    assert "its job" in said
    assert ".out:" in said
    assert project.verdicts()["failed"] == 4 - len(project.ran())
    said = project.run(*update)
    assert "baselines of the jobs joined into" in said
    assert not list((tmp_path / ".perflab" / "sweeps").iterdir()), "the sweep is whole"
    saved = json.loads(next((tmp_path / "baselines").glob("exact-*/test_it.json")).read_text())["cases"]
    assert sorted(saved) == [f"test_it[{number}]" for number in range(4)], "of the job that died before it saved, too"
    project.run("-k", "3")
    assert project.verdicts() == {"ok": 1}, "held to what was saved"


def test_code_that_git_does_not_know_is_run_anew_once_it_has_changed(tmp_path: Path, python: str) -> None:
    project = Sweeps(tmp_path, python)
    project.cluster('cluster = "local"\n')
    (tmp_path / "test_it.py").write_text(CASES.replace("range(12)", "range(2)"))
    for name in ("before", "after"):
        (tmp_path / "test_it.py").write_text((tmp_path / "test_it.py").read_text() + f"# {name}\n")
        (tmp_path / "kill").write_text("1")
        assert "had ended in an earlier session" not in project.run()
    assert "1 test of this sweep had ended in an earlier session" in project.run()
    assert project.ran() == {0: 2, 1: 1}


def test_a_job_that_dies_before_its_first_case_shows_its_log(tmp_path: Path, python: str) -> None:
    project = Sweeps(tmp_path, python)
    project.cluster('cluster = "local"\n')
    (tmp_path / "conftest.py").write_text(
        f"{CONFTEST}{NO_GRACE}import sys\n"
        "if any('--perf-sweep-job' in one for one in sys.argv):\n    sys.exit('no such library')\n"
    )
    (tmp_path / "test_it.py").write_text(CASES.replace("range(12)", "range(2)"))
    said = project.run()
    assert "it has not begun: its job" in said
    assert said.count("no such library") == 1, "in one of the two reports"
    assert project.verdicts() == {"failed": 2}


def test_workers_and_unknown_settings_are_refused(tmp_path: Path, python: str) -> None:
    project = Sweeps(tmp_path, python)
    project.cluster('cluster = "local"\n')
    assert "--perf-slurm and -n: jobs run their cases one after the other" in project.run("-p", "xdist.plugin", "-n2")
    (tmp_path / "test_it.py").write_text(
        CASES.replace("@pytest", "@pytest.mark.perf(world_size=3, nodes=2)\n@pytest", 1)
    )
    assert "3 ranks on 2 nodes" in (said := project.run())
    assert "INTERNALERROR" not in said
    (tmp_path / "test_it.py").write_text(CASES)
    (tmp_path / ".perflab").write_text("no folder")
    assert re.search(r"ERROR: cannot make the folder \S+: File exists", said := project.run())
    assert "INTERNALERROR" not in said
    project.cluster('partitions = "gpu"\n')
    said = project.run()
    assert "partitions" in said
    assert "name a TOML file with some of cluster, partition, account" in said
    with pytest.raises(SettingError, match="no-such"):
        read_cluster(tmp_path / "no-such.toml")


def test_cases_are_packed_by_gpus_and_cost_in_their_order() -> None:
    cases = [Case(f"{number}", 300.0, 0) for number in range(8)] + [Case("gpu", 30.0, 2)]
    jobs = pack(cases, Cluster(job_minutes=20.0))
    assert [job.cases for job in jobs] == [("0", "1", "2", "3"), ("4", "5", "6", "7"), ("gpu",)]
    assert [job.gpus for job in jobs] == [0, 0, 2]
    assert [job.minutes for job in jobs] == [63, 63, 5]
    assert pack(cases[:2], Cluster(time=90.0))[0].minutes == 90
    assert len(pack([Case("long", 9000.0, 0), *cases[:2]], Cluster())) > 1


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "reports.jsonl"
    reader = Reader(path)
    assert reader.new() == []
    whole = json.dumps({"begun": "a"}) + "\n" + json.dumps({"ended": "a", "reports": [1]}) + "\n"
    path.write_text(whole[:25])
    assert (reader.new(), reader.running) == ([], "a")
    path.write_text(whole)
    assert (reader.new(), reader.running) == ([("a", [1])], None)
    assert reader.new() == []
