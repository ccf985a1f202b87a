"""A process that was forked from an ancestor is what a fresh one would be; where it could not be, none is forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from perflab.base.errors import SideEndedError
from perflab.processes.child import Start
from perflab.turns import process as process_module
from perflab.turns.process import Ancestor, Ancestry, NotForkedError, check_variables, side_process
from perflab.turns.rounds import NotStartedError, Round
from tests.harness.test_processes import gone_within

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks what has imported PyTorch")

TELLER = """
import json, os, random, socket, sys
import neighbour

told = {
    "arguments": sys.argv,
    "directory": os.getcwd(),
    "environment": {name: value for name, value in os.environ.items() if name != "PERFLAB_SOCKET"},
    "path": sys.path,
    "main": sys.modules["__main__"].__spec__.name,
    "neighbour": neighbour.__file__,
    "stdin": sys.stdin.read(),
    "encodings": [sys.stdout.encoding, sys.stderr.errors],
    "leads_its_session": os.getsid(0) == os.getpid(),
    "files": sorted(os.readlink(f"/proc/self/fd/{n}").split(":")[0].split("#")[0] for n in os.listdir("/proc/self/fd")
                    if os.path.exists(f"/proc/self/fd/{n}") and "/proc/" not in os.readlink(f"/proc/self/fd/{n}")),
}
seen = {"parent": os.getppid(), "has_torch": "torch" in sys.modules, "number": random.random()}
seen["ours"] = sorted(name for name in sys.modules if name.split(".")[0] == "perflab")
with open(sys.argv[1], "w") as file:
    json.dump([told, seen], file)
print("said", flush=True)
os.write(2, b"and complained")
sys.exit(3)
"""


def start_of(folder: Path, *words: str, module: str = "teller", **variables: str) -> Start:
    """A start of a module in a folder, found beside a module of the folder's own."""
    folder.mkdir(exist_ok=True)
    (folder / "teller.py").write_text(TELLER)
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "neighbour.py").write_text("")
    path = os.pathsep.join([str(folder / "lib"), *(entry for entry in sys.path if entry)])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    return Start(folder.name, [sys.executable, "-m", module, *words], environment, folder)


def small_start(folder: Path, torch: str = "", module: str = "teller", **variables: str) -> Start:
    """A start whose shared path has a small module of the name ``torch``, which is imported at once."""
    start = start_of(folder, "told.json", module=module, **variables)
    shared = folder.parent / "shared"
    (shared / "torch").mkdir(parents=True, exist_ok=True)
    (shared / "torch" / "__init__.py").write_text(torch)
    path = os.pathsep.join([str(folder / "lib"), str(shared), *(entry for entry in sys.path if entry)])
    return Start(start.role, start.command, {**start.environment, "PYTHONPATH": path}, folder)


def end_of(start: Start, ancestor: Ancestor | None) -> SideEndedError:
    """How its process ends, which answers nothing."""
    with side_process(start, 60.0, ancestor) as side, pytest.raises(SideEndedError) as caught:
        side.answer()
    return caught.value


def told_by(start: Start, ancestor: Ancestor | None) -> tuple[dict[str, Any], dict[str, Any], str]:
    """What its process is like, what it has seen, and how its end is told."""
    end = end_of(start, ancestor)
    told, seen = json.loads((start.directory / "told.json").read_text())
    return told, seen, end.problem


def test_forked_processes_are_as_fresh_ones_and_share_what_was_imported(tmp_path: Path) -> None:
    starts = [start_of(tmp_path / name, "told.json", "a b", OWN="1") for name in ("head", "base")]
    fresh = [told_by(start, None) for start in starts]
    with Ancestor(starts) as ancestor:
        forked = [told_by(start, ancestor) for start in starts]
    for start, (told, _, end), (told_fresh, seen_fresh, end_fresh) in zip(starts, forked, fresh, strict=True):
        assert told == told_fresh
        assert told["neighbour"] == str(start.directory / "lib" / "neighbour.py")
        assert told["leads_its_session"]
        assert told["arguments"][1:] == ["told.json", "a b"]
        assert end == end_fresh
        assert "ended (exit status 3)" in end
        assert "said" in end
        assert "and complained" in end
        assert not seen_fresh["has_torch"]
    (_, head, _), (_, base, _) = forked
    assert head["has_torch"]
    assert base["has_torch"]
    assert head["ours"] == base["ours"] == []
    assert head["parent"] == base["parent"] != os.getpid()
    assert head["number"] != base["number"]


def test_where_objects_lie_is_drawn_in_every_process(tmp_path: Path) -> None:
    start = small_start(tmp_path / "head", module="lying", PYTHONHASHSEED="0")
    stirring = "from perflab.turns.start_sides import stir\nstir()\n"
    (start.directory / "lying.py").write_text(f"import os\n{stirring}os.write(1, b'%d' % id(bytes(3000)))\n")
    with Ancestor([start]) as ancestor:
        found = {end_of(start, ancestor).output for _ in range(4)}
    assert len(found) > 1, "their hashes are seeded alike, their pages shared: they would lie alike"


