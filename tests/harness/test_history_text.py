"""A history as text, JSON and CSV, and which options choose what is shown."""

from __future__ import annotations

import csv
import io
import re
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.cli import main
from perflab.history.command import chosen
from perflab.history.contents import Contents
from perflab.history.text import as_text, break_text, sparkline
from perflab.results.documents import write_document
from perflab.tables.beside_text import pair_text
from tests.harness.command import Command
from tests.harness.histories import Values, case_name, contents_in, latency, noisy, some_nights, step, told, write_runs
from tests.harness.make import document, result


def test_json_is_what_the_text_was_made_of_and_csv_has_a_row_a_point(tmp_path: Path, command: Command) -> None:
    some_nights(tmp_path / "nights")
    asked = ["history", str(tmp_path / "nights")]
    found = msgspec.json.decode(command(*asked, "--format=json"), type=Contents)
    assert (found.kind, found.schema) == ("perflab history", 1)
    assert found == contents_in(tmp_path / "nights")
    assert main([*asked, "--format=csv", "--quantity=latency", f"--output={tmp_path / 'out.csv'}"]) == 0
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8"))))
    assert len(rows) == 80
    by_case = {row.case: row for row in found.series if row.quantity == "latency"}
    assert [float(row["value"]) for row in rows if row["case"] == case_name(1)] == by_case[case_name(1)].values
    assert {float(row["level"]) for row in rows} == {level.value for row in by_case.values() for level in row.levels}
    assert rows[0]["commit"] == f"{1:040x}"


@pytest.mark.parametrize("first", ["=", "+", "-2+3+", "-", "@", "\t=", "\r="])
def test_a_spreadsheet_computes_nothing_that_a_name_says(tmp_path: Path, command: Command, first: str) -> None:
    write_runs(tmp_path, 4, {f"{first}cmd|' /C calc'!A0": lambda run: {"peak": 1}})
    assert command("history", tmp_path, "--format=csv").splitlines()[1].startswith("'")


def test_a_table_moves_no_cursor_and_leaves_numbers_as_they_are(tmp_path: Path, command: Command) -> None:
    write_runs(
        tmp_path,
        4,
        {"t.py::test_a[\x1b[2J\x9b31m\u202e]": lambda run: {"latency": 1e-7}, "-5": lambda run: {"peak": 1}},
    )
    shown = command("history", tmp_path, "--format=csv")
    assert shown.replace("\n", "").isprintable()
    assert r"[\x1b[2J\x9b31m\u202e]" in shown
    assert ",9.9999999999999995e-08," in shown
    assert "\n-5," in shown


