"""Processes that measure for another one, as Python itself starts them, seen from outside."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import Project

CONFTEST = """
import atexit, gc, os, sys
from pathlib import Path

import pytest

def at_the_end():
    kind = "fresh" if any(word.startswith("--perf-replicate=") for word in sys.argv) else "session"
    Path(f"{kind}-{os.getpid()}.txt").write_text(f"{gc.get_freeze_count()} {torn_down}")

atexit.register(at_the_end)
torn_down = False

@pytest.fixture(scope="session")
def kept():
    yield
    global torn_down
    torn_down = True
"""


def test_a_fresh_process_ends_without_looking_through_all_it_holds_once_its_fixtures_are_torn_down(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile("def test_work(perf, kept):\n    perf(sum, range(10_000))\n")
    arguments = ["-p", "perflab.plugin", "-m", "perf", "--perf-update", "--perf-replicates=2", "--perf-budget=200ms"]
    pytester.runpytest_subprocess(*arguments).assert_outcomes(passed=1)
    fresh = [path.read_text().split() for path in pytester.path.glob("fresh-*.txt")]  # more on a busy machine
    (session,) = (path.read_text().split() for path in pytester.path.glob("session-*.txt"))
    assert fresh
    assert all(int(objects) > 100_000 for objects, _ in fresh), "PyTorch's own objects are many more"
    assert int(session[0]) < 1000, "whoever runs the session may go on after it"
    assert {session[1], *(torn_down for _, torn_down in fresh)} == {"True"}


RANDOMLY = """
import random

def pytest_addoption(parser):
    parser.addoption("--randomly-seed", default="default")

def pytest_configure(config):
    given = config.option.randomly_seed
    config.option.randomly_seed = random.getrandbits(32) if given == "default" else int(given)
    with (Path(__file__).parent / "seeds.txt").open("a") as file:
        print(config.option.randomly_seed, file=file)
"""
"""The part of pytest-randomly that chooses a run's seed, noted by each process."""


def test_all_processes_of_a_run_have_the_seed_that_pytest_randomly_drew(project: Project) -> None:
    project.add(RANDOMLY, "conftest.py")
    project.save("--perf-replicates=2")
    seeds = (project.pytester.path / "seeds.txt").read_text().split()
    assert len(seeds) > 1
    assert len(set(seeds)) == 1, "the session's own"