def test_a_signal_that_ends_a_forked_process_is_told(tmp_path: Path) -> None:
    start = small_start(tmp_path / "head", module="dies")
    (start.directory / "dies.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    with Ancestor([start]) as ancestor:
        assert "was killed by signal 11" in str(end_of(start, ancestor))


def test_one_that_hangs_is_ended_and_so_are_all_when_their_session_is_killed(tmp_path: Path) -> None:
    start = small_start(tmp_path / "head", module="hangs")
    (start.directory / "hangs.py").write_text("import os\nopen('pid', 'w').write(str(os.getpid()))\nwhile True: pass\n")
    with Ancestor([start]) as ancestor, side_process(start, 2.0, ancestor) as side:
        with pytest.raises(SideEndedError, match="no answer for 2"):
            side.answer()
        assert gone_within(30.0, side.pid)
    (start.directory / "pid").unlink()
    session = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from perflab.processes.child import Start\nfrom perflab.turns.process import Ancestor\n"
        "from perflab.turns.process import side_process\n"
        "start = Start('head', [sys.executable, '-m', 'hangs'], dict(os.environ), Path('.').absolute())\n"
        "side = side_process(start, ancestor=Ancestor([start]))\ntime.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", session], env=start.environment, cwd=start.directory) as killed:
        ends = time.monotonic() + 60.0
        told = start.directory / "pid"
        while not (told.exists() and told.read_text()) and time.monotonic() < ends:
            time.sleep(0.02)
        forked = int(told.read_text())
        ancestor_of_it = int(Path(f"/proc/{forked}/stat").read_text().rpartition(")")[2].split()[1])
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert gone_within(30.0, ancestor_of_it)
    assert gone_within(30.0, forked)


def test_an_ancestor_that_dies_takes_its_sides_along_and_each_says_so(tmp_path: Path) -> None:
    start = small_start(tmp_path / "head", module="hangs")
    (start.directory / "hangs.py").write_text("while True: pass\n")
    with Ancestor([start]) as ancestor, side_process(start, 60.0, ancestor) as side:
        os.kill(ancestor._peer.pid, signal.SIGKILL)
        with pytest.raises(SideEndedError, match="was killed by signal 9"):
            side.answer()
    with pytest.raises(NotForkedError, match="their ancestor was killed by signal 9"):
        ancestor_gone(start)


def ancestor_gone(start: Start) -> None:
    """Ask an ancestor that was killed for a process."""
    with Ancestor([start]) as ancestor:
        os.kill(ancestor._peer.pid, signal.SIGKILL)
        side_process(start, 60.0, ancestor)


def test_a_side_with_another_pytorch_is_not_forked(tmp_path: Path) -> None:
    other = small_start(tmp_path / "base")
    (other.directory / "lib" / "torch").mkdir()
    (other.directory / "lib" / "torch" / "__init__.py").write_text("")
    starts = [small_start(tmp_path / "head"), other]
    with Ancestor(starts) as ancestor:
        told_by(starts[0], ancestor)
        with pytest.raises(NotForkedError, match=f"torch is imported from {tmp_path}/base/lib/torch/__init__.py there"):
            side_process(other, 60.0, ancestor)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"command": [sys.executable, "-c", "pass"]}, "they run different programs"),
        ({"command": ["/usr/bin/other-python", "-m", "pytest"]}, "they run different programs"),
        ({"environment": {"OMP_NUM_THREADS": "1"}}, "they have different variables"),
        ({}, None),
    ],
)
def test_what_sides_must_have_in_common_to_be_forked(tmp_path: Path, change: dict[str, Any], why: str | None) -> None:
    shared = small_start(tmp_path / "small").environment["PYTHONPATH"]
    head = Start("head", [sys.executable, "-m", "pytest", "-q"], {"PYTHONPATH": f"{shared}:/a"}, tmp_path)
    base = {"role": "base", "command": [sys.executable, "-m", "pytest"], "environment": {"PYTHONPATH": f"{shared}:/b"}}
    ancestry = Ancestry()
    with ancestry.ancestor_of([head, Start(**{**base, "directory": tmp_path, **change})]) as ancestor:
        assert ancestry.refused == why
        assert (ancestor is None) == (why is not None)


def test_variables_that_tests_set_before_they_import_pytorch_are_heeded(tmp_path: Path) -> None:
    start = Start("main", [], {"PATH": "/bin", "MKL_NUM_THREADS": "2"}, tmp_path)
    late = {"PATH": "/usr/bin", "TORCHINDUCTOR_CACHE_DIR": "/tmp/1", "PYTEST_VERSION": "9"}
    check_variables(start, {"MKL_NUM_THREADS": "2", **late})
    with pytest.raises(NotForkedError, match="the tests set OMP_NUM_THREADS, which PyTorch may read"):
        check_variables(start, {"MKL_NUM_THREADS": "2", "OMP_NUM_THREADS": "1"})
    with pytest.raises(NotForkedError, match="the tests set MKL_NUM_THREADS"):
        check_variables(start, {})
    with pytest.raises(NotForkedError, match="main has an older perflab"):
        check_variables(start, None)


