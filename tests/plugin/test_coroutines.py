"""Coroutine functions as cases, from outside: each call runs to its end, and the test's own loop goes on afterwards."""

from __future__ import annotations

from tests.plugin.conftest import Project

CASES = """
import asyncio
import torch
from conftest import Virtual

async def work(given):
    await asyncio.sleep(0)
    Virtual.now_ns += 100_000_000
    return given.exp_()

def make():
    return (torch.ones(256),)

def test_plain(perf):
    assert perf(work, setup=make).shape == (256,)

async def test_within_a_loop(perf):
    before = asyncio.get_running_loop(), asyncio.current_task()
    assert perf(work, torch.ones(256)).shape == (256,)
    assert (asyncio.get_running_loop(), asyncio.current_task()) == before
    await asyncio.sleep(0)
"""


def test_coroutine_functions_are_run_to_their_end_in_tests_of_both_kinds(project: Project) -> None:
    project.test_file.write_text(CASES)
    result = project.run("--perf-update", "--perf-replicates=1")
    result.assert_outcomes(passed=2)
    result.stdout.re_match_lines([r"plain +100 ms .* 1.00 KiB", r"within_a_loop +100 ms .* 1.00 KiB"])
    project.pytest("-W", "error", passed=2)


def test_a_test_on_trio_is_told_to_choose_asyncio_and_a_trio_that_is_merely_imported_is_not_noticed(
    project: Project,
) -> None:
    # What a trio of any age has. None is installed here.
    (project.test_file.parent / "trio.py").write_text(
        "class lowlevel:\n"
        "    running = False\n\n"
        "    @classmethod\n"
        "    def current_task(cls):\n"
        "        if not cls.running:\n"
        "            raise RuntimeError('must be called from async context')\n"
    )
    project.test_file.write_text(f"import trio\n{CASES}")
    project.pytest(passed=2)
    project.test_file.write_text(f"{CASES}\nimport trio\ntrio.lowlevel.running = True\n")
    result = project.pytest(failed=2)
    result.stdout.fnmatch_lines(["*choose asyncio for the test: *"])
