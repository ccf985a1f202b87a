"""Cases that come to no end, and forks that come back: the run names them, goes on where it can, and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.plugin.conftest import Project, interrupted

BEFORE = """
import ctypes, faulthandler, os, sys, threading, time
import pytest
from conftest import Virtual

def tick(result=None):
    Virtual.now_ns += 50_000_000
    return result

def stuck():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

def stuck_in_c():
    stuck_by(ctypes.CDLL(None))  # a signal does not get through, and other threads run

def stuck_with_the_lock():
    stuck_by(ctypes.PyDLL(None))  # no other thread runs

def stuck_by(library):
    mutex = ctypes.create_string_buffer(64)
    library.pthread_mutex_lock(mutex)
    library.pthread_mutex_lock(mutex)

def test_before(perf):
    perf(tick)

"""
AFTER = """
def test_after(perf):
    perf(tick)
"""
DEADLOCKS = """
@pytest.mark.perf(timeout=1)
def test_dead(perf):
    perf(stuck)

@pytest.fixture
def held():
    stuck()

@pytest.mark.perf(timeout=1)
def test_dead_before(perf, held):
    perf(tick)

@pytest.mark.perf(timeout=1)
def test_swallows(perf):
    try:
        perf(stuck)
    except Exception:
        pass

"""
LIMIT = "@pytest.mark.perf(timeout=1)\n"
"""The mark of cases that hang: other cases have no limit, and take as long as they need on a busy machine."""
GRACE_1S = "hanging.GRACE_S = 1.0\n"
"""Code of a conftest: how long a process that cannot be interrupted is waited for before it is ended."""
GRACE = """
import perflab.running.case.hanging as hanging

hanging.GRACE_S = 3.0  # before the last resort is taken, which some of these wait for
"""


@pytest.fixture(autouse=True)
def short_grace(project: Project) -> None:
    with (project.pytester.path / "conftest.py").open("a") as file:
        file.write(GRACE)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1]


def test_a_case_that_deadlocks_fails_by_name_with_all_stacks_and_the_run_goes_on(project: Project) -> None:
    project.test_file.write_text(BEFORE + DEADLOCKS + AFTER)
    result = project.run("-v", passed=2, failed=2, errors=1)
    result.stdout.fnmatch_lines(
        [
            "*test_dead_before: hung: no progress for 1.00 s, in its set-up",
            "  -> run it alone, and look at the stacks; if it needs that long, raise the limit: perf.requires(*",
            "where its threads were:",
            "thread 'MainThread':",
            "*in stuck",
            "*test_dead: hung: no progress for 1.00 s, in its call",
            "    lock.acquire()",
        ]
    )
    result.stdout.re_match_lines(
        [r"before .* new", r"dead .* FAILED", r"\s+hung: no progress for 1.00 s", r"after .* new"], consecutive=False
    )


def test_so_it_does_in_a_run_that_measures_nothing(project: Project) -> None:
    project.test_file.write_text(BEFORE + DEADLOCKS + AFTER)
    project.run("--perf-disable").assert_outcomes(passed=2, failed=2, errors=1)


BEFORE_IS_NEW, DEAD_FAILED = ("test_story.py::test_before", "new"), ("test_story.py::test_dead", "failed")


def kept(project: Project) -> list[tuple[str, str]]:
    """The cases and verdicts that the journal and the results file of a run that failed have alike."""
    (journal,) = (project.pytester.path / ".perflab/runs").glob("*.jsonl")
    written = json.loads((project.pytester.path / "results.json").read_text())
    rows, results = (
        [(row["case"], row["judgement"]["verdict"]) for row in found]
        for found in (map(json.loads, journal.read_text().splitlines()), written["results"])
    )
    assert rows == results
    assert written["exitstatus"] == 1
    return rows


def test_what_nothing_can_interrupt_ends_the_process_and_what_was_measured_stays(project: Project) -> None:
    project.add(GRACE_1S, "conftest.py")
    project.test_file.write_text(BEFORE + "def test_dead(perf):\n    perf(stuck_in_c)\n" + AFTER)
    result = project.run("--perf-timeout=2", "--perf-json=results.json")
    assert result.ret == 1
    result.stderr.fnmatch_lines(
        [
            "perf: test_story.py::test_dead: hung: no progress for 2.00 s, in its call",
            "*in stuck_in_c",
            "perf: it could not be interrupted, so this process exits with status 1",
            "perf: the results so far are in .perflab/runs/*.jsonl",
        ]
    )
    assert kept(project) == [BEFORE_IS_NEW, DEAD_FAILED]


@pytest.mark.parametrize("before", [BEFORE, BEFORE.partition("def test_before")[0]], ids=["second", "first"])
def test_what_keeps_the_interpreters_lock_is_named_and_what_was_measured_stays(project: Project, before: str) -> None:
    project.add(GRACE_1S, "conftest.py")
    project.test_file.write_text(before + LIMIT + "def test_dead(perf):\n    perf(stuck_with_the_lock)\n" + AFTER)
    result = project.run("--perf-json=results.json")
    assert result.ret == -signal.SIGABRT
    result.stderr.fnmatch_lines(
        [
            "perf: test_story.py::test_dead: hung: no progress for 1.00 s, in its call",
            "  -> run it alone, and look at the stacks; if it needs that long, raise the limit: perf.requires(*",
            "perf: C code keeps Python's lock, so nothing here can end it: this process is aborted, with its stacks",
            "perf: the results so far are in *.perflab/runs/*.jsonl",
            "Fatal Python error: Aborted",
            "*in stuck_with_the_lock",
            "*in test_dead",
        ]
    )
    assert kept(project) == ([BEFORE_IS_NEW, DEAD_FAILED] if before == BEFORE else [DEAD_FAILED])


STOPPED = """
import os, sys, time
from perflab.running.case.last_words import LastWords

