"""Every case is measured before any is measured again: what waits for a second look, and how it is reported."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from tests.plugin.conftest import Project, interrupted
from tests.plugin.test_merging import FIRST_TRY_FAILS

CASES = """
import gc, json, sys, time, weakref
from pathlib import Path

import pytest
from conftest import Virtual

here = Path(__file__).parent
fresh = "fresh " if "--perf-replicate=" in " ".join(sys.argv) else ""
alive = weakref.WeakSet()

class Model:
    def __init__(self, name):
        self.name = name
        alive.add(self)

    def __call__(self):
        with (here / "log.txt").open("a") as log:
            log.write(f"{fresh}{self.name}\\n")
        if fresh and (here / "hang").exists():
            (here / "hanging").touch()
            time.sleep(600)
        Virtual.now_ns += 1_000_000 * json.loads((here / "costs.json").read_text())[self.name]

@pytest.mark.parametrize("name", ["a_little", "much", "nothing"])
def test_slower_by(perf, name):
    perf(Model(name))

def test_last(perf):
    gc.collect()
    assert not alive, "a case that waits keeps its model"
    perf(Model("last"))
    (here / "over").touch()
"""
AT_FIRST = {"a_little": 100, "much": 100, "nothing": 100, "last": 100}
LATER = AT_FIRST | {"a_little": 120, "much": 160}

TIME_ENDS_WITH_THE_LAST_TEST = """
from perflab.settings.settings import TotalBudget

TotalBudget.left_s = lambda self: 1.0 if Path(__file__).with_name("over").exists() else 1000.0
"""
ENDED = "the run ended before it was measured again"


class Story:
    """Two cases that became slower, by a little and by much, and two that did not."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.path = project.pytester.path
        project.test_file.write_text(CASES)
        self.costs(AT_FIRST)
        project.save("--perf-replicates=2", cases=4)
        self.costs(LATER)
        self.forget()

    def costs(self, ms: dict[str, int]) -> None:
        (self.path / "costs.json").write_text(json.dumps(ms))

    def forget(self) -> None:
        for name in ("log.txt", "over"):
            (self.path / name).unlink(missing_ok=True)

    def run(self, *arguments: str, **outcomes: int) -> pytest.RunResult:
        return self.project.run("--perf-replicates=2", "--perf-json=perf.json", *arguments, **outcomes)

    def order(self) -> list[str]:
        """What was measured, one after another; successive processes that measure one case count once."""
        return [name for name, _ in itertools.groupby((self.path / "log.txt").read_text().splitlines())]

    def judgements(self) -> dict[str, dict[str, Any]]:
        rows = json.loads((self.path / "perf.json").read_text())["results"]
        return {row["case"].partition("::test_")[2]: row["judgement"] for row in rows}

    def verdicts(self) -> dict[str, str]:
        return {case: judgement["verdict"] for case, judgement in self.judgements().items()}


@pytest.fixture
def story(project: Project) -> Story:
    return Story(project)


FOUND = {"slower_by[a_little]": "regressed", "slower_by[much]": "regressed", "slower_by[nothing]": "ok", "last": "ok"}


def test_all_cases_are_measured_before_the_largest_suspicion_is_looked_into_and_then_the_next(story: Story) -> None:
    result = story.run("-v", "--junitxml=junit.xml", "-o", "addopts=-p perflab.plugin", passed=2, failed=2)
    again = ["fresh much", "fresh a_little"]
    # Then the profiles that their failures are explained by, which need a process each.
    assert story.order() == ["a_little", "much", "nothing", "last", *again, *again]
    assert story.verdicts() == FOUND
    result.stdout.re_match_lines(
        [
            r"test_story\.py::test_slower_by\[a_little\] WAITS \(re-checked after all tests\)$",
            r"test_story\.py::test_slower_by\[much\] WAITS \(re-checked after all tests\)$",
            r"test_story\.py::test_slower_by\[nothing\] PASSED.*",
            r"test_story\.py::test_slower_by\[much\] FAILED.*",
            r"test_story\.py::test_slower_by\[a_little\] FAILED.*\[100%\]",
            r"slower_by\[much\] is slower than its baseline",
            r"latency\s+100 ms\s+160 ms\s+\+60\.0%.*",
            r"measured again 2 times in fresh processes; nothing disturbed it",
            r"if intended: pytest .*test_story\.py::test_slower_by\[much\]' --perf-update",
            r"FAILED test_story\.py::test_slower_by\[much\] - Failed: slower_by\[much\] is slo.*",
        ]
    )
    suite = ElementTree.parse(story.path / "junit.xml").getroot()[0]
    failed = [case.get("name") for case in suite.iter("testcase") if case.find("failure") is not None]
    assert (suite.get("tests"), suite.get("failures")) == ("4", "2")
    assert sorted(map(str, failed)) == ["test_slower_by[a_little]", "test_slower_by[much]"]
    again = story.run("--lf", "-o", "addopts=-p perflab.plugin", failed=2)
    assert list(story.verdicts()) == ["slower_by[a_little]", "slower_by[much]"]


