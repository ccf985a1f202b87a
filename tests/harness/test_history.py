"""``perflab history``: which changes are events, what shares one, and what an alarm is."""

from __future__ import annotations

import re
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.cli import main
from perflab.history import change_points
from perflab.history.change_points import Change as Shift
from perflab.history.command import chosen, newest_alarm
from perflab.history.contents import Contents
from perflab.history.judging import (
    FALSE_DISCOVERIES,
    FEWEST,
    Event,
    Found,
    gather,
    judge,
    largest_false_discovery,
    without_the_machine,
)
from perflab.history.series import Series
from perflab.history.text import break_text
from tests.harness.command import Command
from tests.harness.histories import (
    Values,
    beside_fixed_work,
    case_name,
    commits_in,
    contents_in,
    everywhere,
    latency,
    noisy,
    page_of,
    step,
    told,
    write_runs,
)


def test_a_step_that_several_cases_share_is_one_event_with_size_place_and_cases(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    cases = {case_name(number): latency(step(25), number) for number in range(4)}
    cases |= {case_name(number): latency(step(99), number) for number in range(4, 8)}
    write_runs(tmp_path, 50, cases)
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert (event.kind, event.worse, event.cases) == ("alarm", True, 4)
    assert event.ratio == pytest.approx(1.1, abs=0.01)
    assert event.last_old < 25 <= event.first_new
    assert event.first_new - event.last_old <= 3
    assert (event.good, event.bad) == (contents.runs[event.last_old].commit, contents.runs[event.first_new].commit)
    for member in event.members:
        assert member.low is not None
        assert member.high is not None
        assert member.low < 1.1 < member.high
    assert told(contents) == snapshot


def test_commits_between_are_listed_where_the_repository_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    commits = commits_in(tmp_path, 7)
    nights = [commits[1]] * 6 + [commits[4]] * 6
    write_runs(
        tmp_path / "nights", 12, {case_name(1): lambda run: {"operators": 5 + (run >= 6)}}, commits=nights.__getitem__
    )
    monkeypatch.chdir(tmp_path)
    shown = command("history", "nights")
    assert f", {commits[1][:7]}..{commits[4][:7]} (3 commits)" in shown
    assert re.findall(r"[0-9a-f]{7} \d{4}-\d\d-\d\d change (\d)", shown) == ["4", "3", "2"]


def test_the_commits_between_any_two_runs_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, snapshot: SnapshotAssertion
) -> None:
    commits = commits_in(tmp_path, 30)
    write_runs(tmp_path / "nights", 30, {case_name(1): lambda run: {"peak": 5}}, commits=commits.__getitem__)
    monkeypatch.chdir(tmp_path)
    for named in ((commits[2][:9], "2026-01-28"), ("run-027.json", commits[2]), ("2026-01-03T03", "HEAD~2")):
        head, *lines = command("history", "nights", "--between", *named).splitlines()
        ends = [f"{commits[at][:7]} (2026-01-{at + 1:02})" for at in (2, 27)]
        assert head == f"between {ends[0]} and {ends[1]}: 25 commits"
        assert [line.split()[-1] for line in lines] == [str(number) for number in range(27, 2, -1)]
    found = msgspec.json.decode(
        command("history", "nights", "--between", commits[2], commits[27], "--format=json"), type=Contents
    ).between
    assert found is not None
    assert (found.older, found.newer, len(found.commits)) == (2, 27, 25)
    for named in (["nothing", commits[27]], ["run-001.json", commits[27], "--format=html"]):
        said = command("history", "nights", "--between", *named, status=2)
        assert said.replace(commits[29][:7], "COMMIT") == snapshot


