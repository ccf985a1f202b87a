"""Systems that are not here: what macOS and Windows lack is taken away, and each run says what it does without it."""

from __future__ import annotations

from tests.plugin.conftest import REFUSED, Project, begin_repository

AWAY = """
import builtins
import faulthandler
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import sysconfig
import types

import filelock
import torch

sysconfig.get_config_vars()  # Python's own modules read sys.platform once, before it is changed
platform.platform()
SYSTEM = "{system}"
LINUX = {{os: ["sched_getaffinity", "sched_setaffinity", "pidfd_open"], resource: ["RUSAGE_THREAD"]}}
POSIX = {{
    os: ["fork", "killpg", "getuid", "getloadavg", "setsid", "sysconf", "register_at_fork", "set_blocking"],
    signal: ["pthread_kill", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD"],
    faulthandler: ["register"],
}}
for owner, names in (LINUX | POSIX if SYSTEM == "win32" else LINUX).items():
    for name in names:
        vars(owner).pop(name, None)

def without_proc(function):
    def call(path=".", *arguments, **keywords):
        if str(path).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *arguments, **keywords)
    return call

builtins.open, os.listdir = without_proc(builtins.open), without_proc(os.listdir)
start = subprocess.Popen.__init__

def start_as_windows(self, *arguments, pass_fds=(), **keywords):
    if pass_fds:
        raise ValueError("pass_fds not supported on Windows.")
    start(self, *arguments, **keywords)

sysconf = vars(os).get("sysconf")

def sysconf_of_macos(name):
    if name == "SC_AVPHYS_PAGES":
        raise ValueError("unrecognized configuration name")
    return sysconf(name)

if SYSTEM == "darwin":
    os.sysconf = sysconf_of_macos
if SYSTEM == "win32":
    shutil._winapi = types.SimpleNamespace(NeedCurrentDirectoryForExePath=lambda name: False)  # from Python 3.12 on
    sys.modules |= dict.fromkeys(("resource", "fcntl", "pwd"))
    subprocess.Popen.__init__ = start_as_windows
sys.platform = SYSTEM
"""


def on(system: str, project: Project) -> Project:
    """The project on another system."""
    conftest = project.pytester.path / "conftest.py"
    conftest.write_text(AWAY.format(system=system) + conftest.read_text())
    return project


def test_on_macos_a_slowdown_is_found_as_on_linux(project: Project) -> None:
    there = on("darwin", project)
    there.run("--perf-update", "--perf-replicates=2", passed=1)
    assert len(there.saved_case()["replicates"]) == 2
    there.run(passed=1).stdout.re_match_lines([r"work +100 ms .* ok"])
    there.cost(ms=110)
    there.run("--perf-evidence=off", failed=1).stdout.re_match_lines([r"work +110 ms .*\+10\.0%.*REGRESSED"])


def test_on_macos_two_commits_are_measured_in_turns(project: Project) -> None:
    there = on("darwin", project)
    begin_repository(there)
    there.test_file.write_text(there.test_file.read_text().replace("1_000_000 * cost_ms", "1_300_000 * cost_ms"))
    result = there.run("--perf-against=HEAD", "--perf-evidence=off", failed=1)
    result.stdout.re_match_lines([r"work +130 ms .*\+30\.0%.*REGRESSED"])


def test_on_windows_memory_and_counts_are_gated_and_times_are_of_one_process(project: Project) -> None:
    there = on("win32", project)
    result = there.run("--perf-update", "--perf-noisy=accept", passed=1)
    unstarted = (
        "a fresh process could not be started: on Windows perflab starts no processes of its own; it does in WSL 2"
    )
    result.stdout.fnmatch_lines([f"baselines with fewer replicates: {unstarted}"])
    assert len(there.saved_case()["replicates"]) == 1
    there.run(passed=1).stdout.re_match_lines([r"work +100 ms .* ok"])
    there.cost(ms=100, kib=513)
    there.run(failed=1).stdout.re_match_lines([r"peak +512 KiB +513 KiB .* failed"])


def test_on_windows_two_commits_cannot_be_measured_in_turns_and_the_run_says_so(project: Project) -> None:
    there = on("win32", project)
    begin_repository(there)
    there.run("--perf-against=HEAD", ret=REFUSED).stderr.fnmatch_lines(
        ["*: cannot start *: on Windows perflab starts no processes of its own; it does in WSL 2"]
    )


def test_on_windows_the_checkup_says_what_is_there_and_what_is_unknown(project: Project) -> None:
    there = on("win32", project)
    there.test_file.write_text("from perflab.cli import main\n\ndef test_doctor():\n    assert main(['doctor']) == 0\n")
    there.pytest("-s", passed=1).stdout.fnmatch_lines(["*processor: *", "accelerator: none *", "load: unknown"])