words = LastWords(2)
words.leave(1.0, text="silent for too long", file=None, line="", document=None)
if os.fork() == 0:
    words.leave(0.0, text="said by a fork", file=None, line="", document=None)
    os._exit(0)
os.wait()
print("ready", flush=True)
sys.stdin.readline()
words.leave(None)
print("done", flush=True)
words.close()
"""


def test_a_process_that_is_stopped_is_not_said_to_hang_and_a_fork_says_nothing_for_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)  # twice as long as it may be silent
        process.send_signal(signal.SIGCONT)
        said, complaints = process.communicate("\n")
    assert (process.returncode, said, complaints) == (0, "done\n", "")


def test_a_case_that_lives_or_says_what_it_takes_is_left_alone(project: Project) -> None:
    project.test_file.write_text(BEFORE.replace("def test_before", "@pytest.mark.perf(timeout=30)\ndef test_before"))
    project.add("""
@pytest.mark.perf(timeout=1.5)
def test_many_calls(perf):
    perf(lambda: (time.sleep(0.4), tick()))  # two warm-ups, three samples or more: longer than the limit

@pytest.mark.perf(timeout=30)
def test_marked(perf):
    time.sleep(0.6)
    perf(tick)

@pytest.mark.perf(timeout="off")
def test_without(perf):
    time.sleep(0.6)
    perf(tick)
""")
    project.run("--perf-timeout=0.5", "--perf-counts=off").assert_outcomes(passed=4)


def test_a_replicate_that_hangs_costs_the_replicate_alone(project: Project) -> None:
    hang = '    if "--perf-replicate=" in " ".join(sys.argv):\n        stuck()\n    tick()\n'
    project.test_file.write_text(BEFORE + f"def once():\n{hang}\n{LIMIT}def test_dead(perf):\n    perf(once)\n" + AFTER)
    result = project.run("--perf-update", "--perf-replicates=2", passed=3)
    result.stdout.fnmatch_lines(["*a fresh process did not measure test_story.py::test_dead*"])
    result.stdout.fnmatch_lines(["*times not saved, from a single process: dead: no slowdown would count against them"])
    cases = json.loads(project.baseline_file().read_text())["cases"]
    assert {case: len(entry["replicates"]) for case, entry in cases.items()} == {"test_before": 2, "test_after": 2}


def test_a_fresh_process_that_hangs_as_a_whole_is_ended_with_all_that_it_started(project: Project) -> None:
    """Before its first case, where nobody in it watches: while a conftest is imported."""
    more = """
import os, subprocess, sys, time
import perflab.running.case.fresh_process as fresh
import perflab.running.case.hanging as hanging
fresh.START_S = hanging.GRACE_S = 1
if "--perf-replicate=" in " ".join(sys.argv):
    sleeper = subprocess.Popen(["sleep", "600"])
    Path(__file__).with_name("pids.txt").write_text(f"{os.getpid()} {sleeper.pid}")
    print("about to hang", flush=True)
    time.sleep(600)
