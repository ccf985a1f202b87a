"""Small accepted steps add up to a flag; reasons are kept; commits stand beside what was measured at them."""

from __future__ import annotations

import re

import pytest

from tests.plugin.conftest import Project, begin_repository, git

QUICK = "--perf-replicates=2"


def test_four_accepted_steps_of_3_percent_add_up_to_a_failure_that_a_reason_settles(project: Project) -> None:
    project.run("--perf-update", QUICK).assert_outcomes(passed=1)
    assert "anchor" not in project.saved_case()
    file = project.baseline_file()
    file.write_text(re.sub(r'"recorded": "[^"]*"', '"recorded": "2026-08-01"', file.read_text()))
    said = []
    for ms in (103, 106, 109, 112):
        project.cost(ms=ms)
        update = project.run("--perf-update", QUICK, passed=1)
        said.append("saved, but still worse than the anchor: work (anchor of 2026-08-01)" in update.stdout.str())
    assert said == [False, True, True, True]
    assert project.saved_case()["anchor"]["replicates"][0]["median_ns"] == 100e6

    project.run(QUICK, failed=1).stdout.re_match_lines(
        [
            r"work is slower than its anchor of 2026-08-01 by \+12\.0%, in 4 accepted steps,",
            r"  none of which passed the limit",
            r"\s+before\s+now\s+change\s+95 % interval\s+limit",
            r"latency, to anchor\s+100 ms\s+112 ms\s+\+12\.0%\s.*",
            r"measured again 2 times in fresh processes.*",
            r"if intended: pytest -m perf .*test_story\.py::test_work --perf-update --perf-reason=\"…\"",
            r"work .* 112 ms .* \+12\.0% .* REGRESSED",
            r"  slower than its anchor of 2026-08-01 by \+12\.0%, .*",
            r"1 regressed +\(accept: --perf-update --perf-reason=\"…\"\)",
        ]
    )

    reason = "--perf-reason=mask is checked, since µ=0 was wrong"
    project.run("--perf-update", QUICK, reason).assert_outcomes(passed=1)
    case = project.saved_case()
    assert "anchor" not in case
    (accepted,) = case["accepted"]
    assert accepted["reason"] == "mask is checked, since µ=0 was wrong"
    assert accepted["latency_ratio"] == 1.0
    assert len([line for line in file.read_text().splitlines() if "latency_ratio" in line]) == 1
    project.run(QUICK).stdout.re_match_lines([r"work .* 112 ms .* 0\.0% .* ok", "1 ok"])


def test_a_step_past_the_limit_takes_the_anchor_along_and_is_remembered(project: Project) -> None:
    for ms in (100, 103, 130):
        project.cost(ms=ms)
        project.run("--perf-update", QUICK).assert_outcomes(passed=1)
    case = project.saved_case()
    assert "anchor" not in case
    assert case["accepted"] == [{"date": case["recorded"], "latency_ratio": pytest.approx(1.2621)}]


def test_a_case_of_more_memory_and_a_little_more_time_keeps_the_anchor_of_its_time(project: Project) -> None:
    project.run("--perf-update", QUICK).assert_outcomes(passed=1)
    for kib, ms in ((513, 104), (514, 108), (515, 112)):
        project.cost(ms=ms, kib=kib)
        project.run("--perf-update", QUICK).assert_outcomes(passed=1)
    assert project.saved_case()["anchor"]["steps"] == 3
    accepted = project.needs()["test_work"]["accepted"]
    assert [(a["peak_bytes_before"], a["peak_bytes_now"]) for a in accepted] == [
        (512 * 1024, 513 * 1024),
        (513 * 1024, 514 * 1024),
        (514 * 1024, 515 * 1024),
    ]
    project.run(QUICK, failed=1).stdout.re_match_lines([r"latency, to anchor .*", r"peak +515 KiB +515 KiB +same .*"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--perf-reason=because"], "*--perf-reason: 'because' is a reason for saving, but this run saves nothing*"),
        (["--perf-update", "--perf-reason=…"], "*--perf-reason: '…' is a placeholder; write why*"),
        (["--perf-prune-case=test_story.py::test_work"], "*--perf-prune-case removes nothing by itself*"),
    ],
)
def test_a_reason_that_would_be_lost_is_refused(pytester: pytest.Pytester, arguments: list[str], said: str) -> None:
    result = pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([said])


def test_a_baseline_knows_its_commit_and_whether_files_differed_from_it(project: Project) -> None:
    one = ("--perf-update", "--perf-replicates=1")
    project.run(*one).assert_outcomes(passed=1)
    assert "commit" not in project.saved_case()

    begin_repository(project)
    head = git(project, "rev-parse", "HEAD").strip()
    for _ in range(2):  # saving changes the baselines, which makes nothing dirty
        project.run(*one).assert_outcomes(passed=1)
        assert project.saved_case()["commit"] == head
    project.cost(ms=101)
    project.run(*one).assert_outcomes(passed=1)
    assert project.saved_case()["commit"] == f"{head}+dirty"


def test_git_is_not_asked_where_nothing_is_stored(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    programs = project.pytester.mkdir("programs")
    (programs / "git").write_text("#!/bin/sh\ntouch asked\nexit 1\n")
    (programs / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    asked = project.pytester.path / "asked"
    project.run().assert_outcomes(passed=1)
    assert not asked.exists()
    project.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    assert asked.exists()
