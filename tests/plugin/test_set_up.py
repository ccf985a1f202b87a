"""``perf(fn, setup=make)`` from outside, on a virtual clock: what is set up before each call is none of the case's."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import CONFTEST, Project

CASE = """
import pytest
import torch
from conftest import Virtual

SET_UP_MS, COPIES = 30, 1

def make():
    Virtual.now_ns += 1_000_000 * SET_UP_MS
    return ([torch.ones(256).clone() for _ in range(COPIES)][:1],)

def use_up(batches):
    Virtual.now_ns += 100_000_000
    return batches.pop().exp_()

def test_used_up(perf):
    assert perf(use_up, setup=make).shape == (256,)
"""


@pytest.fixture
def python(python_with_compiler: str) -> str:
    return python_with_compiler


def test_a_set_up_is_no_part_of_the_case_in_any_kind_of_run(project: Project) -> None:
    project.test_file.write_text(CASE)
    project.save("--perf-replicates=2")
    project.test_file.write_text(CASE.replace("30, 1", "90, 40"))
    result = project.run()
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r"used_up +100 ms +±0.0% +\S+ 1.00 KiB  ok"])
    predicted = project.run("--perf-predict")
    predicted.assert_outcomes(passed=1)
    predicted.stdout.re_match_lines([r"used_up .* 1.00 KiB .*  new"])
    project.pytest(passed=1)


def test_a_graph_refuses_a_set_up_by_name(project: Project) -> None:
    (project.pytester.path / "conftest.py").write_text(
        CONFTEST + "import perflab.measured.run.cases as measuring\nmeasuring.no_graph_for = lambda *_: None\n"
    )
    project.test_file.write_text(CASE)
    result = project.run("--perf-cuda-graph")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_used_up: perf(setup=) in a CUDA graph: a replay repeats its calls on the same memory*",
            "  -> leave cuda_graph out, or measure set-up and work together in one function",
        ]
    )
