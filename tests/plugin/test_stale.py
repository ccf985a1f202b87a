"""Baselines of cases that are gone: reported, removed when asked, and never taken for what merely was not run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from perflab.base.data import Parameters
from perflab.devices.kinds import current_environment
from perflab.noting import Notes
from perflab.predicted.store import PredictedStore
from perflab.running.session import starting
from perflab.store.stale import Collection
from perflab.store.times import BaselineStore
from tests.harness.command import Command
from tests.harness.make import entry, predicted_baseline
from tests.plugin.conftest import Project, begin_repository, one_line

CASES = """
import pytest
from conftest import Virtual

def work():
    Virtual.now_ns += 50_000_000
    return 1

def test_a(perf):
    perf(work)

class TestGroup:
    def test_b(self, perf):
        perf(work)

@pytest.mark.parametrize("n", [1, 2, 3])
def test_c(perf, n):
    perf(work)
"""
CASES_STORED: dict[str, Parameters] = {
    "TestGroup::test_b": {},
    "test_a": {},
    "test_c[1]": {"n": 1},
    "test_c[2]": {"n": 2},
    "test_c[3]": {"n": 3},
}
ALL = list(CASES_STORED)


def store(project: Project, cases: dict[str, Parameters]) -> None:
    """Baselines as a run would have saved them; which cases there are is all that matters here."""
    here = current_environment(torch.device("cpu"))
    entries = {
        f"test_story.py::{name}": entry(environment=here, parameters=parameters) for name, parameters in cases.items()
    }
    BaselineStore(project.pytester.path / "baselines").save(entries)


@pytest.fixture
def suite(project: Project) -> Project:
    """A project of five cases with baselines."""
    project.test_file.write_text(CASES)
    store(project, CASES_STORED)
    assert list(project.saved_cases()) == ALL
    return project


def prune(project: Project, *arguments: str) -> str:
    """Prune by collecting alone; what was said."""
    return project.run("--collect-only", "-q", "--perf-prune", *arguments).stdout.str()


def test_what_is_gone_is_reported_and_pruned_and_the_rest_stays(
    suite: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    suite.edit("def test_b", "def test_other")
    suite.edit("def test_a", "def test_aa")
    said = one_line(suite.run("-k", "test_aa", "--perf-json=run.json"))
    assert re.search(
        r"2 stale baselines in baselines/cpu-\S+/test_story\.json: TestGroup::test_b, test_a \(remove: --.*", said
    )
    assert list(suite.saved_cases()) == ALL
    for form in ("text", "markdown", "json"):
        told = Command(capsys)("report", suite.pytester.path / "run.json", f"--format={form}").replace("\\", "")
        gone = "test_story.py::TestGroup::test_b, test_story.py::test_a"
        assert f"2 cases with a baseline no longer exist: {gone} (remove it: --perf-prune)" in " ".join(told.split())
    said = one_line(suite.run("--collect-only", "--perf-prune", "--perf-prune-case=test_story.py::test_z"))
    assert "--perf-prune-case=test_story.py::test_z: there is no baseline of that name here" in said
    store(suite, CASES_STORED)
    said = one_line(suite.run("-k", "test_aa", "--perf-prune"))
    assert re.search(
        r"removed 2 stale baselines from baselines/cpu-\S+/test_story\.json: TestGroup::test_b, test_a ", said
    )
    assert list(suite.saved_cases()) == ALL[2:]
    assert "--perf-prune: no stale baselines" in prune(suite)


def test_predicted_baselines_go_with_their_cases_on_any_machine_and_others_stay(suite: Project) -> None:
    store = PredictedStore(suite.pytester.path / "baselines")
    cases = [f"test_story.py::{name}" for name in ("test_a", "test_gone")]
    for gpu in ("h100", "l4"):
        store.save(gpu, {case: predicted_baseline() for case in cases})
    told = one_line(suite.run("-k", "test_a"))
    assert "1 stale baseline in baselines/predicted-h100/test_story.json: test_gone (remove: --perf-prune)" in told
    told = one_line(suite.run("--collect-only", "-q", "--perf-prune", "--perf-device=cuda"))
    assert "removed 1 stale baseline from baselines/predicted-l4/test_story.json: test_gone" in told
    assert [list(PredictedStore(store.directory).load(path)) for path in store.paths()] == [["test_a"], ["test_a"]]


def test_a_damaged_predicted_file_hides_no_stale_measured_baseline(suite: Project) -> None:
    store = PredictedStore(suite.pytester.path / "baselines")
    (path,) = store.save("h100", {"test_story.py::test_gone": predicted_baseline()})
    path.write_text("{")
    suite.edit("def test_b", "def test_other")
    assert "/test_story.json: TestGroup::test_b (remove: --perf-prune)" in one_line(suite.run("-k", "test_a"))
    assert path.read_text() == "{"


def test_a_file_that_is_gone_takes_its_baselines_along(suite: Project) -> None:
    file = suite.baseline_file()
    suite.test_file.unlink()
    suite.pytester.makepyfile(test_second="def test_other(perf):\n    perf(sum, [1])\n")
    assert "removed 5 stale baselines" in prune(suite)
    assert not file.exists()
    assert not file.parent.exists()


def test_baselines_of_tests_that_moved_stay_until_they_are_saved_whatever_is_run(suite: Project) -> None:
    moved = suite.test_file.with_name("test_new_name.py")
    suite.test_file.rename(moved)
    moved.write_text(moved.read_text().replace("def test_b", "def test_other"))
    predicted = PredictedStore(suite.pytester.path / "baselines")
    predicted.save("h100", {f"test_story.py::{name}": predicted_baseline() for name in ("test_a", "test_a {cold}")})
    compared = "test_a, test_c[1], test_c[2], test_c[3] (save them under their new names first: --perf-update)"
    said = one_line(suite.run("-k", "test_other"))
    assert re.search(rf"4 stale baselines in baselines/cpu-\S+/test_story\.json: {re.escape(compared)}", said)
    assert re.search(r"1 stale baseline in baselines/cpu-\S+/test_story\.json: TestGroup::test_b \(remove: ", said)
    said = " ".join(prune(suite).split())
    assert "removed 1 stale baseline from baselines/cpu-" in said
    assert f"/test_story.json, since moved cases are compared with it: {compared}" in said
    assert list(suite.saved_cases()) == [name for name in ALL if name != "TestGroup::test_b"]

    here = current_environment(torch.device("cpu"))
    names = [name for name in ALL if name != "TestGroup::test_b"]
    BaselineStore(predicted.directory).save({f"{moved.name}::{name}": entry(environment=here) for name in names})
    said = " ".join(prune(suite).split())
    assert "removed 4 stale baselines from baselines/cpu-" in said, "they are saved under their new names"
    kept = "kept in baselines/predicted-h100/test_story.json, since moved cases are compared with it: test_a, test_a {"
    assert kept in said, "no prediction is saved under a new name"
    said = prune(suite, "--perf-prune-case=test_story.py::test_a")
    assert "removed 2 stale baselines" in said, "it is named"


def test_a_file_left_without_a_single_test_is_still_seen(suite: Project) -> None:
    suite.test_file.write_text("")
    assert "removed 5 stale baselines" in prune(suite)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-k", "test_a"],
        ["-m", "perf and not perf"],
        ["test_story.py::test_a"],
        ["test_story.py::TestGroup"],
        ["--deselect=test_story.py::test_a"],
        ["--pyargs", "test_story::test_a"],
        ["--ignore=test_story.py"],
        ["--lf", "-p", "cacheprovider"],
    ],
    ids=" ".join,
)
def test_what_was_not_run_is_not_stale(suite: Project, arguments: list[str]) -> None:
    if "--lf" in arguments:
        suite.edit("def test_a(perf):\n", "def test_a(perf):\n    assert False\n")
        suite.pytester.makeini("[pytest]\naddopts = -p perflab.plugin\n")
        suite.run("-k", "test_a").assert_outcomes(failed=1, deselected=4)
    assert "no stale baselines" in suite.pytest("--collect-only", "--perf-prune", *arguments).stdout.str()
    assert list(suite.saved_cases()) == ALL


def test_what_other_tests_of_the_run_say_does_not_hide_a_file_that_was_collected_whole(suite: Project) -> None:
    suite.edit("def test_a", "def test_other")
    suite.pytester.makepyfile(test_second="def test_x():\n    pass\n")
    assert "test_a" in prune(suite, "test_story.py", "test_second.py::test_x")
    assert list(suite.saved_cases()) == ALL[:1] + ALL[2:]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("import pytest\n", "import pytest\nimport nowhere\n"),
        ("import pytest\n", "import pytest\npytest.skip('not here', allow_module_level=True)\n"),
        ("def test_a", "if False:\n  def test_a"),
        ("class TestGroup:", "class TestGroup:\n    __test__ = False"),
        ("[1, 2, 3]", "[]"),
    ],
    ids=["does not import", "is skipped", "is there under a condition", "is switched off", "lists no values here"],
)
def test_a_file_that_could_have_more_elsewhere_loses_nothing(suite: Project, old: str, new: str) -> None:
    suite.edit(old, new)
    said = prune(suite)
    assert "no stale baselines" in said or "nothing was pruned" in said
    assert list(suite.saved_cases()) == ALL


OPTION = """
def pytest_addoption(parser):
    parser.addoption("--sizes", default="")

