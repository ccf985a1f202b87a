"""A warm process is to a story what Python's own would be.

It has PyTorch and pytest imported, and modules of the perflab that the story's import path has. Of these a story can
see that they are imported, and nothing else: they heed neither environment nor working directory while imported,
nothing that stories replace is held by name by any, pytest rewrites none, and what they import beside is what PyTorch's
own import is: no Triton, and nothing that users' code imports and a run does not.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.warm import PROJECT
from tests.plugin.warm_server import LEFT_OUT

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
        "ours": sorted(name for name in sys.modules if name.split(".")[0] in ("perflab", "nocuda", "triton", "tests")),
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
    """A pytest that finds the perflab under test, and tells what it is like; how it ended, and what it said."""
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "elsewhere").mkdir(exist_ok=True)
    reading, writing = os.pipe()
    # PWD: as a shell sets it, the launcher's too
    environment = {
        **os.environ,
        "PYTHONPATH": f"elsewhere{os.pathsep}{PROJECT}",
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
    assert not own["told"].pop("ours")
    assert {name.split(".")[0] for name in warm["told"].pop("ours")} == {"perflab"}
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
    assert {name.split(".")[0] for name in warm["told"].pop("ours")} == {"perflab", "triton"}
    assert not own["told"].pop("ours")
    assert (warm["warm"], warm["told"], warm["ended"]) == (True, own["told"], own["ended"])
    assert run(python_with_compiler, tmp_path, TRITON_INTERPRET="2")["warm"] is False, "Triton heeds it when imported"


def loaded_by(python: str, folder: Path, **variables: str) -> list[str]:
    """The modules of perflab that a process starts with."""
    ours: list[str] = run(python, folder, **variables)["told"]["ours"]
    return [name for name in ours if name.split(".")[0] == "perflab"]


def test_it_has_the_modules_of_perflab_that_are_not_left_out(python: str, tmp_path: Path) -> None:
    loaded = loaded_by(python, tmp_path)
    assert len(loaded) > 150, "most of what a run loads is loaded"
    assert not [name for name in loaded if f"{name}.".startswith(tuple(f"{left_out}." for left_out in LEFT_OUT))]


def test_one_that_finds_another_perflab_or_none_has_no_module_of_it(python: str, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere" / "perflab"
    copy.mkdir(parents=True)
    (copy / "__init__.py").write_text("")
    assert loaded_by(python, tmp_path) == []
    (tmp_path / "perflab").mkdir()
    (tmp_path / "perflab" / "__init__.py").write_text("")
    assert loaded_by(python, tmp_path, PYTHONPATH=str(PROJECT)) == [], "the working directory goes first"


def test_one_in_which_pytest_looks_for_plugins_has_no_module_of_it_loaded(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    before = "import json, sys; print(json.dumps([name for name in sys.modules if name.split('.')[0] == 'perflab']))"
    words = [python, "-u", "-c", before]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    assert json.loads(subprocess.run(words, env=environment, capture_output=True, check=True).stdout) == []


def test_what_its_modules_took_for_python_is_what_it_takes_for_it(python: str) -> None:
    told = "import sys; from perflab.turns.checkout import Tree; print(sys.executable, Tree('', None).python)"
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    done = subprocess.run([python, "-u", "-c", told], env=environment, capture_output=True, check=True)
    assert done.stdout.decode().split() == [python, python]


WATCHING = """
import os, sys
import filelock, msgspec, pytest, torch, torch._dynamo, torch.utils.flop_counter
from tests.plugin.warm_server import load

def note(what):
    frame = sys._getframe(2)
    while frame.f_globals["__name__"] in ("os", "posixpath", "pathlib", "_collections_abc", "sysconfig"):
        frame = frame.f_back
    if frame.f_globals["__name__"].startswith("perflab"):
        print(frame.f_globals["__name__"], what)

class Watched(type(os.environ)):
    def __getitem__(self, key):
        note(key)
        return super().__getitem__(key)

os.environ.__class__ = Watched
for name in ("getcwd", "getpid", "register_at_fork"):
    setattr(os, name, lambda *given, what=name, old=getattr(os, name), **named: (note(what), old(*given, **named))[1])
load(sys.argv[1], sys.argv[2])
"""


def test_what_it_has_heeds_nothing_that_differs_between_processes_while_imported() -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    words = [sys.executable, "-c", WATCHING, str(PROJECT), sys.executable]
    assert subprocess.run(words, env=environment, capture_output=True, check=True).stdout == b""


def replaced() -> set[tuple[str, str]]:
    """What stories replace: modules, and the names in them."""
    texts = [
        node.value
        for file in Path(__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    text = "\n".join(texts)
    imported = re.findall(r"^\s*import (perflab[\w.]*)(?: as (\w+))?$", text, re.MULTILINE)
    return {
        (module, name)
        for module, alias in set(imported)
        for name in re.findall(rf"\b{re.escape(alias or module)}\.(\w+)(?:\.\w+)* = ", text)
    }


def held_by_name(module: str) -> set[tuple[str, str]]:
    """What a module takes from others by name when it is imported."""
    tree = ast.parse(Path(importlib.import_module(module).__file__ or "").read_text(encoding="utf-8"))
    return {
        (node.module, alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
    }


def test_no_module_that_it_has_holds_by_name_what_stories_replace(
    python: str, python_with_compiler: str, tmp_path: Path
) -> None:
    names = replaced()
    assert {
        ("perflab.measure.clocks.clock", "read_ns"),
        ("perflab.measure.machine.evidence", "read_host"),
        ("perflab.results.environment", "usable_cores"),
        ("perflab.results.environment", "machine_identifier"),
    } <= names
    for module in {*loaded_by(python, tmp_path), *loaded_by(python_with_compiler, tmp_path)}:
        assert not names & held_by_name(module), f"leave {module} out (LEFT_OUT in warm_server.py)"


def test_a_warm_process_that_is_killed_by_a_signal_says_so(python: str, tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
        assert run(python, tmp_path, f"os.kill(os.getpid(), {int(number)})")["ended"]["status"] == -number


def test_whoever_kills_the_launcher_kills_the_process_and_what_it_started(python: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("import subprocess; subprocess.run(['sh', '-c', 'echo; sleep 1000'])")
    with subprocess.Popen([python, "-m", "pytest", "-s"], cwd=tmp_path, stdout=subprocess.PIPE) as launcher:
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
