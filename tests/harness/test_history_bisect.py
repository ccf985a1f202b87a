"""Bisection of a range of commits: which quantities it refuses, and how few commits it tries."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.history.bisect import run
from perflab.history.bisect.run import State, ask, expected_step, standing
from perflab.history.bisect.trials import Bench, UntestableError
from perflab.history.command import read_history
from perflab.history.contents import Member
from perflab.history.series import History
from perflab.results.records import Change, Judgement, Verdict
from tests.harness.command import Command
from tests.harness.histories import beside_fixed_work, case_name, everywhere, git, latency, noisy, step, write_runs


def test_a_phase_is_no_quantity_to_bisect_by_single_readings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, snapshot: SnapshotAssertion
) -> None:
    git(tmp_path, "init", "--quiet")
    times = noisy(step(20, after=1.3e6), 1)
    write_runs(tmp_path / "nights", 40, {case_name(1): lambda run: {"forward": times[run]}})
    monkeypatch.chdir(tmp_path)
    assert command("history", "nights", "--bisect=step[1]", "--quantity=forward", status=2) == snapshot


class Compared:
    """A bench on which every comparison finds this."""

    root = Path()

    def __init__(self, verdict: Verdict, change: Change) -> None:
        worse = [run.LATENCY] if verdict is Verdict.REGRESSED else []
        self.found = Judgement(verdict=verdict, worse=worse, latency=change), change

    def compare(self, _head: str, _base: str, _threshold: float) -> tuple[Judgement, Change]:
        return self.found


def change(ratio: float, low: float, high: float) -> Change:
    return Change(before=1.0, now=ratio, ratio=ratio, low=low, high=high, limit=1.02)


BEGUN = State(schema=1, case="t.py::test_a", quantity="latency", good="a" * 40, bad="b" * 40, options="")


def test_a_commit_that_may_have_the_step_is_not_called_good() -> None:
    of_ten_percent = changed(BEGUN, ratio=1.10)

    def tried(verdict: Verdict, ratio: float, low: float, high: float) -> str:
        bench: Any = Compared(verdict, change(ratio, low, high))
        return run._by_turns(bench, of_ten_percent, "c" * 40).side

    for found in ((1.08, 1.02, 1.095), (1.02, 0.93, 1.12)):
        with pytest.raises(run._UnclearError, match="within the noise"):
            tried(Verdict.INCONCLUSIVE, *found)
    assert tried(Verdict.INCONCLUSIVE, 1.02, 0.98, 1.06) == "good", "ten percent are ruled out"
    assert tried(Verdict.OK, 1.0, 0.99, 1.01) == "good"
    assert tried(Verdict.REGRESSED, 1.10, 1.08, 1.12) == "bad"


def test_neither_noise_nor_a_step_the_other_way_is_taken_for_the_events() -> None:
    def ends(verdict: Verdict, found: Change, expected: float | None) -> float | None:
        bench: Any = Compared(verdict, found)
        return run._with_ends(bench, BEGUN, expected).ratio

    for expected in (None, 0.97):
        with pytest.raises(run._UnclearError, match="the change is within the noise"):
            ends(Verdict.OK, change(0.97, 0.90, 1.05), expected)
    faster, slower = change(0.90, 0.89, 0.91), change(1.10, 1.08, 1.12)
    with pytest.raises(run._UnclearError, match=r"the event is a change of \+10\.0%, but between .* finds -10\.0%"):
        ends(Verdict.OK, faster, 1.10)
    with pytest.raises(run._UnclearError, match=r"the event is a change of -10\.0%, but"):
        ends(Verdict.REGRESSED, slower, 0.90)
    assert ends(Verdict.OK, faster, None) == ends(Verdict.OK, faster, 0.92) == 0.90
    assert ends(Verdict.REGRESSED, slower, None) == ends(Verdict.REGRESSED, slower, 1.08) == 1.10


def test_the_step_that_is_searched_is_the_codes_part_of_it_or_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "--quiet")
    monkeypatch.chdir(tmp_path)
    asked: list[float | None] = []
    monkeypatch.setattr("perflab.history.bisect.run.bisect", lambda *searched: asked.append(searched[-1]))
    for machine in (1.0, 1.1):
        case = beside_fixed_work(1, 39 * machine, **everywhere(machine))
        write_runs(tmp_path / f"{machine}", 23, {case_name(1): case})
        assert read(tmp_path / f"{machine}") is None
    write_runs(tmp_path / "few", 42, {case_name(1): latency(step(40, after=1.3e6), 4)})
    assert read(tmp_path / "few") is None
    assert asked == [pytest.approx(39.0, rel=0.05), pytest.approx(39.0, rel=0.05), None]


def read(nights: Path) -> object:
    def source() -> History:
        history = read_history(str(nights), None, git=False, quantity=None)
        history.finish()
        return history

    return ask(case_name(1), source, (None, None), None, build=[], options=[], told=lambda _: None)


@given(st.integers(1, 60), st.data())
def test_a_bisection_ends_with_the_culprit_among_as_few_commits_as_can_be_told_apart(many: int, data: Any) -> None:
    commits = [f"c{at}" for at in range(many)]
    culprit = data.draw(st.integers(0, many - 1))
    skipped = data.draw(st.sets(st.integers(0, many - 2), max_size=many - 1)) if many > 1 else set()
    tried: dict[str, Any] = {}
    while (commit := standing(commits, tried)[1]) is not None:
        at = commits.index(commit)
        assert commit not in tried
        tried[commit] = "skipped" if at in skipped else "bad" if at >= culprit else "good"
    found, _ = standing(commits, tried)
    assert commits[culprit] in found
    assert all(commits.index(one) in skipped for one in found[:-1]), "only what could not be tried is left beside it"
    assert len(tried) <= math.ceil(math.log2(many)) + len(skipped) + 1


def test_a_build_that_hangs_makes_its_commit_untestable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def checked_out(*_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(root=tmp_path)

    monkeypatch.setattr("perflab.history.bisect.trials.other_side", checked_out)
    monkeypatch.setattr("perflab.history.bisect.trials._PATIENCE_S", 0.3)
    bench = Bench(tmp_path, "t.py::test_a", "", [], ["sleep", "60"], lambda _: None)
    with pytest.raises(UntestableError, match=r"^building it took more than 0\.3 s$"):
        bench.value("a", "operators")


@pytest.mark.parametrize(
    ("machines", "expected"),
    [
        ({}, 1.3),
        ({"machine": 1.2, "rest": 1.08, "rest_low": 1.05, "rest_high": 1.11}, 1.08),
        ({"machine": 1.3, "rest": 0.999, "rest_low": 0.97, "rest_high": 1.03}, None),
        ({"machine": 1.3}, None),
    ],
    ids=["the code's", "in part the machine's", "the machine's", "too few runs"],
)
def test_a_step_that_may_be_the_machine_s_alone_has_no_direction_to_look_for(
    machines: dict[str, float], expected: float | None
) -> None:
    member = Member(series=0, before=4, after=5, at=5, old=10.0, new=13.0, ratio=1.3, difference=3.0, low=1.2, high=1.4)
    assert expected_step(changed(member, **machines)) == expected