def pytest_generate_tests(metafunc):
    sizes = metafunc.config.getoption("--sizes").split()
    if "size" in metafunc.fixturenames and sizes:
        metafunc.parametrize("size", sizes)
"""
BY_OPTION = """
import pytest
from conftest import Virtual

def work():
    Virtual.now_ns += 50_000_000
    return 1

@pytest.fixture
def size():
    return "default"

@pytest.fixture(params=["x", "y"])
def kind(request):
    return request.param

def test_by_option(perf, size):
    perf(work)

def test_by_fixture(perf, kind):
    perf(work)

@pytest.mark.parametrize("n", [1])
def test_by_both(perf, size, n):
    perf(work)
"""


def test_parameters_that_an_option_or_a_fixture_gives_may_come_back(project: Project) -> None:
    with (project.pytester.path / "conftest.py").open("a") as conftest:
        conftest.write(OPTION)
    project.test_file.write_text(BY_OPTION)
    by_option: dict[str, Parameters] = {f"test_by_option[{size}]": {"size": size} for size in ("small", "large")}
    by_fixture: dict[str, Parameters] = {f"test_by_fixture[{kind}]": {"kind": kind} for kind in "xy"}
    by_both: dict[str, Parameters] = {f"test_by_both[{size}-1]": {"size": size, "n": 1} for size in ("small", "large")}
    store(project, by_option | by_fixture | by_both)
    before = list(project.saved_cases())
    project.edit('["x", "y"]', '["x"]')
    for arguments in (["--sizes=small"], []):
        assert "no stale baselines" in prune(project, *arguments)
        assert list(project.saved_cases()) == before


def test_parameters_of_an_environment_variable_are_kept_named_and_removed_by_name_alone(
    suite: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.edit("[1, 2, 3]", "range(1, 1 + int(__import__('os').environ.get('MOST', '1')))")
    assert "stale" not in one_line(suite.run("-k", "test_a"))
    said = " ".join(prune(suite).split())
    assert "no stale baselines kept in baselines/" in said
    assert (
        "perhaps elsewhere: test_c[2], test_c[3] (remove: --perf-prune --perf-prune-case=test_story.py::NAME)" in said
    )
    assert list(suite.saved_cases()) == ALL
    monkeypatch.setenv("MOST", "3")
    prune(suite, "--perf-prune-case=test_story.py::test_c")
    assert list(suite.saved_cases()) == ALL, "what is collected stays"
    monkeypatch.delenv("MOST")
    assert "removed 1 stale baseline" in prune(suite, "--perf-prune-case=test_story.py::test_c[2]")
    assert list(suite.saved_cases()) == [name for name in ALL if name != "test_c[2]"]
    prune(suite, "--perf-prune-case=test_story.py::test_c")
    assert list(suite.saved_cases()) == ALL[:3]


def test_workers_tell_what_they_collected(suite: Project) -> None:
    suite.edit("def test_a", "def test_other")
    xdist = ("-n2", "-p", "xdist.plugin")
    result = suite.run(*xdist, "-k", "test_other")
    assert re.search(r"1 stale baseline in baselines/cpu-\S+/test_story\.json: test_a ", one_line(result))
    suite.run(*xdist, "test_story.py::test_other", "--perf-prune")
    assert list(suite.saved_cases()) == ALL
    said = one_line(suite.run(*xdist, "-k", "test_other", "--perf-prune"))
    assert re.search(r"removed 1 stale baseline from \S+: test_a ", said)
    assert list(suite.saved_cases()) == ALL[:1] + ALL[2:]


def test_an_interrupted_run_prunes_nothing(suite: Project) -> None:
    suite.edit("def test_a(perf):\n    perf(work)", "def test_other(perf):\n    raise KeyboardInterrupt")
    result = suite.run("-k", "test_other", "--perf-prune")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*nothing was pruned: the run did not finish*"])
    assert list(suite.saved_cases()) == ALL


def test_baselines_outside_of_the_project_are_not_gone_because_a_file_is(suite: Project, tmp_path: Path) -> None:
    elsewhere = tmp_path / "shared"
    (suite.pytester.path / "baselines").rename(elsewhere)
    suite.test_file.unlink()
    suite.pytester.makepyfile(test_second=CASES)
    assert "no stale baselines" in prune(suite, f"--perf-baselines={elsewhere}")
    assert len(list(elsewhere.glob("*/*.json"))) == 1


def test_what_was_collected_is_looked_through_only_where_there_is_a_case(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[Notes] = []

    def look(config: pytest.Config, notes: Notes, cases: list[str], baselines: Path) -> Collection:
        looked.append(notes)
        return Collection(files={})

    monkeypatch.setattr(starting, "_collection_of", look)
    pytester.makepyfile("def test_plain():\n    pass\ndef test_measured(perf):\n    perf(sum, range(100_000))\n")
    pytester.runpytest_inprocess("-m", "not perf").assert_outcomes(passed=1, deselected=1)
    assert not looked
    pytester.runpytest_inprocess("-k", "measured", "--perf-budget=100ms").assert_outcomes(passed=1, deselected=1)
    assert len(looked) == 1
    assert not looked[0].items, "deselected tests are kept alive"


def test_a_slowdown_is_found_after_the_test_was_moved_and_the_row_says_what_it_was_compared_with(
    project: Project,
) -> None:
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    begin_repository(project)
    project.test_file.rename(project.test_file.with_name("test_moved.py"))
    project.cost(ms=150, kib=600)
    said = one_line(project.run("--perf-prune", "--perf-replicates=2", failed=1))
    assert "compared with test_story.py::test_work, moved" in said
    assert "peak memory +88.0 KiB" in said
    assert "+50.0%" in said
    assert "--perf-prune: no stale baselines" in said
    assert "since moved cases are compared with it: test_work (save them under their new names first" in said
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    said = one_line(project.run("--perf-prune"))
    assert "compared with" not in said
    assert "test_story.json: test_work; it held no others and was deleted" in said
    assert project.baseline_file().stem == "test_moved"


def test_a_test_that_was_renamed_is_compared_with_its_old_name_if_git_knows_its_code(project: Project) -> None:
    begin_repository(project)
    project.run("--perf-update", "--perf-replicates=2").assert_outcomes(passed=1)
    project.edit("test_work", "test_renamed")
    project.cost(ms=100, kib=600)
    said = one_line(project.run("--perf-replicates=2", failed=1))
    assert "compared with test_story.py::test_work, moved" in said
    assert "test_work (save them under their new names first: --perf-update)" in said
    assert "remove: --perf-prune" not in said
    project.edit("assert perf(work) > 0", "assert perf(work) > 1")
    assert "1 new" in one_line(project.run())
