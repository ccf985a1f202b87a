"""No process outlives the session that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from perflab.processes.child import workplace
from perflab.processes.lifeline import with_lifeline

linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a process with its parent")
BUSY = "import time\nwhile True:\n    sum(range(1000))\n"


def gone_within(seconds: float, process: int) -> bool:
    """Whether a process ends in time. One that nobody has waited for yet is gone too."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


STARTS = {
    "a side": (
        "from perflab.processes.child import Start\nfrom perflab.turns.process import side_process\n"
        "kept = side_process(Start('main', child, dict(os.environ), Path('.')))\n"
    ),
    "a trial": ("from perflab.history.bisect import trials\ntrials._run(child, Path('.'), os.environ)\n"),
    "a compiler": (
        "from dataclasses import replace\nfrom perflab.compiled.compiler import pool\n"
        "start = pool.Start\n"
        "pool.Start = lambda *given: replace(start(*given), command=child)\n"
        "kept = pool.CompilerPool(1)\nkept.start()\n"
    ),
    "a dry run": "from perflab.predicted.dry_run import command\ncommand._run(child, os.environ)\n",
}


@linux_alone
@pytest.mark.parametrize("ended_by", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("what", STARTS)
def test_a_process_that_is_at_work_ends_at_once_with_its_session_whatever_ended_that(
    tmp_path: Path, what: str, ended_by: signal.Signals
) -> None:
    at_work = tmp_path / "pid"
    child = [sys.executable, "-c", f"import os\nopen({str(at_work)!r}, 'w').write(str(os.getpid()))\n{BUSY}"]
    # Under nohup the tests' own process ignores SIGHUP, and so would this one.
    begins = "import os, signal, time\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
    session = f"{begins}from pathlib import Path\nchild = {child!r}\n{STARTS[what]}time.sleep(600)\n"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", session], env=environment, cwd=tmp_path) as killed:
        try:
            ends = time.monotonic() + 60.0
            while not (at_work.exists() and at_work.read_text()) and time.monotonic() < ends:
                time.sleep(0.02)
            process = int(at_work.read_text())
            killed.send_signal(ended_by)
            killed.wait(60.0)
        finally:
            killed.kill()
    assert gone_within(30.0, process)


@linux_alone
def test_a_process_whose_session_ended_before_it_began_does_not_begin() -> None:
    began = with_lifeline([sys.executable, "-c", "print('began')"])
    assert subprocess.run(began, capture_output=True, text=True, check=True).stdout == "began\n"
    began[began.index(str(os.getpid()))] = "1"  # who takes over processes whose parents have ended
    done = subprocess.run(began, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_a_program_that_is_missing_is_named_before_anything_starts_and_one_that_is_none_by_the_process(
    tmp_path: Path,
) -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        with_lifeline(["no-such-program"])
    done = subprocess.run(with_lifeline(["./missing"]), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "./missing: No such file or directory\n")


@linux_alone
def test_the_folder_of_a_killed_process_is_removed_by_the_next_one_and_that_of_a_living_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    taking = (
        "from perflab.processes.child import workplace\n"
        "with workplace() as folder:\n    print(folder, flush=True)\n    input()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    folders: list[Path] = []
    with contextlib.ExitStack() as running:
        for _ in range(2):
            command = [sys.executable, "-c", taking]
            owner = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            running.enter_context(owner)
            assert owner.stdout is not None
            folders.append(Path(owner.stdout.readline().strip()))
            os.utime(folders[-1], (0, 0))  # it is old
        owner.kill()
        owner.wait()
        (tmp_path / "perflab-of-the-users").mkdir()
        os.utime(tmp_path / "perflab-of-the-users", (0, 0))
        with workplace() as third:
            assert sorted(tmp_path.iterdir()) == sorted([folders[0], third, tmp_path / "perflab-of-the-users"])
    assert sorted(tmp_path.iterdir()) == [tmp_path / "perflab-of-the-users"]
