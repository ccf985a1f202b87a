"""A warm process is to a story what Python's own would be."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere stories run in Python's own processes")

CONFTEST = """
import json, os, random, sys, tempfile, threading

warm = "torch" in sys.modules

def pytest_configure():
    told = {
        "directory": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv[1:],
        "main": sys.modules["__main__"].__name__,
        "environment": {name: value for name, value in os.environ.items() if name != "PIPE"},
        "temporary": tempfile.gettempdir(),
        "open": sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")),
        "threads": len(os.listdir("/proc/self/task")),
        "dont_write_bytecode": sys.dont_write_bytecode,
        "ours": sorted(name for name in sys.modules if name.split(".")[0] in ("perflab", "triton", "tests")),
    }
    with open(os.environ["TOLD"], "w") as file:
        json.dump({"warm": warm, "number": random.random(), "told": told}, file)
    print("out"); print("err", file=sys.stderr)
    os.write(int(os.environ["PIPE"]), b"inherited")
    exec(os.environ["THEN"])
"""


def run(
    python: str, folder: Path, then: str = "import pytest; pytest.exit('enough', 7)", **variables: str
) -> dict[str, Any]:
    """A pytest that tells what it is like; how it ended, and what it said."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "elsewhere").mkdir(exist_ok=True)
    reading, writing = os.pipe()
    # PWD: as a shell sets it, the launcher's too
    environment = {
        **os.environ,
        "PYTHONPATH": "elsewhere",
        "PWD": str(folder),
        "TOLD": str(folder / "told.json"),
        "THEN": then,
    }
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "a b", "-s"],
        cwd=folder,
        env={**environment, "PIPE": str(writing), "TMPDIR": str(folder / "elsewhere"), **variables},
        pass_fds=[writing],
        capture_output=True,
        check=False,
    )
    os.close(writing)
    inherited = os.read(reading, 100)
    os.close(reading)
    found: dict[str, Any] = json.loads((folder / "told.json").read_text())
    ended = {"status": done.returncode, "out": done.stdout, "err": done.stderr, "inherited": inherited}
    return {**found, "ended": ended}


@pytest.fixture(autouse=True)
def light(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def test_a_warm_process_differs_from_pythons_own_in_what_is_imported_alone(python: str, tmp_path: Path) -> None:
    own, warm, again = (run(which, tmp_path) for which in (sys.executable, python, python))
    assert (own["warm"], warm["warm"]) == (False, True)
    for what in own["told"]:
        assert warm["told"][what] == own["told"][what], what
    assert warm["ended"] == own["ended"]
    assert warm["ended"]["status"] == 7
    assert warm["ended"]["inherited"] == b"inherited"
    assert warm["number"] != again["number"], "each has a seed of its own"


def test_one_with_the_compiler_has_that_and_triton_alone_imported_too(
    python_with_compiler: str, tmp_path: Path
) -> None:
    own, warm = (run(which, tmp_path) for which in (sys.executable, python_with_compiler))
    assert {name.split(".")[0] for name in warm["told"].pop("ours")} <= {"triton"}
    assert not own["told"].pop("ours")
    assert (warm["warm"], warm["told"], warm["ended"]) == (True, own["told"], own["ended"])
    assert run(python_with_compiler, tmp_path, TRITON_INTERPRET="2")["warm"] is False, "Triton heeds it when imported"


def test_a_warm_process_that_is_killed_by_a_signal_says_so(python: str, tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        assert run(python, tmp_path, f"os.kill(os.getpid(), {int(number)})")["ended"]["status"] == -number


def test_whoever_kills_the_launcher_kills_the_process_and_what_it_started(python: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import subprocess; subprocess.run(['sh', '-c', 'echo; sleep 1000'])")
    with subprocess.Popen([python, "-m", "pytest", "-s"], cwd=tmp_path, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.read(1) == b"\n", "the child of the process is there"
        launcher.kill()
        assert launcher.stdout.read() == b"", "nobody holds the pipe any more"


def test_code_runs_in_a_warm_process_as_in_pythons_own(python: str, tmp_path: Path) -> None:
    """pytest-xdist starts its workers so."""
    code = "import sys; sys.stdout.write(sys.stdin.readline() + repr((sys.path[0], sys.argv, __name__))); 1 / 0"
    ended = []
    for which in (sys.executable, python):
        done = subprocess.run(
            [which, "-u", "-c", code], cwd=tmp_path, input=b"heard\n", capture_output=True, check=False
        )
        ended.append((done.returncode, done.stdout, done.stderr.splitlines()[-1]))
    assert ended[0] == ended[1]
    assert ended[1] == (1, b"heard\n('', ['-c'], '__main__')", b"ZeroDivisionError: division by zero")


def test_a_variable_that_is_heeded_when_python_starts_gets_pythons_own_process(python: str, tmp_path: Path) -> None:
    assert run(python, tmp_path, MALLOC_ARENA_MAX="1")["warm"] is False
    assert run(python, tmp_path, TORCHINDUCTOR_CACHE_DIR="elsewhere")["warm"] is True, "heeded where something compiles"
    shown = subprocess.run([python, "-c", "import sys; print(sys.executable)"], capture_output=True, check=True)
    assert shown.stdout.decode().strip() == sys.executable