def test_where_the_run_s_time_is_over_before_a_second_look_nobody_can_tell(story: Story) -> None:
    story.project.add(TIME_ENDS_WITH_THE_LAST_TEST, "conftest.py")
    story.run("--perf-total-budget=155", "--perf-check=strict", passed=2, failed=2)
    assert not any(name.startswith("fresh") for name in story.order())
    assert story.verdicts() == FOUND | {"slower_by[a_little]": "inconclusive", "slower_by[much]": "inconclusive"}
    over = "the run's 2.58 min were over before it could be measured again (--perf-total-budget)"
    assert story.judgements()["slower_by[much]"]["reasons"] == [over]


def test_workers_look_again_once_they_have_run_all_their_tests(story: Story) -> None:
    result = story.run("-n2", "-p", "xdist.plugin", "--perf-evidence=off", passed=2, failed=2)
    assert story.verdicts() == FOUND
    assert list(story.verdicts()) == list(FOUND)
    result.stdout.re_match_lines([r"measured again 2 times in fresh processes.*"])


def test_a_case_whose_worker_crashes_before_its_second_look_has_failed(story: Story) -> None:
    story.project.test_file.write_text(
        story.project.test_file.read_text().replace("    assert not alive", "    assert 1")
    )
    with story.project.test_file.open("a") as file:
        file.write("\ndef test_crash(perf):\n    import os\n    os._exit(1)\n")
    result = story.run("-n1", "-p", "xdist.plugin")
    assert result.ret == 1
    assert story.verdicts() == FOUND | {"slower_by[a_little]": "failed", "slower_by[much]": "failed", "crash": "failed"}
    assert story.judgements()["slower_by[much]"]["reasons"] == ["its worker process crashed"]
    result.stdout.fnmatch_lines(
        ["test_story.py::test_slower_by[[]much[]]: its worker process crashed before its re-check"]
    )


@pytest.mark.parametrize(
    ("options", "found"),
    [(["-x"], ["a_little"]), (["--maxfail=2", "-n1", "-p", "xdist.plugin"], ["a_little", "much"])],
    ids=["alone", "workers"],
)
def test_with_x_nothing_waits_and_the_first_failures_in_order_end_the_run(
    story: Story, options: list[str], found: list[str]
) -> None:
    story.run(*options, failed=len(found)).stdout.fnmatch_lines([f"*stopping after {len(found)} failures*"])
    assert story.order() == [name for one in found for name in (one, f"fresh {one}")]
    assert story.verdicts() == {f"slower_by[{one}]": "regressed" for one in found}


def test_with_x_a_case_that_fails_by_its_memory_is_no_second_failure_after_another_one(project: Project) -> None:
    project.save()
    project.cost(ms=100, kib=1024)
    (project.pytester.path / "test_a_plain.py").write_text("def test_plain():\n    assert False\n")
    result = project.run("-x", "-m", "", "--perf", "test_story.py", "test_a_plain.py", failed=1)
    result.stdout.fnmatch_lines(["work needs more memory than its baseline", "*stopping after 1 failures*"])


@pytest.mark.parametrize(("what", "fresh"), [("memory", 1), ("counts", 0)])
def test_a_case_that_fails_by_what_is_exact_is_not_measured_on_for_its_time(
    project: Project, what: str, fresh: int
) -> None:
    project.save()
    project.cost(ms=160, kib=1024 if what == "memory" else 512)
    if what == "counts":
        source = project.test_file.read_text()
        project.test_file.write_text(source.replace("return block", "block.view(-1)\n    return block"))
    result = project.run("--perf-json=perf.json", "--perf-evidence=off", failed=1)
    (found,) = project.results("perf.json")
    assert found["judgement"]["worse"] == [what]
    assert len(found["outcome"].get("fresh", [])) == fresh, "memory may depend on what the process did before"
    result.stdout.re_match_lines(
        [r"latency\s+100 ms\s+160 ms\s+\+60\.0%.*%$", "why: it fails already by what is exact, so its time was not .*"]
    )


@pytest.mark.parametrize("workers", [[], ["-n1", "-p", "xdist.plugin"]], ids=["alone", "workers"])
def test_ctrl_c_gives_out_what_waits(story: Story, workers: list[str]) -> None:
    with story.project.test_file.open("a") as file:
        file.write("\ndef test_hangs(perf):\n    (here / 'hanging').touch()\n    perf(lambda: time.sleep(600))\n")
    interrupted(story.path, story.project.python, "-m", "perf", "--perf-json=perf.json", *workers)
    assert story.verdicts() == FOUND | {"slower_by[a_little]": "inconclusive", "slower_by[much]": "inconclusive"}
    assert story.judgements()["slower_by[much]"]["reasons"] == [ENDED]


