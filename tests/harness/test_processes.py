"""Conversations with a started process, and its end: no process outlives the session that started it."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from perflab.base.data import Data
from perflab.processes import peer
from perflab.processes.channel import Alive
from perflab.processes.child import Child, Start, workplace
from perflab.processes.lifeline import with_lifeline
from perflab.processes.peer import Ending, How, Peer

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


class Add(Data, frozen=True, tag=True):
    """Question: the sum of two numbers."""

    numbers: list[int]


class Sum(Data, frozen=True, tag=True):
    """Answer to ``Add``."""

    number: int


class Over(Exception):  # noqa: N818 - what is over is no error
    """The conversation has ended."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


ANSWERS: msgspec.json.Decoder[Sum | Alive] = msgspec.json.Decoder(Sum | Alive)
SERVES = """
import os, sys, time
from perflab.processes.channel import Alive, hear, say, show_stacks_when_asked, to_parent
from tests.harness.test_processes import Add, Sum
import msgspec
show_stacks_when_asked(2)
questions = msgspec.json.Decoder(Add)
def add():
    say(Sum(number=sum(hear(questions).numbers)))
"""


def conversation(
    tmp_path: Path, program: str, silent_s: float = 60.0, seconds_left: float | None = None, is_trusted: bool = True
) -> Peer[Add, Sum]:
    """A process that runs this program after ``SERVES``."""
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    start = Start("a server", [sys.executable, "-uc", SERVES + program], {**os.environ, "PYTHONPATH": path}, tmp_path)
    return Peer(start, ANSWERS, Over, silent_s=silent_s, seconds_left=lambda: seconds_left, is_trusted=is_trusted)


def ending_of(process: Peer[Add, Sum]) -> Ending:
    """How the conversation ends when one waits for another answer; the process is gone then."""
    with pytest.raises(Over) as caught:
        process.answer()
    assert gone_within(30.0, process.pid)
    return caught.value.ending


def test_questions_are_answered_in_order_by_any_number_of_processes(tmp_path: Path) -> None:
    with conversation(tmp_path, "add(); add()") as one, conversation(tmp_path, "add()") as other:
        one.ask(Add(numbers=[1, 2]))
        other.ask(Add(numbers=[3]))
        one.ask(Add(numbers=[4, 5]))
        assert [process.answer().number for process in (other, one, one)] == [3, 3, 9]
        assert (ending_of(one).how, ending_of(one).status) == (How.ENDED, 0)


@pytest.mark.parametrize(
    ("program", "status", "told"),
    [("sys.exit(3)", 3, "ended (exit status 3)"), ("os.kill(os.getpid(), 11)", -11, "was killed by signal 11")],
)
def test_a_process_that_dies_is_told_with_its_status_and_output(
    tmp_path: Path, program: str, status: int, told: str
) -> None:
    with conversation(tmp_path, f"print('before'); add(); print('after'); {program}") as process:
        while b"before\n" not in process._child.output():
            time.sleep(0.02)
        process.ask(Add(numbers=[1]))
        assert process.answer().number == 1
        ending = ending_of(process)
    assert (ending.how, ending.status, ending.told) == (How.ENDED, status, told)
    assert ending.last_lines(1) == ["after"]
    assert ending.latest == b"after\n"
    assert ending.output == b"before\nafter\n"


def test_what_a_process_said_before_it_died_is_heard_first(tmp_path: Path) -> None:
    with conversation(tmp_path, "say(Sum(number=1)); say(Sum(number=2)); os._exit(1)") as process:
        process._child.wait(60.0)
        assert [process.answer().number for _ in range(2)] == [1, 2]
        assert ending_of(process).status == 1


def test_a_dead_process_is_gone_though_a_fork_of_it_holds_its_connection(tmp_path: Path) -> None:
    # Who dies names the fork: the fork itself may be ended before it has written anything.
    names = "    with open('pid', 'w') as file:\n        file.write(str(forked))\n    os._exit(7)"
    forks = f"to_parent()\nforked = os.fork()\nif forked:\n{names}\ntime.sleep(600)"
    with conversation(tmp_path, forks) as process:
        ending = ending_of(process)
    assert (ending.how, ending.status) == (How.ENDED, 7)
    assert gone_within(30.0, int((tmp_path / "pid").read_text()))


def test_a_process_that_hangs_is_ended_with_the_stacks_of_its_threads(tmp_path: Path) -> None:
    stuck = "def stuck():\n    while True: pass\nprint('loading')\nsay(Sum(number=0))\nstuck()"
    with conversation(tmp_path, stuck, silent_s=2.0) as process:
        process.answer()
        ending = ending_of(process)
    assert (ending.how, ending.silent_s, ending.status) == (How.HUNG, 2.0, None)
    assert ending.told == "hung and was stopped: no answer for 2.00 s"
    assert ending.output == b"loading\n"
    assert ending.last_lines(9)[0] == "loading"
    assert any(line.endswith(" in stuck") for line in ending.last_lines(9)), ending


def test_a_process_that_cannot_print_stacks_is_ended_all_the_same(tmp_path: Path) -> None:
    start = Start("a server", [sys.executable, "-c", BUSY], dict(os.environ), tmp_path)
    with Peer[Add, Sum](start, ANSWERS, Over, silent_s=1.0) as process:
        assert ending_of(process).how is How.HUNG


