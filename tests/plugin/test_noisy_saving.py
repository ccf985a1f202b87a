"""A baseline from a noisy machine: taken again while that may help, marked, and not saved unasked if it is blind."""

from __future__ import annotations

import json

import pytest

from tests.plugin.conftest import Project

BUSY = 1.6


@pytest.fixture
def restless(project: Project) -> Project:
    """A case that takes longer in each further process."""
    source = project.test_file.read_text()
    counted = """
number = len(list(here.glob("process-*")))
(here / f"process-{number}").touch()

def work():"""
    project.test_file.write_text(
        source.replace("\ndef work():", counted).replace("1_000_000 * cost_ms", "1_000_000 * (cost_ms + 40 * number)")
    )
    return project


def test_neighbours_that_pass_while_a_baseline_is_saved_are_waited_for(project: Project) -> None:
    project.neighbours(BUSY, BUSY, 0.0)
    result = project.run("--perf-update", passed=1)
    result.stdout.fnmatch_lines(["perf: one more replicate to replace noisy ones (1 case)"])
    assert [one["neighbours_cores"] for one in project.saved_case()["replicates"]] == [0.0, 0.0, BUSY]
    assert "noisy" not in project.saved_case()
    assert "noisy machine" not in result.stdout.str()


def test_neighbours_that_stay_are_named_when_a_baseline_is_saved_and_mark_it(project: Project) -> None:
    project.neighbours(BUSY)
    result = project.run("--perf-update-new", passed=1)
    beside = "other processes used 1.6 cores meanwhile"
    result.stdout.fnmatch_lines([f"saved from a noisy machine: work: {beside}"])
    assert project.saved_case()["noisy"] == [beside]
    assert result.stdout.str().count("one more replicate") == 3


def test_times_that_could_not_show_twice_the_threshold_are_not_saved_and_nothing_is_lost(restless: Project) -> None:
    result = restless.run("--perf-update", passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.re_match_lines(
        [
            r"work .* new$",
            r"  memory and counts saved, times not$",
            r"times not saved, too noisy: work: its replicates differ so much that only slowdowns above \d+% count",
            r"  -> save again on a quieter machine, or with fewer threads \(perflab doctor\);",
            r"1 new$",  # and no advice to do what this run refused
        ]
    )
    assert restless.needs()["test_work"]["peak_bytes"], "what is exact is saved all the same"
    folder = restless.pytester.path
    assert not list((folder / "baselines").glob("cpu-*"))
    (kept,) = (folder / ".perflab" / "times").glob("*/*.json")
    (case,) = json.loads(kept.read_text())["cases"].values()
    assert "differ so much" in case["noisy"][0]
    assert len(case["replicates"]) > 1


def test_many_cases_that_are_too_noisy_take_one_line_with_their_number_the_usual_reason_and_the_remedy(
    restless: Project,
) -> None:
    source = restless.test_file.read_text()
    more = "".join(f"\ndef test_{name}(perf):\n    perf(work)\n" for name in ("second", "third", "fourth"))
    steady = "\ndef test_steady(perf):\n    perf(lambda: setattr(Virtual, 'now_ns', Virtual.now_ns + 10**8))\n"
    restless.test_file.write_text(source + "\n" + more + steady)
    restless.neighbours(BUSY)
    result = restless.run("--perf-update", passed=5)
    result.stdout.re_match_lines(
        [
            r"saved from a noisy machine: steady: other processes used 1\.6 cores meanwhile",
            r"times not saved, too noisy: 4 of 5 cases \(work, second, third and 1 more\), typically: its replicates "
            r"differ so much that only slowdowns above \d+% count; other processes used 1\.6 cores meanwhile",
            r"  -> save again on a quieter machine, or with fewer threads \(perflab doctor\);",
            r"     to save them anyway: --perf-update --perf-noisy=accept",
        ]
    )
    assert result.stdout.str().count("not saved, too noisy") == 1


@pytest.mark.parametrize("ini", [False, True])
def test_they_are_saved_and_marked_where_that_is_asked_for(restless: Project, ini: bool) -> None:
    if ini:
        restless.pytester.makeini("[pytest]\naddopts = -p perflab.plugin -p no:cacheprovider\nperf_noisy = accept\n")
    result = restless.run("--perf-update", *([] if ini else ["--perf-noisy=accept"]))
    assert result.ret == 0
    result.stdout.re_match_lines([r"work .* new, saved", r"saved from a noisy machine: work: its replicates differ.*"])
    assert "differ so much" in restless.saved_case()["noisy"][0]


def test_a_baseline_that_is_there_stays_where_its_successor_is_too_noisy(restless: Project) -> None:
    folder = restless.pytester.path
    restless.edit("40 * number", "0 * number")
    restless.run("--perf-update").assert_outcomes(passed=1)
    before = restless.baseline_file().read_text()
    restless.edit("0 * number", "40 * number")
    for mark in folder.glob("process-*"):
        mark.unlink()
    refused = restless.run("--perf-update")
    assert refused.ret == pytest.ExitCode.TESTS_FAILED
    assert "(accept: " not in refused.stdout.str()
    assert restless.baseline_file().read_text() == before


def test_a_baseline_of_one_process_says_that_no_slowdown_counts_against_it(project: Project) -> None:
    project.run("--perf-update", "--perf-replicates=1", passed=1).stdout.fnmatch_lines(
        [
            "saved from a single process: work: its noise is unknown, so no slowdown counts against it",
            "  -> save three or more: --perf-replicates=3",
        ]
    )
    assert "single process" not in project.run("--perf-update").stdout.str()