def test_ctrl_c_while_it_is_measured_again_gives_it_out_too(story: Story) -> None:
    (story.path / "hang").touch()
    interrupted(story.path, story.project.python, "-m", "perf", "--perf-json=perf.json")
    assert story.order()[-1] == "fresh much"
    assert story.verdicts() == FOUND | {"slower_by[a_little]": "inconclusive", "slower_by[much]": "inconclusive"}


def test_where_a_plugin_runs_tests_again_they_are_looked_at_at_once(story: Story) -> None:
    (story.path / "again.py").write_text(FIRST_TRY_FAILS)
    assert story.run("-p", "again").parseoutcomes() == {"passed": 2, "failed": 2, "rerun": 2}
    small, large = ["a_little", "fresh a_little"], ["much", "fresh much"]
    assert story.order() == [*small, *small, *large, *large, "nothing", "last"]
    assert story.verdicts() == FOUND


def test_a_case_that_is_expected_to_fail_does_so_in_its_own_phase(story: Story) -> None:
    source = story.project.test_file.read_text()
    story.project.test_file.write_text(
        source.replace("@pytest.mark.param", "@pytest.mark.xfail(strict=True)\n@pytest.mark.param")
    )
    story.run("-k", "much").assert_outcomes(xfailed=1)
    assert story.order() == ["much", "fresh much"]


def test_a_case_that_fails_in_another_way_waits_for_nothing(story: Story) -> None:
    more = """
import pytest

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item):
    yield
    if "much" in item.name:
        raise RuntimeError("checked by a plugin, and found wrong")
"""
    story.project.add(more, "conftest.py")
    story.run("--perf-evidence=off").assert_outcomes(passed=2, failed=2)
    assert story.order() == ["a_little", "much", "nothing", "last", "fresh a_little"]
    assert story.verdicts() == FOUND | {"slower_by[much]": "failed"}


# --- a budget that is fair --------------------------------------------------------------------------------------

GROUPS = """
import sys

import pytest
from conftest import Virtual

here = __import__("pathlib").Path(__file__).parent
in_turns = any(word.startswith("--perf-replicate") for word in sys.argv)

def spend(name, ms=400):
    with (here / ("turns.txt" if in_turns else "log.txt")).open("a") as log:
        log.write(f"{name}\\n")
    Virtual.now_ns += ms * 1_000_000

@pytest.mark.perf(side_by_side="impl")
@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("impl", ["naive", "flash"])
def test_attention(perf, impl, length):
    perf(spend, f"{impl}-{length}")

def test_plain():
    spend("plain")

@pytest.mark.perf(last=True)
def test_compiled(perf):
    perf(spend, "compiled")

@pytest.mark.parametrize("size", ["small", "large"])
def test_model(perf, size):
    perf(spend, size)
"""


FEW_ROUNDS = "\nimport perflab.measured.run.tables as tables\ntables.ROUNDS = tables.LEAST_PAIRS\n"
"""Code of a conftest: the rows of a table take as few turns as can be compared."""


def measured_in(folder: Path) -> list[str]:
    return [name for name, _ in itertools.groupby((folder / "log.txt").read_text().splitlines())]


def shown_in(result: pytest.RunResult) -> list[str]:
    return [line.split()[0] for line in result.stdout.str().splitlines() if line.endswith(" new")]


def test_with_a_total_budget_groups_take_turns_and_are_shown_in_the_order_of_the_file(project: Project) -> None:
    project.test_file.write_text(GROUPS)
    project.add(FEW_ROUNDS, "conftest.py")
    path = project.pytester.path
    in_file = ["naive-1", "naive-2", "flash-1", "flash-2", "plain", "compiled", "small", "large"]
    plain = project.run("-m", "", "--perf", passed=8)
    assert measured_in(path) == in_file
    for more in ([], ["-n1", "-p", "xdist.plugin"]):
        (path / "log.txt").unlink()
        result = project.run("-m", "", "--perf-total-budget=1h", *more, passed=8)
        rounds = ["naive-1", "flash-1", "small", "naive-2", "plain", "flash-2", "large", "compiled"]
        assert measured_in(path) == rounds
        assert shown_in(result) == shown_in(plain)
        assert len(shown_in(result)) == 7


def test_a_short_total_budget_is_shared_among_the_cases_and_each_has_the_fewest_samples_at_least(
    project: Project,
) -> None:
    project.test_file.write_text(GROUPS)
    project.add(FEW_ROUNDS, "conftest.py")
    project.add(
        "\nfrom perflab.settings.settings import TotalBudget\n"
        "TotalBudget.left_s = lambda self: 18.0 if self._total_s else None\n",
        "conftest.py",
    )

    def samples(*arguments: str) -> list[int]:
        project.run("--perf-json=perf.json", "-k", "not compiled", *arguments).assert_outcomes(passed=6)
        rows = project.results("perf.json")
        return [row["outcome"]["summary"]["samples"] for row in rows]

    assert samples() == [6] * 6
    kept_for_tables = (
        "the four rows of two tables take their turns later: large, the last one, has a fifth of what is left"
    )
    assert samples("--perf-total-budget=18") == [3, 3, 3, 4, 3, 5], kept_for_tables
