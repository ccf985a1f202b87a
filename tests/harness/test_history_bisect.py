"""Bisection of a range of commits: which quantities it refuses, and how few commits it tries."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.cli import main
from perflab.history.bisect.search import standing
from tests.harness.histories import (
    case_name,
    git,
    noisy,
    step,
    write_runs,
)


def test_a_phase_is_no_quantity_to_bisect_by_single_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "--quiet")
    times = noisy(step(20, after=1.3e6), 1)
    write_runs(tmp_path / "nights", 40, {case_name(1): lambda run: {"forward": times[run]}})
    monkeypatch.chdir(tmp_path)
    assert main(["history", "nights", "--bisect=step[1]", "--quantity=forward"]) == 2
    assert (
        "--quantity=forward: two readings of it differ without a change of the code\n"
        "  -> bisect latency, which is compared in turns" in capsys.readouterr().err
    )


@given(st.integers(1, 60), st.data())
def test_a_bisection_ends_with_the_culprit_among_as_few_commits_as_can_be_told_apart(many: int, data: Any) -> None:
    commits = [f"c{at}" for at in range(many)]
    culprit = data.draw(st.integers(0, many - 1))
    skipped = data.draw(st.sets(st.integers(0, many - 2), max_size=many - 1)) if many > 1 else set()
    tried: dict[str, Any] = {}
    while (where := standing(commits, tried)).next is not None:
        at = commits.index(where.next)
        assert where.next not in tried
        tried[where.next] = "skipped" if at in skipped else "bad" if at >= culprit else "good"
    found = where.suspects
    assert commits[culprit] in found
    assert all(commits.index(one) in skipped for one in found[:-1]), "only what could not be tried is left beside it"
    assert len(tried) <= math.ceil(math.log2(many)) + len(skipped) + 1
