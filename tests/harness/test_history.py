"""``perflab history``: what is read, which changes are events, and what is said of them in each format."""

from __future__ import annotations

import bisect
import csv
import io
import json
import math
import re
from array import array
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.cli import main
from perflab.data import to_json
from perflab.documents import write_document
from perflab.errors import UsageError
from perflab.git import ask_git
from perflab.history.baseline_log import read_log
from perflab.history.bisect.search import standing
from perflab.history.change_points import Change as Shift
from perflab.history.chart import thinned
from perflab.history.contents import Contents, chosen, newest_alarm
from perflab.history.events import Event, gather
from perflab.history.folder import read_branch, read_folder
from perflab.history.judging import Found, largest_false_discovery
from perflab.history.machine import without_the_machine
from perflab.history.series import Series
from perflab.history.text import as_text, since_start, sparkline
from perflab.history.wording import pair_text, value_text
from perflab.measured.store.baselines import Baselines
from perflab.records import Change, Judgement, Policy, Verdict
from perflab.results import Document
from perflab.units import format_change
from tests.harness.browser import chromium, needs_browser, opened
from tests.harness.histories import (
    case_name,
    contents_in,
    git,
    latency,
    noisy,
    step,
    write_runs,
)
from tests.harness.make import (
    MS,
    document,
    entry,
    environment,
    predicted_result,
    record,
    replicate,
    result,
    successor,
)

# --- what is read -------------------------------------------------------------------------------------------------


def night(number: int, ms: float = 100.0, **changes: Any) -> Document:
    measured = record(replicate(ms * MS, peak_bytes=1024, counts={"operators": 5}, yardsticks_ns={"memory": 9.0}))
    created = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=number)
    return document(result(outcome=measured), created=created, commit=f"{number:040x}", **changes)


def test_results_files_are_read_wherever_they_lie_in_the_order_of_their_runs(tmp_path: Path) -> None:
    for number, place in ((3, "a.json"), (1, "deep/er/b.json"), (2, "c.json")):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        write_document(night(number, ms=100.0 + number), tmp_path / place)
    contents = contents_in(tmp_path)
    assert [run.commit for run in contents.runs] == [f"{number:040x}" for number in (1, 2, 3)]
    by_name = {row.quantity: row for row in contents.series}
    assert by_name["latency"].values == [101.0 * MS, 102.0 * MS, 103.0 * MS]
    assert by_name["peak"].values == [1024.0] * 3
    assert by_name["operators"].values == [5.0] * 3
    assert set(by_name) == {"latency", "peak", "operators"}, (
        "the machine's readings are no case's, by-products are asked"
    )
    assert {row.quantity for row in contents_in(tmp_path, "fastest").series} == {*by_name, "fastest"}


def test_a_report_as_json_and_the_results_it_was_made_of_are_the_same_history(tmp_path: Path) -> None:
    judged = Judgement(verdict=Verdict.OK, latency=Change(before=90.0 * MS, now=95.0 * MS, ratio=95 / 90))
    measured = record(replicate(phases_ns={"forward": 30.0 * MS}, peak_bytes=2048, counts={"operators": 7}))
    cases = document(
        result("t.py::test_a", outcome=measured, judgement=judged),
        result(
            "t.py::test_b", outcome=record(fresh=[replicate(80.0 * MS), replicate(82.0 * MS), replicate(90.0 * MS)])
        ),
        predicted_result(),
    )
    write_document(cases, tmp_path / "plain/run.json")
    plain = contents_in(tmp_path / "plain", "fastest")
    report = tmp_path / "report/run.json"
    report.parent.mkdir()
    assert main(["report", str(tmp_path / "plain/run.json"), "--format=json", f"--output={report}"]) == 0
    reported = contents_in(report.parent, "fastest")

    def known(contents: Contents) -> dict[tuple[str, ...], tuple[float, str, bool]]:
        return {
            (row.case, row.variant, row.quantity, contents.environments[row.environment]): (
                row.values[0],
                row.unit,
                row.exact,
            )
            for row in contents.series
        }

    both = known(plain)
    assert len(both) > 8
    assert {
        key: value for key, value in known(reported).items() if key[2] not in ("bound", "roofline", "estimate")
    } == both


def test_a_journal_is_a_run_too_and_its_half_written_line_is_no_damage(tmp_path: Path) -> None:
    line = to_json(result(outcome=record(replicate(7.0 * MS)))) + b"\n"
    for day in (1, 2):
        (tmp_path / f"2026-01-0{day}T03-00-00-000000-{day}.jsonl").write_bytes(line + line[:50] * (day == 2))
    contents = contents_in(tmp_path)
    assert [run.created[:10] for run in contents.runs] == ["2026-01-01", "2026-01-02"]
    assert [row.values for row in contents.series if row.quantity == "latency"] == [[7.0 * MS] * 2]


