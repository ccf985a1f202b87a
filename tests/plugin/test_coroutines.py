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
