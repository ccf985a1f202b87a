"""A small project in which time is told by a virtual clock, so that stories about slowness are exact."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CONFTEST = """
from pathlib import Path

import perflab.results.environment as environment
import perflab.measure.clocks.clock as clock
import perflab.measure.machine.evidence as evidence
import perflab.measure.clocks.calibration as calibration

class Virtual:
    now_ns = 0

clock.read_ns = clock.read_processor_ns = clock.read_all_processors_ns = lambda: Virtual.now_ns

# No time passes while they work; the first product would start threads and load a library in each process.
calibration._ADDITIONS = calibration._FILLED = 1
calibration._products = lambda: lambda: None

environment.usable_cores = lambda: 2

queue = Path(__file__).with_name("neighbours.txt")
cores, *later = queue.read_text().split() if queue.exists() else ["0"]
if later:
    queue.write_text(" ".join(later))

def read_host():
    now = Virtual.now_ns
    cpu = evidence.CpuTime(cores=2, total_ns=2 * now, busy_ns=int((1 + float(cores)) * now), stolen_ns=0)
    return evidence.Host(at_ns=now, cpu=cpu, own_ns=now)

evidence.read_host = read_host
"""

CASE = """
from pathlib import Path

import torch
from conftest import Virtual

here = Path(__file__).parent

def work():
    cost_ms, kib = (int(n) for n in (here / "cost.txt").read_text().split())
    block = torch.empty(1024 * kib, dtype=torch.uint8)
    Virtual.now_ns += 1_000_000 * cost_ms
    return block.numel()

def test_work(perf):
    assert perf(work) > 0
"""

SPLITTER = """
def pytest_addoption(parser):
    parser.addoption("--part", type=int)

def pytest_collection_modifyitems(config, items):
    half, part = (len(items) + 1) // 2, config.getoption("part")
    if part is not None:
        items[:] = items[half:] if part == 2 else items[:half]
"""
"""What a plugin that splits tests over machines adds to a conftest: each part has one half of what was collected."""

KERNELS = """
import torch, triton
import triton.language as tl
from perflab import KernelExample

@triton.jit
def double(x_ptr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x_ptr + at, tl.load(x_ptr + at) * 2)

EXAMPLES = [KernelExample("double", double, {"x_ptr": torch.empty(128, device="meta"), "BLOCK": 128})]
"""
"""A module of a user's with one registered Triton kernel."""

REFUSED = pytest.ExitCode.USAGE_ERROR

A_DAY_MS = 24 * 3600 * 1000
"""A call that takes so long, in virtual time, leaves a run of an hour no time for another look at it."""


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_arrives() -> Iterator[None]:
    """Scripts start background jobs with Ctrl-C ignored, and children inherit that: our runs could not be stopped."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(folder: Path, python: str, *arguments: str) -> str:
    """Run pytest, press Ctrl-C once a test has made a file ``hanging``, and give what was printed.

    As a terminal does it, which sends the signal to all processes that it has started.
    """
    command = [python, "-m", "pytest", *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 120
    while not (folder / "hanging").exists():
        assert time.monotonic() < deadline, "what hangs was never reached"
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.05)
    if python == sys.executable:
        os.killpg(process.pid, signal.SIGINT)
    else:  # each warm process has a session of its own
        for pid in warm_in(folder):
            with contextlib.suppress(ProcessLookupError):  # ended meanwhile
                os.kill(pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, output
    return output


def warm_in(folder: Path) -> list[int]:
    """The other processes that work in a folder, without the launchers that wait for warm ones."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            if (path / "cwd").readlink() == folder and b"-IS" not in (path / "cmdline").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def run_pytest(
    pytester: pytest.Pytester, python: str, *arguments: str, ret: int | None = None, **outcomes: int
) -> pytest.RunResult:
    """What pytester's subprocess gives, with another Python; its outcomes and exit status are those given, if any."""
    temporary = tempfile.mkdtemp(prefix="runpytest-", dir=pytester.path)
    result = pytester.run(python, "-mpytest", f"--basetemp={temporary}", *arguments, timeout=240)
    if outcomes:
        result.assert_outcomes(**outcomes)
    assert ret is None or result.ret == ret
    return result


def one_line(result: pytest.RunResult) -> str:
    """What was printed, in one line however it was wrapped."""
    return " ".join(result.stdout.str().split())


_LEFT_BY: dict[Any, frozenset[tuple[str, bytes]]] = {}
"""Files that sessions have left or changed, by what those sessions depend on."""