def test_of_each_case_in_a_journal_the_last_line_counts(tmp_path: Path) -> None:
    lines = [to_json(result(outcome=record(replicate(ms * MS)))) for ms in (7.0, 8.0)]
    (tmp_path / "2026-01-01T03-00-00-000000-1.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    assert [row.values for row in contents_in(tmp_path).series if row.quantity == "latency"] == [[8.0 * MS]]


def test_a_run_counts_once_whatever_files_it_stands_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        first, other = (result(f"t.py::test_{name}", outcome=record(replicate(100.0 * MS))) for name in "ab")
        created = datetime(2026, 1, number, tzinfo=UTC)
        one = document(first, other, created=created)  # equal numbers of two nights are two runs
        write_document(one, tmp_path / f"{number}.json")
        (tmp_path / "copies").mkdir(exist_ok=True)
        if number == 2:
            write_document(one, tmp_path / "copies/the-same.json")
        report = tmp_path / f"copies/report-{number}.json"
        assert main(["report", str(tmp_path / f"{number}.json"), "--format=json", f"--output={report}"]) == 0
        begun = one.created - timedelta(minutes=5)
        (tmp_path / f"{begun:%Y-%m-%dT%H-%M-%S-%f}-1.jsonl").write_bytes(to_json(first) + b"\n")
    capsys.readouterr()
    contents = contents_in(tmp_path)
    assert [run.file.rpartition("/")[2] for run in contents.runs] == ["1.json", "2.json"], "the richest"
    assert contents.repeated == 5
    assert [row.values for row in contents.series if row.quantity == "latency"] == [[100.0 * MS] * 2] * 2
    assert "; 5 repeats of a run left out\n" in as_text(contents, 100)


def test_runs_of_one_moment_that_differ_are_two(tmp_path: Path) -> None:
    for name, ms in (("a", 100.0), ("b", 101.0)):
        write_document(night(1, ms=ms), tmp_path / f"{name}.json")
    assert (len(contents_in(tmp_path).runs), contents_in(tmp_path).repeated) == (2, 0)


def test_of_a_thousand_files_the_damaged_ones_are_named_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_runs(tmp_path, 1000, {case_name(1): lambda run: {"peak": 4096}})
    (tmp_path / "run-500.json").write_bytes((tmp_path / "run-500.json").read_bytes()[:-40])
    (tmp_path / "run-600.json").write_text('{"schema": 1, "benchmarks": []}')
    (tmp_path / "run-700.json").write_bytes(b"\x00\xff\x00")
    (tmp_path / "run-800.json").write_text('{"kind": "perflab report", "schema": 99, "runs": []}')
    assert main(["history", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert f"{tmp_path}: 996 runs, 2026-01-01 to " in shown
    left_out = [line for line in shown.splitlines() if line.startswith("left out: ")]
    assert [re.findall(r"run-(\d+)", line) for line in left_out] == [["500"], ["600"], ["700"], ["800"]]
    assert "newer perflab" in left_out[3]


def test_a_folder_without_results_says_what_to_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no folder\n  -> name a folder with what --perf-json"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UsageError, match=r"holds no results: .*broken\.json: it is damaged"):
        read_folder(tmp_path)


def test_a_branch_is_read_without_a_checkout(tmp_path: Path) -> None:
    write_runs(tmp_path / "nights", 5, {case_name(1): lambda run: {"peak": 4096 + run}})
    git(tmp_path, "init", "--quiet", "--initial-branch=perf-results")
    git(tmp_path, "add", "--all")
    git(tmp_path, "commit", "--quiet", "--message=nights")
    git(tmp_path, "switch", "--quiet", "--orphan", "main")
    git(tmp_path, "commit", "--quiet", "--allow-empty", "--message=code")
    assert not (tmp_path / "nights").exists()
    history = read_branch(tmp_path, "perf-results", "nights")
    history.finish()
    assert [list(one.values) for one in history.series] == [[4096.0, 4097.0, 4098.0, 4099.0, 4100.0]]
    assert history.runs[0].file == "perf-results:run-000.json"
    with pytest.raises(
        UsageError, match="--branch=perf-results has no folder nigths\n  -> name one of its folders: nights"
    ):
        read_branch(tmp_path, "perf-results", "nigths")


def test_what_was_accepted_comes_from_the_log_with_commit_and_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    policy, here = Policy(), environment(machine="0123abcd")
    stored, case = None, "tests/test_model.py::test_step"
    for number, (ms, peak_bytes, reason) in enumerate(
        ((100.0, 1024, None), (100.0, 1024, None), (80.0, 2048, "a cache, which pays"))
    ):
        three = [replicate(ms * MS, peak_bytes=peak_bytes, counts={"operators": 5}) for _ in range(3)]
        new = entry(three, environment=here, recorded=f"2026-01-0{number + 1}T03:00:00Z")
        if number != 1:  # the second commit changes code alone
            stored = successor(stored, new, policy, reason)
            assert stored.times is not None
            assert stored.exact is not None
            times, exact = stored.times, stored.exact
            Baselines(tmp_path / "baselines", None).save(
                {case: new}, {case: new}, lambda *_, exact=exact: exact, lambda *_, times=times: times
            )
        (tmp_path / "code.py").write_text(str(number))
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", f"--message=commit {number}")
    monkeypatch.chdir(tmp_path)
    assert main(["history", "--git", "--format=json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Contents)
    assert found.accepted
    assert [run.file for run in found.runs] == ["commit 0", "commit 2"]
    values = {row.quantity: row.values for row in found.series}
    assert values == {"latency": [100.0 * MS, 80.0 * MS], "peak": [1024.0, 2048.0], "operators": [5.0, 5.0]}
    assert {row.case for row in found.series} == {"tests/test_model.py::test_step"}
    reasons = {row.quantity: [found.words[word] for word in row.words] for row in found.series}
    assert reasons["peak"] == ["accepted", "accepted: a cache, which pays"]
    assert {event.kind for event in found.events} == {"accepted"}
    assert {(event.worse, event.good, event.commits_total) for event in found.events} == {
        (True, git(tmp_path, "rev-parse", "HEAD~2"), 2),
        (False, git(tmp_path, "rev-parse", "HEAD~2"), 2),
    }
    assert main(["history", "--git"]) == 0
    shown = capsys.readouterr().out
    assert "accepted, needs more: 1.00 KiB -> 2.00 KiB (+1.00 KiB), peak of step" in shown
    assert "accepted, faster: -20.0%, latency of step" in shown
    assert "reason: a cache, which pays" in shown
    assert "commit 1" in shown, "what lies between"
    head = git(tmp_path, "rev-parse", "--short=7", "HEAD")
    first = git(tmp_path, "rev-parse", "--short=7", "HEAD~2")
    assert f"accepted in {head} commit 2; the last one in {first}, 2 commits before" in " ".join(shown.split())


def test_every_version_of_this_projects_own_baselines_is_read() -> None:
    root = Path(__file__).parents[2]
    if ask_git(root, "rev-parse", "--is-shallow-repository") != "false":
        pytest.skip("this clone has no history: git fetch --unshallow")
    history = read_log(root / "baselines")
    assert history.left_out == []
    assert len(history.runs) >= 12
    known = {one.quantity for one in history.series}
    assert known >= {"latency", "peak", "operators", "saved", "flops", "registers", "waits"}, "of every tier"


# --- events -------------------------------------------------------------------------------------------------------


def test_a_step_that_several_cases_share_is_one_event_with_size_place_and_cases(tmp_path: Path) -> None:
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
    text = as_text(contents, 100)
    assert re.search(
        r"1  slower: \+\d+\.\d% \(\+\d+\.\d%…\+\d+\.\d% over the cases\), latency of step\[\d\] and 3 more cases", text
    )
    assert text.index("\nevents\n") < text.index("case ")


def test_commits_between_are_listed_where_the_repository_is_at_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "--quiet")
    commits = []
    for number in range(7):
        git(tmp_path, "commit", "--quiet", "--allow-empty", f"--message=change {number}")
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    nights = [commits[1]] * 6 + [commits[4]] * 6
    write_runs(
        tmp_path / "nights", 12, {case_name(1): lambda run: {"operators": 5 + (run >= 6)}}, commits=nights.__getitem__
    )
    monkeypatch.chdir(tmp_path)
    assert main(["history", "nights"]) == 0
    shown = capsys.readouterr().out
    assert f"2026-01-06 to 2026-01-07, {commits[1][:7]}..{commits[4][:7]} (3 commits)" in shown
    assert re.findall(r"[0-9a-f]{7} \d{4}-\d\d-\d\d change (\d)", shown) == ["4", "3", "2"]
    assert "needs more: 5 -> 6 (+1), operators of step[1]" in shown


def test_the_commits_between_any_two_runs_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tmp_path, "init", "--quiet")
    commits = []
    for number in range(30):
        git(tmp_path, "commit", "--quiet", "--allow-empty", f"--message=change {number}")
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
    write_runs(tmp_path / "nights", 30, {case_name(1): lambda run: {"peak": 5}}, commits=commits.__getitem__)
    monkeypatch.chdir(tmp_path)
    for named in ((commits[2][:9], "2026-01-28"), ("run-027.json", commits[2]), ("2026-01-03T03", "run-027.json")):
        assert main(["history", "nights", "--between", *named]) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        ends = [f"{commits[at][:7]} (2026-01-{at + 1:02}, run-{at:03}.json)" for at in (2, 27)]
        assert head == f"between {ends[0]} and {ends[1]}: 25 commits"
        assert [line.split()[-1] for line in lines] == [str(number) for number in range(27, 2, -1)]
    assert main(["history", "nights", "--between", commits[2], commits[27], "--format=json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Contents).between
    assert found is not None
    assert (found.older, found.newer, len(found.commits)) == (2, 27, 25)
    assert main(["history", "nights", "--between", "nothing", commits[27]]) == 2
    assert "--between=nothing: no run is called so\n  -> name its commit, date or file" in capsys.readouterr().err
    assert main(["history", "nights", "--between", "run-001.json", commits[27], "--format=html"]) == 2
    assert "--between with --format=html" in capsys.readouterr().err


def test_a_level_that_came_back_is_said_to_have(tmp_path: Path) -> None:
    write_runs(tmp_path, 30, {case_name(1): lambda run: {"operators": 6 if 10 <= run < 20 else 5}})
    contents = contents_in(tmp_path)
    up, down = contents.events
    assert (up.worse, up.undone_by, down.worse, down.undoes) == (True, [2], False, [1])
    text = as_text(contents, 100)
    assert "it did not stay: event 2 took it back" in text
    assert "the level before event 1 came back" in text
    assert newest_alarm(contents, 30) is None, "what came back is no reason to fail"


def test_an_exact_change_at_the_place_of_a_slowdown_is_part_of_its_event(tmp_path: Path) -> None:
    times = noisy(step(20, after=1.3e6), 1)
    write_runs(tmp_path, 40, {case_name(1): lambda run: {"latency": times[run], "operators": 5 + (run >= 20)}})
    (event,) = contents_in(tmp_path).events
    assert len(event.members) == 2
    assert (event.last_old, event.first_new) == (19, 20), "as narrow as the count says"
    assert event.ratio == pytest.approx(1.3, rel=0.05), "the size is the time's"


WORKLOADS = ("interpreter", "matmul", "memory")


def beside_fixed_work(seed: int, case: float, **machine: float) -> Any:
    """A case whose time steps by a ratio at run 20, and calibration workloads that step by theirs."""
    times = noisy(step(20, after=case * 1e6), seed)
    fixed = {
        name: noisy(step(20, 5e4, 5e4 * machine.get(name, 1.0)), seed + 100 * (1 + at))
        for at, name in enumerate(WORKLOADS)
    }
    return lambda run: {"latency": times[run]} | {f"calibration {name}": fixed[name][run] for name in WORKLOADS}


def everywhere(ratio: float) -> dict[str, float]:
    return dict.fromkeys(WORKLOADS, ratio)


def test_a_step_of_the_calibration_workload_at_the_same_place_is_the_machines(tmp_path: Path) -> None:
    for name, machine in (("machine", 1.2), ("code", 1.0)):
        cases = {case_name(number): beside_fixed_work(number, 1.2, **everywhere(machine)) for number in range(3)}
        write_runs(tmp_path / name, 40, cases)
    (event,) = contents_in(tmp_path / "machine").events
    assert event.kind == "machine"
    assert event.machine_ratio == pytest.approx(1.2, rel=0.02)
    text = as_text(contents_in(tmp_path / "machine"), 100)
    assert "the machine's: fixed work, timed beside the cases, changed by +" in text
    (event,) = contents_in(tmp_path / "code").events
    assert (event.kind, event.machine_ratio) == ("alarm", None)


@pytest.mark.parametrize(("case", "machine"), [(1.1, 1.05), (1.05 * 1.05, 1.05), (1.3, 1.05), (0.9, 0.95)])
def test_what_the_machine_leaves_of_a_change_is_an_alarm_and_both_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: float, machine: float
) -> None:
    """Half of a slowdown is the machine's: the other half is the code's, which nobody is to overlook."""
    cases = {case_name(1): beside_fixed_work(1, case, **everywhere(machine))}
    write_runs(tmp_path, 40, cases)
    (event,) = contents_in(tmp_path).events
    assert event.kind == "alarm"
    assert event.machine_ratio == pytest.approx(machine, abs=0.01)
    assert event.rest_ratio == pytest.approx(case / machine, rel=0.03)
    assert event.members[0].rest_low < case / machine < event.members[0].rest_high
    assert main(["history", str(tmp_path), "--fail", "--recent=25"]) == int(case > 1)
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"the machine changed too: fixed work, timed beside the cases, by [+-]\d\.\d%; "
        r"without that, [+-]\d+\.\d% \([+-]\d+\.\d%…[+-]\d+\.\d%\) is left",
        text,
    )


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
    } == {
        "machine": ["latency"],
        "alarm": ["peak"],
    }


def test_a_slowdown_names_only_cases_that_got_slower_and_what_else_changed(tmp_path: Path) -> None:
    slow, flat = noisy(step(20, after=1.3e6), 1), noisy(step(99), 2)
    gemm, other = (f"tests/test_a.py::test_{name}" for name in ("gemm", "other"))
    write_runs(
        tmp_path,
        40,
        {
            gemm: lambda run: {"latency": slow[run]},
            other: lambda run: {"latency": flat[run], "peak": 4096 + (run >= 20)},
        },
    )
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert event.cases == 1
    assert re.search(r"slower: \+\S+ \(\S+\), latency of gemm; peak of other \+1 B\n", as_text(contents, 120))


def test_a_step_between_runs_of_one_commit_is_not_the_codes(tmp_path: Path) -> None:
    write_runs(tmp_path, 40, {case_name(1): latency(step(20, after=1.3e6), 1)}, commits=lambda run: "a" * 40)
    (event,) = contents_in(tmp_path).events
    assert event.kind == "machine"
    assert "not the code's: both sides are the same commit" in as_text(contents_in(tmp_path), 100)


def test_events_of_two_machines_stand_apart_and_their_numbers_never_share_a_series(tmp_path: Path) -> None:
    cases = {case_name(1): latency(step(20, after=1.3e6), 1)}
    for machine in ("one", "two"):
        write_runs(tmp_path / machine, 40, cases)
        for path in (tmp_path / machine).iterdir():
            path.write_text(path.read_text().replace('"nightly"', f'"{machine}"'))
    contents = contents_in(tmp_path)
    assert len(contents.series) == 2
    assert [event.environments for event in contents.events] == [[0], [1]]


def test_another_pytorch_begins_new_series_and_the_history_says_so(tmp_path: Path) -> None:
    times = noisy(lambda run: 1.30e6 if run < 40 else 1.20e6, 1, noise=0.001)
    cases = {case_name(1): lambda run: {"latency": times[run], "peak": 4096}, case_name(2): latency(step(99), 2)}
    write_runs(tmp_path / "nights", 60, cases)
    for path in sorted((tmp_path / "nights").iterdir())[40:]:
        path.write_text(path.read_text().replace('"2.13.0"', '"2.14.0"'))
    contents = contents_in(tmp_path / "nights")
    assert contents.events == [], "numbers of two environments are not compared"
    (one,) = contents.breaks
    assert (one.run, one.before, one.now, len(one.members)) == (40, "torch 2.13.0", "torch 2.14.0", 3)
    text = " ".join(as_text(contents, 80).split())
    said = (
        f"from 2026-02-10, {41:040x}"[:24]
        + ": torch 2.14.0, before torch 2.13.0; latency of step[1] 1.30 ms -> 1.20 ms, and 2 more series, not judged"
    )
    assert said in text
    assert said in page_of(tmp_path).read_text(encoding="utf-8").replace("&gt;", ">")
    alone = chosen(contents, "step[2]", None)
    assert [(alone.series[pair.before].name, pair.old) for pair in alone.breaks[0].members] == [
        ("step[2]", alone.series[0].levels[-1].value)
    ]
    (tmp_path / "mixed").mkdir()
    for at, path in enumerate(sorted((tmp_path / "nights").iterdir())):  # two machines by turns are none
        text = path.read_text().replace('"2.14.0"', '"2.13.0"')
        (tmp_path / "mixed" / path.name).write_text(text.replace('"nightly"', '"other"') if at % 2 else text)
    assert contents_in(tmp_path / "mixed").breaks == []


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perflab.history import change_points

    def invented(series: Any) -> list[list[change_points.Change]]:
        """Of a hundred series two have a chance that one in a hundred would have, and one is certain."""
        seen = {0: (5, 0.008), 1: (10, 1e-9), 2: (10, 0.008)}
        return [
            [change_points.Change(run - 1, run, run, 1.05, 1.02, 1.08, p, None) for run, p in [seen[at]]]
            if at in seen
            else []
            for at in range(len(series))
        ]

    monkeypatch.setattr(change_points, "find_changes", invented)
    write_runs(tmp_path, 20, {case_name(number): latency(lambda run: 1e6, number) for number in range(100)})
    contents = contents_in(tmp_path)
    assert {event.kind: [contents.series[one.series].name for one in event.members] for event in contents.events} == {
        "alarm": ["step[1]", "step[2]"],
        "possible": ["step[0]"],
    }, "what is possible by itself belongs to an alarm at its place"
    text = as_text(contents, 100)
    assert text.index("\nevents\n") < text.index("\npossible, no alarms\n")
    assert "no alarm: among so many series a change like this one comes by chance" in text
    alone = chosen(contents, "step[0]", None)
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


# --- what is shown ------------------------------------------------------------------------------------------------


def some_nights(folder: Path) -> None:
    times = noisy(step(30), 3)
    write_runs(
        folder,
        40,
        {
            case_name(1): lambda run: {"latency": times[run], "operators": 5 + (run >= 30), "peak": 4096},
            case_name(2): latency(lambda run: 2e6, 4),
        },
    )


def test_json_is_what_the_text_was_made_of_and_csv_has_a_row_a_point(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_nights(tmp_path / "nights")
    asked = ["history", str(tmp_path / "nights")]
    assert main([*asked, "--format=json"]) == 0
    found = msgspec.json.decode(capsys.readouterr().out, type=Contents)
    assert (found.kind, found.schema) == ("perflab history", 1)
    assert found == contents_in(tmp_path / "nights")
    assert main([*asked, "--format=csv", "--quantity=latency", f"--output={tmp_path / 'out.csv'}"]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert len(rows) == 80
    by_case = {row.case: row for row in found.series if row.quantity == "latency"}
    assert [float(row["value"]) for row in rows if row["case"] == case_name(1)] == by_case[case_name(1)].values
    assert {float(row["level"]) for row in rows} == {level.value for row in by_case.values() for level in row.levels}
    assert rows[0]["commit"] == f"{1:040x}"


def test_a_spreadsheet_computes_nothing_that_a_name_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_runs(tmp_path, 4, {"=cmd|' /C calc'!A0": lambda run: {"peak": 1}})
    assert main(["history", str(tmp_path), "--format=csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("'=cmd")


def test_fail_exits_with_1_for_a_recent_alarm_for_the_worse_alone(tmp_path: Path) -> None:
    some_nights(tmp_path)
    assert main(["history", str(tmp_path)]) == 0
    assert main(["history", str(tmp_path), "--fail"]) == 1
    assert main(["history", str(tmp_path), "--fail", "--recent=5"]) == 0
    assert main(["history", str(tmp_path), "--fail", "--recent=40", "--case=step[2]"]) == 0
    write_runs(tmp_path / "better", 40, {case_name(1): latency(step(35, 1.2e6, 1e6), 1)})
    assert main(["history", str(tmp_path / "better"), "--fail"]) == 0


def test_since_leaves_out_what_is_older(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    some_nights(tmp_path)
    assert main(["history", str(tmp_path), "--since=2026-02-05"]) == 0
    assert ": 5 runs, 2026-02-05 to 2026-02-09; " in capsys.readouterr().out
    assert main(["history", str(tmp_path), "--since=soon"]) == 2
    assert "--since=soon is no date" in capsys.readouterr().err
    assert main(["history", str(tmp_path), "--case=nothing"]) == 2
    assert "no series is called so\n  -> there are: step[1], step[2]; latency" in capsys.readouterr().err


def test_no_line_of_the_text_is_wider_than_a_terminal(tmp_path: Path) -> None:
    times = noisy(step(20), 1)
    long_name = "tests/test_a.py::test_" + "very_" * 30 + "long[small-128-fp32-checkpointing]"
    write_runs(tmp_path, 40, {long_name: lambda run: {"latency": times[run], "peak": 4096}})
    _source, *lines = as_text(contents_in(tmp_path), 80).splitlines()
    assert max(map(len, lines)) <= 80


def test_columns_stand_below_each_other_whatever_a_name_holds(tmp_path: Path) -> None:
    times = noisy(step(20), 1)
    names = ("plain", "y[\u202eabc]", "y[\x1b[2Jabc]", "x" * 10_000)
    write_runs(tmp_path, 40, {f"t.py::test_{name}": lambda run: {"latency": times[run]} for name in names})
    lines = as_text(contents_in(tmp_path), 80).splitlines()
    (head,) = [line for line in lines if line.startswith("case ")]
    rows = lines[lines.index(head) + 1 :][: len(names)]
    assert {row.index("latency") for row in rows} == {head.index("quantity")}
    assert any(r"y[\u202eabc]" in row for row in rows)
    assert len("".join(lines)) < 8_000, "a name of 10,000 letters fills no screen"


def test_names_are_as_long_as_tells_cases_apart(tmp_path: Path) -> None:
    cases = ("tests/a/test_x.py::test_step[1]", "tests/b/test_x.py::test_step[1]", "tests/b/test_x.py::test_step[2]")
    write_runs(tmp_path, 4, {case: lambda run: {"peak": 1} for case in cases})
    assert [row.name for row in contents_in(tmp_path).series] == ["a:test_x:step[1]", "b:test_x:step[1]", "step[2]"]


@given(st.lists(st.floats(1, 2), min_size=1, max_size=400))
def test_a_small_picture_keeps_the_least_the_greatest_and_the_last_value(values: list[float]) -> None:
    few = thinned(values, 40)
    assert len(few) <= 40
    assert (min(few), max(few), few[-1]) == (min(values), max(values), values[-1])
    rest = iter(values)
    assert all(one in rest for one in few), "in their order"


def test_the_page_of_a_few_files_speaks_of_one_file_and_of_exact_changes(tmp_path: Path) -> None:
    nights = tmp_path / "nights"
    times = noisy(step(20, after=1.3e6), 1)
    cases = {
        case_name(1): lambda run: {"peak": 4096 * (1 + (run >= 10))},
        case_name(2): lambda run: {"latency": times[run]},
    }
    write_runs(nights, 40, cases)
    (nights / "broken.json").write_text("{")
    page = page_of(tmp_path).read_text(encoding="utf-8")
    assert "<summary>1 file left out</summary>" in page
    exact = page.index("a band lies between the two runs of a change</figcaption>")
    assert "<title>peak of step[1]</title>" in page[page.rindex("<figure>", 0, exact) : exact]
    noisy_one = page.index("a band is where a change lies, with 95 % certainty</figcaption>")
    assert "<title>latency of step[2]</title>" in page[page.rindex("<figure>", 0, noisy_one) : noisy_one]


def test_the_page_says_of_series_that_it_leaves_out_whether_they_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perflab.history.page.MOST_ROWS", 2)
    for name, changing in (("some", 3), ("none", 1)):
        cases = {case_name(at): lambda run, at=at, many=changing: {"peak": 4096 + (at < many) * run} for at in range(4)}
        write_runs(tmp_path / name / "nights", 4, cases)
    assert "2 more series, in the JSON</p>" in page_of(tmp_path / "some").read_text(encoding="utf-8")
    assert "2 more series, in the JSON: all of them unchanged</p>" in page_of(tmp_path / "none").read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--bisect=x", '--pytest="x'], '--pytest="x: no closing quotation\n  -> write it as for a shell'),
        (["--bisect=x", "--build='q"], "--build='q: no closing quotation\n  -> write it as for a shell"),
        (["--bisect=x", "--format=json"], "--format=json with --bisect\n  -> leave it out"),
        (["--bisect=x", "--output=F"], "--output=F with --bisect\n  -> leave it out"),
        (["--bisect=x", "--fail"], "--fail with --bisect\n  -> leave it out"),
        (["--bisect=x", "--case=y"], "--case=y with --bisect\n  -> leave it out"),
        (["--good=HEAD"], "--good=HEAD without --bisect\n  -> add --bisect=CASE"),
        (["--bad=HEAD"], "--bad=HEAD without --bisect\n  -> add --bisect=CASE"),
        (["--build=make"], "--build=make without --bisect\n  -> add --bisect=CASE"),
        (["--pytest=-x"], "--pytest=-x without --bisect\n  -> add --bisect=CASE"),
    ],
)
def test_options_that_would_make_no_difference_are_refused(
    capsys: pytest.CaptureFixture[str], given: list[str], said: str
) -> None:
    assert main(["history", *given]) == 2
    assert said in capsys.readouterr().err


def test_two_values_are_told_so_that_they_differ() -> None:
    assert pair_text(1000, 2000, "bytes") == "1000 B -> 2000 B"
    assert pair_text(473 * 2**20, 473 * 2**20 - 12 * 2**10, "bytes") == "473.000 MiB -> 472.988 MiB"
    assert pair_text(2**30, 2**30 + 1, "bytes") == "1,073,741,824 B -> 1,073,741,825 B"
    assert pair_text(900 * 2**10, 1.2 * 2**20, "bytes") == "0.88 MiB -> 1.20 MiB"
    assert pair_text(1024, 2048, "bytes") == "1.00 KiB -> 2.00 KiB"
    assert pair_text(0, 2048, "bytes") == "0 B -> 2.00 KiB"
    assert pair_text(1.2e6, 1.31e6, "ns") == "1.20 ms -> 1.31 ms"


def test_a_sparkline_has_the_width_it_may_and_shows_noise_as_small() -> None:
    assert sparkline([1.0, 1.0, 2.0, 2.0], 24) == "▁▁██"
    assert sparkline([5.0] * 100, 24) == "▅" * 24
    assert sparkline([0.0, 0.0], 24) == "▅▅"
    assert set(sparkline([100.0, 101.0] * 5, 10)) <= set("▄▅"), "one percent is not a mountain"
    assert len(sparkline([float(at) for at in range(100)], 24)) == 24


# --- the page -----------------------------------------------------------------------------------------------------

HOSTILE = "<script>alert(1)</script>\"'&amp;{{ 7 * 7 }}\n\u202e\x1b[2J<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


def page_of(folder: Path) -> Path:
    page = folder / "page.html"
    assert main(["history", str(folder / "nights"), "--format=html", f"--output={page}"]) == 0
    return page


def numbers_in(plain: Any) -> Iterator[float]:
    if isinstance(plain, dict | list):
        for one in plain.values() if isinstance(plain, dict) else plain:
            yield from numbers_in(one)
    elif isinstance(plain, int | float) and not isinstance(plain, bool):
        yield plain


class Shown(HTMLParser):
    """What a reader of a page sees or hears: all texts but an axis's marks, which stand for no number."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self._open: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "link", "input", "br", "img", "col"):
            self._open.append((tag, dict(attrs).get("class") or ""))

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data: str) -> None:
        tag, kind = self._open[-1] if self._open else ("", "")
        if tag not in ("style", "script") and not (tag == "text" and "faint" in kind):
            self.texts.append(data)


VALUE = re.compile(r"(?<![\w.+-])\d[\d,]*(?:\.\d+)?(?:e[+-]\d+)? (?:ns|µs|ms|s|min|h|B|KiB|MiB|GiB)\b")
CHANGE = re.compile(r"[+-]\d+\.\d%|[+-]\d[\d.]* (?:B|KiB|MiB|GiB)\b")


def test_every_number_of_the_page_stands_in_the_json_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    some_nights(tmp_path / "nights")
    cases = {
        case_name(3): beside_fixed_work(3, 1.2, **everywhere(1.1)),
        case_name(4): lambda run: {"peak": 4096 + 64 * (run > 5)},
    }
    write_runs(tmp_path / "nights/more", 40, cases)
    page = page_of(tmp_path).read_text(encoding="utf-8")
    assert main(["history", str(tmp_path / "nights"), "--format=json"]) == 0
    numbers = set(numbers_in(json.loads(capsys.readouterr().out)))
    known = sorted(numbers)
    shown = [float(number) for number in re.findall(r'data-v="([^"]+)"', page)]
    assert len(shown) > 10
    nearest = [
        min(known[max(0, at - 1) : at + 1], key=lambda one: abs(one - number))
        for number in shown
        if (at := bisect.bisect(known, number)) >= 0
    ]
    assert nearest == pytest.approx(shown, rel=1e-6)

    said = " ".join(Shown(page).texts)
    values, changes = set(VALUE.findall(said)), set(CHANGE.findall(said))
    assert len(values) > 20
    assert {change[-1] for change in changes} >= {"%", "B"}
    assert values <= {value_text(abs(one), unit) for one in numbers for unit in ("ns", "bytes")}
    differences = {f"{'+' if one > 0 else '-'}{value_text(abs(one), 'bytes')}" for one in numbers}
    assert changes <= {format_change(one) for one in numbers} | differences
    assert "the machine changed too" in said


def test_a_change_is_told_alike_in_its_event_and_in_the_table(tmp_path: Path) -> None:
    write_runs(tmp_path, 40, {case_name(1): latency(step(20), 7, noise=0.03)})
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert event.ratio is not None
    assert since_start(contents.series[0]) == format_change(event.ratio)


def test_a_page_of_thousands_of_series_says_what_it_leaves_out_and_takes_less_than_5_mb(tmp_path: Path) -> None:
    cases = {case_name(number): latency(step(20 + number % 3), number) for number in range(200)}
    cases |= {case_name(number): latency(lambda run: 1e6, number) for number in range(200, 2500)}
    write_runs(tmp_path / "nights", 40, cases)
    page = page_of(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 5_000_000
    assert "500 more series, in the JSON" in text
    assert "2350 more series, in the table" in text


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation_and_every_chart_has_its_numbers_in_words(
    tmp_path: Path, browser: Any, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    some_nights(tmp_path / "nights")
    for width in (400, 1000):
        with opened(browser, page_of(tmp_path), color_scheme=scheme, viewport={"width": width, "height": 900}) as seen:
            seen.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
            found = Axe().run(seen.page)
            assert found.violations_count == 0, found.generate_report()
            assert seen.said == []
            assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
            charts = seen.page.eval_on_selector_all(
                "svg.chart",
                "ones => ones.map(one => [...one.children].slice(0, 2).map(part => [part.tagName, part.textContent]))",
            )
    assert len(charts) == 4
    for (title, name), (desc, numbers) in charts:
        assert (title, desc) == ("title", "desc")
        assert " of step[" in name
        assert re.match(r"\d.* over \d+ points, 2026-", numbers)


def test_no_name_fills_a_screen_of_the_page(tmp_path: Path) -> None:
    times = noisy(step(20), 1)
    write_runs(
        tmp_path / "nights", 40, {f"t.py::test_{'x' * 10_000}": lambda run: {"latency": times[run], "y" * 999: 5}}
    )
    assert max(map(len, Shown(page_of(tmp_path).read_text(encoding="utf-8")).texts)) < 500


def test_the_page_tells_two_sizes_apart(tmp_path: Path) -> None:
    large = 473 * 2**20
    write_runs(tmp_path / "nights", 10, {case_name(1): lambda run: {"peak": large - 12 * 2**10 * (run >= 5)}})
    said = Shown(page_of(tmp_path).read_text(encoding="utf-8")).texts
    assert {"473.000 MiB", "472.988 MiB"} <= set(said)


@needs_browser
def test_hostile_names_do_nothing(tmp_path: Path, browser: Any) -> None:
    times = noisy(step(20), 1)
    write_runs(
        tmp_path / "nights",
        40,
        {f"t.py::test_a[{HOSTILE}{'x' * 10_000}]": lambda run: {"latency": times[run], HOSTILE: times[run]}},
        commits=lambda run: f"{HOSTILE}{run}",
    )
    with opened(browser, page_of(tmp_path)) as seen:
        assert seen.said == []
        assert seen.page.evaluate("document.scripts.length") == 1
        assert seen.page.evaluate("document.images.length") == 0
    assert not {"\x1b", "\u202e"} & {*(tmp_path / "page.html").read_text(encoding="utf-8")}
    assert not {"\x1b", "\u202e"} & {*as_text(contents_in(tmp_path / "nights"), 80)}


# --- bisection ----------------------------------------------------------------------------------------------------


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