"""
    project.add(more, "conftest.py")
    started_s = time.monotonic()
    result = project.run("--perf-update", "--perf-replicates=2", "--perf-timeout=2", "-s")
    assert time.monotonic() - started_s < 60
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*baselines with fewer replicates: a fresh process hung and was stopped: no answer for *", "about to hang"]
    )
    result.stdout.fnmatch_lines(["*times not saved, from a single process: work: no slowdown would count against them"])
    assert project.needs()["test_work"]["peak_bytes"], "what is exact is saved all the same"
    (kept,) = (project.pytester.path / ".perflab" / "times").glob("*/*.json")
    (case,) = json.loads(kept.read_text())["cases"].values()
    assert len(case["replicates"]) == 1
    assert not [pid for pid in map(int, (project.pytester.path / "pids.txt").read_text().split()) if alive(pid)]


@pytest.mark.parametrize("stuck", ["stuck", "stuck_with_the_lock"])
def test_a_suspect_whose_fresh_process_hangs_stays_undecided_and_says_why(project: Project, stuck: str) -> None:
    hang = f'    if "--perf-replicate=" in " ".join(sys.argv) and once.hangs:\n        {stuck}()\n    tick()\n'
    source = f"def once():\n{hang}once.hangs = False\n\n{LIMIT}def test_dead(perf):\n    perf(once)\n"
    project.test_file.write_text(BEFORE + source)
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=2)
    project.test_file.write_text(BEFORE + source.replace("False", "True").replace("    tick()", "    tick(); tick()"))
    project.run(passed=2).stdout.re_match_lines(
        [
            r"dead .* inconclusive",
            r"  could not be measured again: test_story.py::test_dead in a fresh process hung:",
            r"  no progress for 1.00 s",
        ]
    )


def test_ctrl_c_ends_a_fresh_process_with_all_that_it_started_and_what_there_is_is_saved(project: Project) -> None:
    hang = """    if "--perf-replicate=" in " ".join(sys.argv):
        import subprocess
        sleeper = subprocess.Popen(["sleep", "600"])
        (here / "pids.txt").write_text(f"{os.getpid()} {sleeper.pid}")
        (here / "hanging").touch()
        time.sleep(600)
"""
    source = project.test_file.read_text().replace("    cost_ms, kib", hang + "    cost_ms, kib")
    project.test_file.write_text("import os, sys, time\n" + source)
    output = interrupted(
        project.pytester.path, project.python, "-m", "perf", "--perf-update", "--perf-json=results.json"
    )
    assert "interrupted: these baselines have one replicate each" in output
    (case,) = json.loads(project.baseline_file().read_text())["cases"].values()
    assert len(case["replicates"]) == 1
    assert (project.pytester.path / "results.json").exists()
    assert not [pid for pid in map(int, (project.pytester.path / "pids.txt").read_text().split()) if alive(pid)]


FORKS = """
def test_forks(perf):
    def call():
        pid = os.fork()
        tick()
        with open("calls.txt", "a") as file:
            file.write("x")
        if pid:
            os.waitpid(pid, 0)
    perf(call)

def test_forks_and_ends_it(perf):
    def call():
        pid = os.fork()
        if not pid:
            os._exit(0)
        os.waitpid(pid, 0)
        tick()
    perf(call)

def test_forks_outside(perf):
    pid = os.fork()
    perf(tick)
    if pid:
        os.waitpid(pid, 0)

"""


@pytest.mark.parametrize("way", ["-mperf", "--perf-disable"])
def test_a_forked_child_that_comes_back_ends_at_once_and_the_case_that_forked_fails(project: Project, way: str) -> None:
    project.test_file.write_text(BEFORE + FORKS + AFTER)
    result = project.run("-v", "-rP", way, passed=3, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_forks: it forks, and the child continues the test too",
            "  -> end the child where its work ends, with os._exit(0); multiprocessing does so",
            "*perf: test_story.py::test_forks: a forked child (process *) returned into the test run, and was ended",
        ]
    )
    result.stdout.fnmatch_lines(["*perf: test_story.py::test_forks_outside: a forked child *"])
    assert str(result.stdout).count("test session starts") == 1
    assert len((project.pytester.path / "calls.txt").read_text()) <= 4, "no child calls again"