def test_signs_of_life_extend_the_limit_and_the_time_of_the_run_does_not_wait_for_them(tmp_path: Path) -> None:
    slow = "say(Alive(for_s=60.0)); time.sleep(3); say(Sum(number=1)); say(Alive(for_s=600.0)); time.sleep(600)"
    with conversation(tmp_path, slow, silent_s=2.0) as process:
        assert process.answer().number == 1
        process._seconds_left = lambda: 0.2
        ending = ending_of(process)
    assert ending.how is How.OUT_OF_TIME
    assert ending.told.endswith(", since the run's time was over")


@pytest.mark.parametrize(
    "instead",
    [
        "while True: say(Alive(for_s=60.0))",
        "os.write(to_parent().fileno(), b'\\0\\0\\1\\0half'); time.sleep(600)",
    ],
)
def test_a_process_that_is_not_trusted_has_to_answer_in_time_whatever_it_sends(tmp_path: Path, instead: str) -> None:
    with conversation(tmp_path, f"add()\n{instead}", silent_s=5.0, is_trusted=False) as process:
        process.ask(Add(numbers=[1, 2]))
        assert process.answer().number == 3
        assert process._due_s == math.inf, "nothing is overdue while it is asked nothing"
        process.ask(Add(numbers=[1]))
        assert ending_of(process).told == "hung and was stopped: no answer for 5.00 s"


def test_a_process_that_closes_its_connection_and_stays_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "_CLOSING_S", 0.5)
    with conversation(tmp_path, "print('closing')\nos.closerange(3, 1024)\ntime.sleep(600)") as process:
        ending = ending_of(process)
    assert (ending.how, ending.last_lines(1)) == (How.CLOSED, ["closing"])


def test_an_answer_that_is_none_is_told(tmp_path: Path) -> None:
    with conversation(tmp_path, "say(Add(numbers=[]))") as process:
        ending = ending_of(process)
    assert ending.how is How.FOREIGN
    assert "Invalid value 'Add'" in ending.problem


def test_a_process_that_is_dismissed_ends_by_itself_and_one_that_is_not_ends_at_once(tmp_path: Path) -> None:
    program = "say(Sum(number=0)); hear(questions); time.sleep(0.3); open('done', 'w')"
    with conversation(tmp_path, program) as process:
        process.answer()
        process.dismiss(Add(numbers=[]))
    assert (tmp_path / "done").exists()
    (tmp_path / "done").unlink()
    with conversation(tmp_path, program) as process:
        process.answer()
    assert gone_within(30.0, process.pid)
    assert not (tmp_path / "done").exists()


def test_without_reports_of_a_processs_end_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with conversation(tmp_path, "say(Sum(number=5)); os._exit(2)") as process:
        assert process.answer().number == 5
        assert ending_of(process).status == 2
    with conversation(tmp_path, "time.sleep(600)", silent_s=1.0) as process:
        assert ending_of(process).how is How.HUNG


@linux_alone
def test_an_interrupted_child_may_remove_its_files_and_then_ends_with_all_that_it_started(tmp_path: Path) -> None:
    program = (
        "import signal, subprocess, sys, time\n"
        "other = subprocess.Popen(['sleep', '600'])\n"
        "def clean(*_):\n    open('cleaned', 'w')\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, clean)\nprint(other.pid, flush=True)\ntime.sleep(600)"
    )
    child = Child(Start("a child", [sys.executable, "-c", program], dict(os.environ), tmp_path))
    while not child.output().endswith(b"\n"):
        time.sleep(0.02)
    sleeper = int(child.output())
    with pytest.raises(KeyboardInterrupt), child:
        raise KeyboardInterrupt
    assert (tmp_path / "cleaned").exists()
    assert gone_within(30.0, sleeper)


@linux_alone
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_process_that_a_signal_ends_removes_its_folder_unless_it_ignores_the_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    program = (
        "import os, signal, sys\nfrom perflab.processes.child import workplace\n"
        f"number = signal.Signals({number})\n"
        "signal.signal(number, signal.SIG_IGN if sys.argv[1:] else signal.SIG_DFL)\n"
        "with workplace() as folder:\n    os.kill(os.getpid(), number)\n    print('went on')\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    for ignoring, said in ((["as under nohup"], "went on\n"), ([], "")):
        command = [sys.executable, "-c", program, *ignoring]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stdout == said
        assert ("KeyboardInterrupt" in done.stderr) == (not ignoring)
        assert list(tmp_path.iterdir()) == []


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
@pytest.mark.parametrize(
    ("what", "ended_by"),
    [*((what, signal.SIGKILL) for what in STARTS), ("a side", signal.SIGTERM), ("a trial", signal.SIGHUP)],
)
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


def test_a_process_that_is_not_trusted_and_has_ended_is_not_killed_when_its_answer_would_be_overdue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another process's by then."""
    with conversation(tmp_path, "sys.exit(3)", silent_s=0.5, is_trusted=False) as peer:
        peer.ask(Add(numbers=[1]))
        with pytest.raises(Over):
            peer.answer()
        killed: list[int] = []
        monkeypatch.setattr("perflab.processes.peer.os.killpg", lambda number, _signal: killed.append(number))
        time.sleep(1.5)
        assert killed == []
