"""A side's process that hangs is ended, and none outlives a session that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perflab.compared.sides import process
from perflab.compared.sides.ancestor import Start
from perflab.compared.sides.process import SideProcess
from perflab.errors import SideEndedError

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


def test_a_process_that_does_not_answer_is_ended_and_what_it_said_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-uc", "print('loading')\n" + BUSY]
    with SideProcess(Start("main", command, dict(os.environ), tmp_path), answer_within_s=2.0) as side:
        with pytest.raises(SideEndedError) as caught:
            side.hello()
        assert "main: its process hung and was stopped: no answer for 2 s; its output:\n    loading" in str(
            caught.value
        )
        assert "-> run the case alone" in str(caught.value)
        assert gone_within(2.0, side._process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone ends a process with the one that started it")
def test_a_process_that_is_at_work_ends_at_once_when_its_session_is_killed(tmp_path: Path) -> None:
    at_work = tmp_path / "pid"
    child = (
        "import os\nfrom perflab.compared.sides.lifeline import end_with_session\n"
        "end_with_session(int(os.environ['PERFLAB_SOCKET']))\n"
        f"open({str(at_work)!r}, 'w').write(str(os.getpid()))\n{BUSY}"
    )
    session = (
        "import os, sys, time\nfrom pathlib import Path\n"
        "from perflab.compared.sides.ancestor import Start\n"
        "from perflab.compared.sides.process import SideProcess\n"
        f"side = SideProcess(Start('main', [sys.executable, '-c', {child!r}], dict(os.environ), Path('.')))\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen([sys.executable, "-c", session], env=environment, cwd=tmp_path) as killed:
        ends = time.monotonic() + 30.0
        while not (at_work.exists() and at_work.read_text()) and time.monotonic() < ends:
            time.sleep(0.02)
        process = int(at_work.read_text())
        killed.send_signal(signal.SIGKILL)
        killed.wait()
    assert gone_within(1.0, process)


def test_a_process_that_closes_its_connection_and_stays_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_CLOSING_S", 0.5, raising=False)
    closing = "import os, time\nprint('closing', flush=True)\nos.closerange(3, 1024)\ntime.sleep(600)\n"
    command = [sys.executable, "-uc", closing]
    with SideProcess(Start("main", command, dict(os.environ), tmp_path)) as side:
        with pytest.raises(SideEndedError, match="closed its connection to this session and was ended") as caught:
            side.hello()
        assert "\n    closing" in str(caught.value)
        assert gone_within(2.0, side._process.pid)


def test_a_process_whose_session_ended_before_it_began_does_not_begin(tmp_path: Path) -> None:
    code = (
        "import os, socket\nfrom perflab.compared.sides.lifeline import end_with_session\n"
        "ours, theirs = socket.socketpair()\nours.close()\nend_with_session(theirs.fileno())\nprint('began')"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