def refusal(starts: list[Start]) -> str:
    """Why the last of these starts is not forked."""
    with Ancestor(starts) as ancestor, pytest.raises(NotForkedError) as caught:
        side_process(starts[-1], 60.0, ancestor)
    return str(caught.value)


@pytest.mark.parametrize(
    ("torch", "module"),
    [
        ("", "sitecustomize"),  # imported by Python itself
        ("import queue", "queue"),  # of the standard library
        ("try:\n    import optional_thing\nexcept ImportError: pass", "optional_thing"),
    ],
)
def test_a_side_that_would_have_imported_something_else_is_not_forked(tmp_path: Path, torch: str, module: str) -> None:
    head, base = small_start(tmp_path / "head", torch), small_start(tmp_path / "base", torch)
    (base.directory / "lib" / f"{module}.py").write_text("")
    with Ancestor([head, base]) as ancestor:
        told, _, _ = told_by(head, ancestor)
        assert told["directory"] == str(head.directory)
    assert refusal([head, base]) == f"{module} is imported from {base.directory}/lib/{module}.py there"


@pytest.mark.parametrize(
    ("torch", "why"),
    [
        ("import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()", "started a thread"),
        ("class _C:\n    _cuda_isInBadFork = staticmethod(lambda: True)", "CUDA was in use"),
    ],
)
def test_what_a_fork_would_lose_is_not_forked(tmp_path: Path, torch: str, why: str) -> None:
    assert why in refusal([small_start(tmp_path / "head", torch)])


def test_folders_are_found_as_python_finds_them(tmp_path: Path) -> None:
    start = small_start(tmp_path / "head")
    first, _, rest = start.environment["PYTHONPATH"].partition(os.pathsep)
    path = os.pathsep.join([f"{first}/../lib", f"{tmp_path}/head/../shared", rest])
    start = Start("head", start.command, {**start.environment, "PYTHONPATH": path}, start.directory)
    fresh, _, _ = told_by(start, None)
    with Ancestor([start]) as ancestor:
        assert told_by(start, ancestor)[0] == fresh
    safe = Start("head", start.command, {**start.environment, "PYTHONSAFEPATH": "1"}, start.directory)
    with Ancestor([safe]) as ancestor:
        assert "No module named teller" in str(end_of(safe, ancestor))


def test_a_session_that_ignores_the_ends_of_its_children_hears_how_a_side_ended(tmp_path: Path) -> None:
    start = small_start(tmp_path / "head")
    heeded = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Ancestor([start]) as ancestor:
            assert "ended (exit status 3)" in told_by(start, ancestor)[2]
    finally:
        signal.signal(signal.SIGCHLD, heeded)


def test_an_ancestor_that_does_not_answer_in_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = small_start(tmp_path / "head", "import time\ntime.sleep(60)")
    monkeypatch.setattr(process_module, "_PATIENCE_S", 0.5)
    with pytest.raises(NotForkedError, match="their ancestor hung and was stopped: no answer for 500 ms"):
        Ancestor([start])


def test_a_side_that_is_closed_at_once_is_gone(tmp_path: Path) -> None:
    start = small_start(tmp_path / "head")
    with Ancestor([start]) as ancestor:
        for _ in range(5):
            side = side_process(start, 60.0, ancestor)
            side.close()
            assert gone_within(0.5, side.pid)
    assert len(os.listdir("/proc/self/fd")) < 200


def test_a_system_that_cannot_watch_processes_starts_them_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_number: int) -> int:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(os, "pidfd_open", refused)
    process_module._watches_processes.cache_clear()
    starts = [Start(side, [sys.executable, "-m", "pytest"], {}, tmp_path) for side in ("head", "base")]
    ancestry = Ancestry()
    with ancestry.ancestor_of(starts) as ancestor:
        assert ancestor is None
    assert ancestry.refused == "only Linux, from 5.3 on, forks processes that have imported PyTorch"
    process_module._watches_processes.cache_clear()


def test_sides_that_start_apart_alone_are_started_apart(tmp_path: Path) -> None:
    refuses = "import os, sys\nsys.exit('torch' in sys.modules)\n"
    starts = {name: small_start(tmp_path / name) for name in ("head", "base")}
    for start in starts.values():
        (start.directory / "pytest.py").write_text(refuses)
    forks = {
        name: Start(name, [sys.executable, "-m", "pytest"], one.environment, one.directory)
        for name, one in starts.items()
    }
    ancestry = Ancestry()
    with pytest.raises(NotStartedError):  # apart they end too, but for another reason
        Round(forks, ancestry=ancestry)
    assert ancestry.refused is not None
    assert ancestry.refused.startswith("a forked process did not start (")
    assert "its process ended (exit status 1)" in ancestry.refused