class Folder:
    """A project whose sessions run in processes of their own."""

    def __init__(self, pytester: pytest.Pytester, python: str, ini: str = "") -> None:
        self.pytester = pytester
        self.python = python
        pytester.makeini(f"[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\n{ini}")

    def pytest(self, *arguments: str, **expected: int) -> pytest.RunResult:
        """One session, which chooses by nothing but the arguments."""
        return run_pytest(self.pytester, self.python, *arguments, **expected)

    def prepare(self, *arguments: str, **expected: int) -> None:
        """A session that a story begins with, of which nothing but the files that it adds or changes is looked at.

        They are copied where an earlier story has had the same session: the same Python, files, arguments and
        environment, less the variables that name a folder of this run.
        """
        before = self._files()
        run_folder = os.environ["TMPDIR"].rpartition("/")[0]
        environment = {name: value for name, value in os.environ.items() if run_folder not in value}
        environment.pop("PYTEST_CURRENT_TEST")
        is_repository = (self.pytester.path / ".git").exists()
        head = git_in(self.pytester.path, "rev-parse", "HEAD") if is_repository else ""
        session = (self.python, before, head, arguments, tuple(sorted(environment.items())))
        if session not in _LEFT_BY:
            self.pytest(*arguments, **expected)
            _LEFT_BY[session] = self._files() - before
        for name, content in _LEFT_BY[session]:
            path = self.pytester.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def _files(self) -> frozenset[tuple[str, bytes]]:
        """The project's files, without those that pytester, Python and git write beside."""
        beside = re.compile(r"runpytest-|stdout$|stderr$|\.git/|(.*/)?__pycache__/")
        named = {str(path.relative_to(self.pytester.path)): path for path in self.pytester.path.rglob("*")}
        kept = {name: path for name, path in named.items() if path.is_file() and not beside.match(name)}
        return frozenset((name, path.read_bytes()) for name, path in kept.items())

    def perflab(self, *arguments: str) -> pytest.RunResult:
        """The command."""
        return self.pytester.run(self.python, "-m", "perflab", *arguments, timeout=240)

    def results(self, name: str = "results.json") -> list[dict[str, Any]]:
        """What a results file has of each case."""
        rows: list[dict[str, Any]] = json.loads((self.pytester.path / name).read_text())["results"]
        return rows

    def result(self, name: str = "results.json") -> dict[str, Any]:
        """What it has of the only case."""
        (row,) = self.results(name)
        return row

    def add(self, more: str, file: str = "test_story.py") -> str:
        """Add to a file, and give all that is in it then."""
        text = (self.pytester.path / file).read_text() + more
        (self.pytester.path / file).write_text(text)
        return text

    def edit(self, old: str, new: str, file: str = "test_story.py") -> None:
        """Change the source."""
        path = self.pytester.path / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


class Project(Folder):
    """A project of one perf case whose time (virtual) and memory (real) are set from outside."""

    def __init__(self, pytester: pytest.Pytester, python: str = sys.executable) -> None:
        super().__init__(pytester, python)
        pytester.makeconftest(CONFTEST)
        self.test_file = pytester.makepyfile(test_story=CASE)
        self.cost(ms=100, kib=512)

    def cost(self, *, ms: int, kib: int = 512) -> None:
        """What one call takes from now on."""
        (self.pytester.path / "cost.txt").write_text(f"{ms} {kib}")

    def neighbours(self, *cores: float) -> None:
        """CPU cores that other processes use beside each of the next processes, and beside all after the last."""
        (self.pytester.path / "neighbours.txt").write_text(" ".join(map(str, cores)))

    def run(self, *args: str, **expected: int) -> pytest.RunResult:
        """One more session of the perf cases."""
        return self.pytest("-m", "perf", *args, **expected)

    def save(self, *args: str, cases: int = 1) -> None:
        """Have a baseline of each case, which all pass."""
        self.prepare("-m", "perf", "--perf-update", *args, passed=cases)

    def baseline_file(self) -> Path:
        """The one file of committed times that there is."""
        (path,) = (self.pytester.path / "baselines").glob("cpu-*/*.json")
        return path

    def saved_cases(self) -> dict[str, Any]:
        """The cases with committed times, by name."""
        cases: dict[str, Any] = json.loads(self.baseline_file().read_text())["cases"]
        return cases

    def saved_case(self) -> dict[str, Any]:
        """The only one."""
        (case,) = self.saved_cases().values()
        return dict(case)

    def exact_file(self) -> Path:
        """The one file of exact quantities that there is."""
        (path,) = (self.pytester.path / "baselines").glob("exact-*/*.json")
        return path

    def needs(self) -> dict[str, dict[str, Any]]:
        """What each case needs on this machine, by its name."""
        cases = json.loads(self.exact_file().read_text())["cases"]
        return {name: next(iter(case["needs"].values())) for name, case in cases.items()}


def git_in(folder: Path, *arguments: str, **variables: str) -> str:
    """What git prints, asked in a folder."""
    identity = ["-c", "user.name=perflab", "-c", "user.email=perflab@example.org", "-c", "commit.gpgsign=false"]
    command, environment = ["git", *identity, *arguments], os.environ | variables
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


def git(project: Project, *arguments: str) -> str:
    """What git prints, asked in the project's folder."""
    return git_in(project.pytester.path, *arguments)


def commit(project: Project, message: str, source: str | None = None) -> None:
    """Commit all that there is, with this as the tests if it is given."""
    if source is not None:
        project.test_file.write_text(source)
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", message)


def begin_repository(project: Project) -> None:
    """Make the project a git repository with one commit."""
    (project.pytester.path / ".gitignore").write_text("__pycache__/\n.perflab/\n/stdout\n/stderr\n/runpytest-*\n")
    git(project, "init", "--quiet", "--initial-branch=main")
    git(project, "add", "--all")
    day = "2026-01-01T00:00:00Z"  # the same commit in every story: sessions in it can be copied
    words = ("commit", "--quiet", "--message", "first")
    git_in(project.pytester.path, *words, GIT_AUTHOR_DATE=day, GIT_COMMITTER_DATE=day)


def worktrees(project: Project) -> int:
    """How many there are beside the project itself."""
    return len(git(project, "worktree", "list").splitlines()) - 1


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measurements take turns through a lock file there: a story need not wait for other work on this machine."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(
        tempfile, "tempdir", str(tmp_path)
    )  # of stories in this process, which knows its folder already
    for variable in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(variable, raising=False)  # the story's sessions are nobody's workers
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)  # each process would compile all modules again


@pytest.fixture(scope="session")
def kernels_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Triton's for what stories compile, which is much the same."""
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, python: str) -> Project:
    # A story starts many processes; those of other plugins' imports would be most of its time.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return Project(pytester, python)
