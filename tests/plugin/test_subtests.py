"""Tests that report their parts: pytest's ``subtests`` and ``unittest``'s ``subTest``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugin.conftest import Project

pytest.importorskip("_pytest.subtests", reason="subtests came with pytest 9")

FIXTURE = """
import pytest
from conftest import Virtual

def work():
    Virtual.now_ns += 1_000_000

def test_work(perf, subtests):
    perf(work)
    with subtests.test("first"):
        assert 1 + 1 == 2
    with subtests.test("second"):
        assert 1 + 1 == {second}
    with subtests.test("third"):
        pytest.skip("not here")
"""
UNITTEST = """
import unittest

import pytest
from conftest import Virtual

def work():
    Virtual.now_ns += 1_000_000

@pytest.mark.perf
class TestWork(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _take(self, perf):
        self.perf = perf

    def test_work(self):
        self.perf(work)
        for n in (1, 2):
            with self.subTest(n=n):
                assert 1 + 1 == ({second} if n == 2 else 2)
"""


def run(project: Project, *arguments: str) -> tuple[pytest.RunResult, dict[str, Any]]:
    """A session, and the result of its case."""
    result = project.run("--perf-json=perf.json", *arguments)
    (one,) = project.results("perf.json")
    return result, one


@pytest.mark.parametrize("source", [FIXTURE, UNITTEST])
def test_a_test_with_subtests_is_reported_as_pytest_does_and_judged_once(project: Project, source: str) -> None:
    project.test_file.write_text(source.format(second=2))
    plain = project.run("--perf-disable").parseoutcomes()
    result, one = run(project)
    assert result.parseoutcomes() == plain
    assert one["judgement"]["verdict"] == "new"
    (journal,) = (project.pytester.path / ".perflab" / "runs").glob("*.jsonl")
    assert len([line for line in journal.read_text().splitlines() if '"case"' in line]) == 1, "the case finished once"


@pytest.mark.parametrize("source", [FIXTURE, UNITTEST])
def test_a_case_whose_subtest_fails_has_failed_once_and_nothing_of_it_is_saved(project: Project, source: str) -> None:
    project.test_file.write_text(source.format(second=3))
    plain = project.run("--perf-disable").parseoutcomes()
    result, one = run(project, "--perf-update", "--perf-replicates=1")
    assert result.parseoutcomes() == plain
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len([line for line in result.stdout.lines if line.startswith("SUBFAILED")]) == 1
    assert one["judgement"]["verdict"] == "failed"
    assert one["judgement"]["reasons"] == ["a subtest failed"]
    assert "assert (1 + 1) == 3" in one["failure"]
    assert "other tests failed" not in result.stdout.str()
    assert not list((project.pytester.path / "baselines").glob("*/*.json"))