def test_a_level_that_came_back_is_said_to_have(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    write_runs(tmp_path, 30, {case_name(1): lambda run: {"operators": 6 if 10 <= run < 20 else 5}})
    contents = contents_in(tmp_path)
    up, down = contents.events
    assert (up.worse, up.undone_by, down.worse, down.undoes) == (True, [2], False, [1])
    assert told(contents) == snapshot
    assert newest_alarm(contents, 30) is None, "what came back is no reason to fail"


def test_one_case_of_ten_that_came_back_silences_no_alarm(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    def operators(number: int) -> Any:
        return lambda run: {"operators": 6 if run >= 10 and not (number == 0 and run >= 20) else 1}

    write_runs(tmp_path, 30, {case_name(number): operators(number) for number in range(10)})
    contents = contents_in(tmp_path)
    up, down = contents.events
    assert (up.undone_by, down.undoes) == ([2], [1])
    assert told(contents) == snapshot
    assert main(["history", str(tmp_path), "--fail", "--recent=25"]) == 1
    assert main(["history", str(tmp_path), "--fail", "--recent=25", "--case=step[0]"]) == 0, "that one came back"


def test_what_came_back_bit_by_bit_is_over_when_all_of_it_did(tmp_path: Path) -> None:
    def operators(number: int) -> Any:
        return lambda run: {"operators": 6 if 10 <= run < 15 + 5 * number else 1}

    write_runs(tmp_path, 30, {case_name(number): operators(number) for number in range(3)})
    contents = contents_in(tmp_path)
    assert contents.events[0].undone_by == [2, 3, 4]
    assert newest_alarm(contents, 30) is None
    bits = [changed(one, kind="possible") if one.number == 3 else one for one in contents.events]
    assert newest_alarm(changed(contents, events=bits), 30) is not None, "what is only possible brings nothing back"


def test_an_exact_change_at_the_place_of_a_slowdown_is_part_of_its_event(tmp_path: Path) -> None:
    times = noisy(step(20, after=1.3e6), 1)
    write_runs(tmp_path, 40, {case_name(1): lambda run: {"latency": times[run], "operators": 5 + (run >= 20)}})
    (event,) = contents_in(tmp_path).events
    assert len(event.members) == 2
    assert (event.last_old, event.first_new) == (19, 20), "as narrow as the count says"
    assert event.ratio == pytest.approx(1.3, rel=0.05), "the size is the time's"


def test_a_slowdown_names_only_cases_that_got_slower_and_what_else_changed(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    slow, flat = noisy(step(20, after=1.3e6), 1), noisy(step(99), 2)
    cases: dict[str, Values] = {
        "tests/test_a.py::test_gemm": lambda run: {"latency": slow[run]},
        "tests/test_a.py::test_other": lambda run: {"latency": flat[run], "peak": 4096 + (run >= 20)},
    }
    write_runs(tmp_path, 40, cases)
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert event.cases == 1
    assert told(contents) == snapshot


def test_a_step_between_runs_of_one_commit_is_not_the_codes(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    write_runs(tmp_path, 40, {case_name(1): latency(step(20, after=1.3e6), 1)}, commits=lambda run: "a" * 40)
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert event.kind == "machine"
    assert told(contents) == snapshot


def test_events_of_two_machines_stand_apart_and_their_numbers_never_share_a_series(tmp_path: Path) -> None:
    cases = {case_name(1): latency(step(20, after=1.3e6), 1)}
    for machine in ("one", "two"):
        write_runs(tmp_path / machine, 40, cases)
        for path in (tmp_path / machine).iterdir():
            path.write_text(path.read_text().replace('"nightly"', f'"{machine}"'))
    contents = contents_in(tmp_path)
    assert len(contents.series) == 2
    assert [event.environments for event in contents.events] == [[0], [1]]


def test_another_pytorch_begins_new_series_and_the_history_says_so(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    times = noisy(lambda run: 1.30e6 if run < 40 else 1.20e6, 1, noise=0.001)
    cases = {case_name(1): lambda run: {"latency": times[run], "peak": 4096}, case_name(2): latency(step(99), 2)}
    write_runs(tmp_path / "nights", 60, cases)
    for path in sorted((tmp_path / "nights").iterdir())[40:]:
        path.write_text(path.read_text().replace('"2.13.0"', '"2.14.0"'))
    contents = contents_in(tmp_path / "nights")
    assert contents.events == [], "numbers of two environments are not compared"
    (one,) = contents.breaks
    assert (one.run, one.before, one.now, len(one.members)) == (40, "torch 2.13.0", "torch 2.14.0", 3)
    assert told(contents) == snapshot
    assert break_text(one, contents) in page_of(tmp_path).read_text(encoding="utf-8").replace("&gt;", ">")
    alone = chosen(contents, "step[2]", None)
    assert [(alone.series[pair.before].name, pair.old) for pair in alone.breaks[0].members] == [
        ("step[2]", alone.series[0].levels[-1].value)
    ]
    (tmp_path / "mixed").mkdir()
    for at, path in enumerate(sorted((tmp_path / "nights").iterdir())):  # two machines by turns are none
        text = path.read_text().replace('"2.14.0"', '"2.13.0"')
        (tmp_path / "mixed" / path.name).write_text(text.replace('"nightly"', '"other"') if at % 2 else text)
    assert contents_in(tmp_path / "mixed").breaks == []


def test_a_series_too_short_to_judge_is_not_called_the_same(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    assert change_points.SHORTEST == FEWEST
    times = [1.00e6, 1.01e6, 1.00e6, 2.00e6, 2.01e6, 2.00e6, 2.01e6, 2.02e6]
    cases = {case_name(1): lambda run: {"latency": times[run], "peak": 5}}
    write_runs(tmp_path / "few", 6, cases)
    contents = contents_in(tmp_path / "few")
    assert told(contents) == snapshot
    assert [(row.quantity, row.judged) for row in contents.series] == [("latency", False), ("peak", True)]
    head, _, table = command("history", tmp_path / "few", "--format=html").partition("<table")
    assert "was not judged" in head
    assert "not judged" in table
    write_runs(tmp_path / "enough", 8, cases)
    assert [row.judged for row in contents_in(tmp_path / "enough").series] == [True, True]


def test_series_too_short_to_judge_are_no_hypotheses_among_the_others() -> None:
    def series(values: list[float]) -> Series:
        one = Series("t.py::test_a", "", "latency", 0, "ns", is_exact=False)
        one.values.extend(values)
        one.runs.extend(range(len(values)))
        return one

    alone = series(noisy(step(57, after=1.04e6), 4, noise=0.012)[:60])
    (found,) = judge([alone])
    assert found.is_alarm
    assert found.change.p > FALSE_DISCOVERIES / 300, "three hundred hypotheses more would make it none"
    assert judge([alone, *[series(noisy(lambda run: 1e6, seed)[:5]) for seed in range(300)]]) == [found]


def test_a_reading_of_nothing_is_no_time_and_silences_no_series(tmp_path: Path) -> None:
    times = noisy(step(20, after=1.3e6), 1)
    write_runs(tmp_path, 40, {case_name(1): lambda run: {"latency": times[run] * (run != 5), "peak": 0}})
    contents = contents_in(tmp_path)
    assert [(row.quantity, row.points) for row in contents.series] == [("latency", 39), ("peak", 40)]
    assert len(contents.events) == 1


def shifts(*spans: tuple[int, int]) -> list[Event]:
    """Events of series that all have 100 points; the first of each new level lies from one run to another."""
    series = [Series(f"t.py::test_{at}", "", "latency", 0, "ns", is_exact=False) for at, _ in enumerate(spans)]
    for one in series:
        one.runs.extend(range(100))
        one.values.extend([1.0] * 100)
    found = [
        Found(at, Shift(first - 1, last, last, 1.1, 1.05, 1.15, 1e-6), is_alarm=True)
        for at, (first, last) in enumerate(spans)
    ]
    return gather(series, ["here"], found)


def test_an_interval_that_missed_its_place_does_not_make_an_event_beside_a_much_larger_one() -> None:
    (event,) = shifts(*[(19, 21)] * 20, (23, 24))
    assert (len(event.members), event.first, event.last) == (21, 19, 21), "the few do not widen what the many say"
    assert [len(event.members) for event in shifts(*[(19, 21)] * 20, (40, 41))] == [20, 1], "far away is another event"
    assert [len(event.members) for event in shifts(*[(19, 21)] * 4, *[(23, 24)] * 4)] == [4, 4], "as is one of its size"


def test_an_events_range_is_what_all_of_its_changes_have_in_common() -> None:
    (event,) = shifts((10, 20), (15, 30), (18, 19))
    assert (event.first, event.last) == (18, 19)
    first, second = shifts((10, 20), (18, 30), (25, 40), (19, 21))
    assert [(len(one.members), one.first, one.last) for one in (first, second)] == [(3, 19, 20), (1, 25, 40)]


def test_what_passes_one_percent_alone_is_possible_and_no_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    def invented(series: Any) -> list[list[change_points.Change]]:
        """Of a hundred series two have a chance that one in a hundred would have, and one is certain."""
        seen = {0: (5, 0.008, 1.05), 1: (10, 1e-9, 1.05), 2: (10, 0.008, 1.3)}
        return [
            [change_points.Change(run - 1, run, run, ratio, 1.02, 1.38, p, None) for run, p, ratio in [seen[at]]]
            if at in seen
            else []
            for at in range(len(series))
        ]

    monkeypatch.setattr(change_points, "find_changes", invented)
    write_runs(tmp_path, 20, {case_name(number): latency(lambda run: 1e6, number) for number in range(100)})
    contents = contents_in(tmp_path)
    assert {event.kind: [contents.series[one.series].name for one in event.members] for event in contents.events} == {
        "alarm": ["step[2]", "step[1]"],
        "possible": ["step[0]"],
    }, "what is possible by itself belongs to an alarm at its place"
    (alarm,) = [event for event in contents.events if event.kind == "alarm"]
    assert (alarm.smallest, alarm.ratio, alarm.largest) == (1.05, 1.05, 1.30), "the size is that of what is certain"
    alone = chosen(contents, "step[0]", None)
    assert told(alone) == snapshot
    assert [event.kind for event in alone.events] == ["possible"], "a choice of cases changes no judgement"


@given(st.lists(st.floats(0, 1), max_size=30), st.integers(0, 50), st.floats(0.001, 0.2))
def test_the_limit_of_false_discoveries_is_benjamini_and_hochbergs(
    chances: list[float], more: int, rate: float
) -> None:
    many = len(chances) + more
    limit = largest_false_discovery(chances, many, rate) if many else 0.0
    passing = [p for p in chances if 0 < p <= limit]
    if passing:
        assert max(passing) <= rate * len([p for p in chances if p <= limit]) / many
    for p in chances:
        rank = sum(other <= p for other in chances)
        assert p <= limit or p > rate * rank / many


# --- a machine that changed beside its cases: what it explains of a slowdown, and what it does not ------------------


def test_a_step_of_the_calibration_workload_at_the_same_place_is_the_machines(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    for name, machine in (("machine", 1.2), ("code", 1.0)):
        cases = {case_name(number): beside_fixed_work(number, 1.2, **everywhere(machine)) for number in range(3)}
        write_runs(tmp_path / name, 40, cases)
    contents = contents_in(tmp_path / "machine")
    (event,) = contents.events
    assert event.kind == "machine"
    assert event.machine_ratio == pytest.approx(1.2, rel=0.02)
    assert told(contents) == snapshot
    (event,) = contents_in(tmp_path / "code").events
    assert (event.kind, event.machine_ratio) == ("alarm", None)


@pytest.mark.parametrize(("case", "machine"), [(1.1, 1.05), (1.05 * 1.05, 1.05), (1.3, 1.05), (0.9, 0.95)])
def test_what_the_machine_leaves_of_a_change_is_an_alarm_and_both_are_told(
    tmp_path: Path, snapshot: SnapshotAssertion, case: float, machine: float
) -> None:
    """Half of a slowdown is the machine's: the other half is the code's, which nobody is to overlook."""
    write_runs(tmp_path, 40, {case_name(1): beside_fixed_work(1, case, **everywhere(machine))})
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert event.kind == "alarm"
    assert event.machine_ratio == pytest.approx(machine, abs=0.01)
    assert event.rest_ratio == pytest.approx(case / machine, rel=0.03)
    assert event.members[0].rest_low < case / machine < event.members[0].rest_high
    assert told(contents) == snapshot
    assert main(["history", str(tmp_path), "--fail", "--recent=25"]) == int(case > 1)


def test_a_slower_machine_is_no_alarm_of_the_code_whenever_it_is_seen(tmp_path: Path) -> None:
    for runs in (22, 23, 26):  # two runs on the slower machine, three, and so on
        for seed in range(3):
            folder = tmp_path / f"{runs}-{seed}"
            write_runs(folder, runs, {case_name(1): beside_fixed_work(seed, 1.1, **everywhere(1.1))})
            assert main(["history", str(folder), "--fail"]) == 0
            assert [one.kind for one in contents_in(folder).events] in ([], ["machine"])
            write_runs(folder, runs, {case_name(1): beside_fixed_work(seed, 1.32, **everywhere(1.1))})
            if runs > 22:
                (event,) = contents_in(folder).events
                assert event.rest_ratio == pytest.approx(1.2, rel=0.03)


def test_one_workload_of_three_does_not_speak_for_the_machine(tmp_path: Path) -> None:
    write_runs(tmp_path, 40, {case_name(1): beside_fixed_work(1, 1.1, memory=1.1)})
    (event,) = contents_in(tmp_path).events
    assert (event.kind, event.machine_ratio) == ("alarm", None)


def test_of_many_cases_on_a_slower_machine_the_one_that_got_slower_itself_is_the_alarm(tmp_path: Path) -> None:
    cases = {case_name(at): beside_fixed_work(at, 1.05, **everywhere(1.05)) for at in range(12)}
    cases[case_name(12)] = beside_fixed_work(12, 1.2, **everywhere(1.05))
    write_runs(tmp_path, 40, cases)
    contents = contents_in(tmp_path)
    kinds = {event.kind: [contents.series[one.series].name for one in event.members] for event in contents.events}
    assert kinds["alarm"] == ["step[12]"]
    assert len(kinds["machine"]) >= 10, "noise may hide a step of 5 % from one or the other"


def test_only_an_alarm_of_the_machines_own_series_explains_a_change() -> None:
    def named(quantity: str) -> Series:
        return Series("", "", quantity, 0, "ns", False, array("i", range(40)), array("d", [1.0] * 40))

    shift = Shift(19, 20, 20, 1.1, 1.09, 1.11, 1e-9)
    change = Found(0, shift, is_alarm=True)
    for is_alarm in (True, False):
        moved = [Found(0, shift, is_alarm)]
        (left,) = without_the_machine([change], [named("latency")], [named("memory")], moved)
        assert left.is_machines is is_alarm


def test_what_needs_more_memory_on_a_slower_machine_is_an_alarm_beside_the_machines(tmp_path: Path) -> None:
    times = beside_fixed_work(1, 1.2, **everywhere(1.2))
    write_runs(tmp_path, 40, {case_name(1): lambda run: {**times(run), "peak": 4096 + 512 * (run >= 20)}})
    contents = contents_in(tmp_path)
    assert {
        event.kind: [contents.series[one.series].quantity for one in event.members] for event in contents.events
    } == {"machine": ["latency"], "alarm": ["peak"]}


# --- many cases beside noise: one cause is one alarm, and nothing else is ---------------------------------

RUNS, CASES = 60, 200
MIDDLE = RUNS // 2
NOISE = 0.02


def name_of_many(number: int) -> str:
    return f"tests/perf/test_module_{number // 100}.py::test_case[{number % 100}-fp32]"


def one_of_many(number: int) -> Values:
    """Every fiftieth becomes 8 % slower in the middle run, which has one operator more."""
    slowed, before = number % 50 == 0, 1e6 * (1 + number % 50)
    times = noisy(step(MIDDLE, before, before * (1.08 if slowed else 1.0)), number, NOISE)
    fixed = noisy(lambda run: 20_000, CASES + number, NOISE)
    return lambda run: {
        "latency": times[run],
        "fastest": 0.97 * times[run],
        "peak": 1024 * (1000 + number),
        "operators": 100 + (slowed and run >= MIDDLE),
        "calibration interpreter": fixed[run],
    }


def test_what_slowed_four_cases_of_two_hundred_is_one_alarm_at_its_commit(tmp_path: Path) -> None:
    write_runs(tmp_path, RUNS, {name_of_many(number): one_of_many(number) for number in range(CASES)})
    (tmp_path / "run-007.json").write_bytes((tmp_path / "run-007.json").read_bytes()[:5_000])
    contents = contents_in(tmp_path)
    assert len(contents.runs) == RUNS - 1, "a damaged file costs its own run alone"
    (event,) = [event for event in contents.events if event.kind == "alarm"]
    assert (event.good, event.bad) == (f"{MIDDLE:040x}", f"{MIDDLE + 1:040x}")
    named = {contents.series[one.series].case for one in event.members if contents.series[one.series].exact}
    assert named == {name_of_many(number) for number in range(0, CASES, 50)}
    assert event.smallest is not None
    assert event.largest is not None
    assert 1.0 < event.smallest < 1.08 < event.largest < 1.2