def test_a_step_of_two_runs_is_said_without_a_size(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    write_runs(tmp_path, 42, {case_name(1): latency(step(40, after=1.3e6), 4)})
    contents = contents_in(tmp_path)
    (event,) = contents.events
    assert (event.ratio, event.members[0].ratio, event.members[0].low, contents.series[0].ratio) == (None,) * 4
    assert told(contents) == snapshot
    assert "too few runs to say" in command("history", tmp_path, "--format=html")


def test_a_ramp_is_said_where_no_run_began_it(tmp_path: Path, command: Command, snapshot: SnapshotAssertion) -> None:
    cases = {case_name(1): latency(lambda run: 1e6 * 1.1 ** (run / 59), 1), case_name(2): latency(lambda run: 1e6, 2)}
    write_runs(tmp_path, 60, cases)
    contents = contents_in(tmp_path)
    assert contents.events == []
    assert [row.creep is not None for row in contents.series] == [True, False]
    text = told(contents)
    assert text == snapshot
    (said,) = re.findall(r"\nslow changes, no alarms\n +(.*)\n", text)
    assert f"{said}</li>" in command("history", tmp_path, "--format=html")
    assert main(["history", str(tmp_path), "--fail"]) == 0


def test_a_renamed_case_goes_on_under_its_new_name(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    def case(name: str, first: int, last: int, level: float) -> dict[str, Values]:
        times = noisy(lambda run: level, 1, noise=0.001)
        return {
            f"t/test_a.py::test_{name}": lambda run: {"latency": times[run], "peak": 64} if first <= run < last else {}
        }

    renamed = {**case("old[1]", 0, 20, 1.3e6), **case("new[1]", 20, 40, 1.2e6)}
    others = {**case("gone[2]", 0, 20, 1e6), **case("late[3]", 20, 40, 1e6), **case("old[4]", 0, 40, 1e6)}
    write_runs(tmp_path, 40, {**renamed, **others})
    contents = contents_in(tmp_path)
    said = break_text(*contents.breaks, contents)
    assert told(contents) == snapshot
    for name in ("test_new", "test_old[1]"):
        alone = chosen(contents, name, "latency")
        assert [row.name for row in alone.series] == ["old[1]", "new[1]"], "the case's whole history"
        assert [break_text(one, alone) for one in alone.breaks] == [said.replace(", and 1 more series", "")]


def test_runs_without_a_number_say_so_and_what_to_do(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    write_runs(tmp_path, 2, {})
    assert command("history", tmp_path, status=2).replace(str(tmp_path), "nights") == snapshot


def test_fail_exits_with_1_for_a_recent_alarm_for_the_worse_alone(tmp_path: Path) -> None:
    some_nights(tmp_path)
    assert main(["history", str(tmp_path)]) == 0
    assert main(["history", str(tmp_path), "--fail"]) == 1
    assert main(["history", str(tmp_path), "--fail", "--recent=5"]) == 0
    assert main(["history", str(tmp_path), "--fail", "--recent=40", "--case=step[2]"]) == 0
    write_runs(tmp_path / "better", 40, {case_name(1): latency(step(35, 1.2e6, 1e6), 1)})
    assert main(["history", str(tmp_path / "better"), "--fail"]) == 0


@pytest.mark.parametrize(
    ("collected", "stale", "status"),
    [
        ("tests/perf/test_model.py::test_other", [], 0),
        ("tests/perf/test_model.py::test_step[other]", [], 1),  # an option may bring the parameter back
        ("tests/perf/test_else.py::test_other", [], 1),  # perhaps a run of that file alone
        ("tests/perf/test_else.py::test_other", [case_name(1), case_name(2)], 0),
    ],
)
def test_an_alarm_of_cases_that_no_longer_exist_fails_nobody_and_says_so(
    tmp_path: Path, command: Command, collected: str, stale: list[str], status: int
) -> None:
    some_nights(tmp_path)
    newest = document(result(collected), created=datetime(2026, 3, 1, tzinfo=UTC), collected=[collected], stale=stale)
    write_document(newest, tmp_path / "newest.json")
    said = command("history", tmp_path, "--fail", "--recent=20", status=status)
    assert ("no longer exist" in said) == (status == 0)


def test_since_leaves_out_what_is_older(tmp_path: Path, command: Command, snapshot: SnapshotAssertion) -> None:
    some_nights(tmp_path)
    assert ": 5 runs, 2026-02-05 to 2026-02-09; " in command("history", tmp_path, "--since=2026-02-05")
    for wrong in ("--since=soon", "--case=nothing"):
        assert command("history", tmp_path, wrong, status=2) == snapshot


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


def test_values_and_names_are_as_long_as_tells_them_apart(tmp_path: Path) -> None:
    cases = ("tests/a/test_x.py::test_step[1]", "tests/b/test_x.py::test_step[1]", "tests/b/test_x.py::test_step[2]")
    write_runs(tmp_path, 4, {case: lambda run: {"peak": 1} for case in cases})
    assert [row.name for row in contents_in(tmp_path).series] == ["a:test_x:step[1]", "b:test_x:step[1]", "step[2]"]
    assert sparkline([1.0, 1.0, 2.0, 2.0], 24) == "▁▁██"
    assert sparkline([5.0] * 100, 24) == "▅" * 24
    assert sparkline([0.0, 0.0], 24) == "▅▅"
    assert set(sparkline([100.0, 101.0] * 5, 10)) <= set("▄▅"), "one percent is not a mountain"
    assert len(sparkline([float(at) for at in range(100)], 24)) == 24


def test_options_that_would_make_no_difference_are_refused(command: Command, snapshot: SnapshotAssertion) -> None:
    asked = [["--bisect=x", '--pytest="x'], ["--bisect=x", "--build='q"]]
    asked += [["--bisect=x", option] for option in ("--format=json", "--output=F", "--fail", "--case=y", "--recent=3")]
    asked += [
        [option, "--bisect=x", "--good=A", "--bad=B"] for option in ("--git", "--branch=C", "--since=2026", "nights")
    ]
    asked += [["--git", "--fail"], ["--recent=3"], ["--good=HEAD"], ["--bad=HEAD"], ["--build=make"], ["--pytest=-x"]]
    assert {" ".join(one): command("history", *one, status=2) for one in asked} == snapshot


@pytest.mark.parametrize(
    ("before", "now", "unit", "told"),
    [
        (1000, 2000, "bytes", "1000 B -> 2000 B"),
        (473 * 2**20, 473 * 2**20 - 12 * 2**10, "bytes", "473.000 MiB -> 472.988 MiB"),
        (2**30, 2**30 + 1, "bytes", "1,073,741,824 B -> 1,073,741,825 B"),
        (900 * 2**10, 1.2 * 2**20, "bytes", "0.88 MiB -> 1.20 MiB"),
        (1024, 2048, "bytes", "1.00 KiB -> 2.00 KiB"),
        (0, 2048, "bytes", "0 B -> 2.00 KiB"),
        (1.2e6, 1.31e6, "ns", "1.20 ms -> 1.31 ms"),
    ],
)
def test_two_values_are_told_so_that_they_differ(before: float, now: float, unit: str, told: str) -> None:
    assert pair_text(before, now, unit) == told
