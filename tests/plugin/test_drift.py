"""Small accepted steps add up to a flag; reasons are kept; commits stand beside what was measured at them."""

from __future__ import annotations

import re

import pytest

from tests.plugin.conftest import Project, begin_repository, git

QUICK = "--perf-replicates=2"


def test_accepted_steps_of_4_percent_add_up_to_a_failure_that_a_reason_settles_though_each_step_took_more_memory(
    project: Project,
) -> None:
    project.run("--perf-update", QUICK).assert_outcomes(passed=1)
    assert "anchor" not in project.saved_case()
    file = project.baseline_file()
    file.write_text(re.sub(r'"recorded": "[^"]*"', '"recorded": "2026-08-01"', file.read_text()))
    said = []
    for kib, ms in ((513, 104), (514, 108), (515, 112)):
        project.cost(ms=ms, kib=kib)
        update = project.run("--perf-update", QUICK, passed=1)
        said.append("saved, but still worse than the anchor: work (anchor of 2026-08-01)" in update.stdout.str())
    assert said == [False, True, True]
    anchor = project.saved_case()["anchor"]
    assert (anchor["steps"], anchor["replicates"][0]["median_ns"]) == (3, 100e6)
    accepted = project.needs()["test_work"]["accepted"]
    steps = [(step["peak_bytes_before"] / 1024, step["peak_bytes_now"] / 1024) for step in accepted]
    assert steps == [(512, 513), (513, 514), (514, 515)]

    project.run(QUICK, failed=1).stdout.re_match_lines(
        [
            r"work is slower than its anchor of 2026-08-01 by \+12\.0%, in 3 accepted steps,",
            r"  none of which passed the limit",
            r"\s+before\s+now\s+change\s+95 % interval\s+limit",
            r"latency, to anchor\s+100 ms\s+112 ms\s+\+12\.0%\s.*",
            r"peak +515 KiB +515 KiB +same .*",
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
