"""The table's columns and the order of its lines, as somebody asks for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pytest_benchmark.stats import Stats
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.measured.report.columns import interval_ns, named, ordered
from perflab.measured.report.table import table
from perflab.options import OPTIONS
from perflab.report.summary import markdown
from perflab.results.documents import write_document
from perflab.results.measurement import Paired, summarize
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.results.result import Result
from perflab.tables.view import COLUMNS, DEFAULT_COLUMNS, ORDERS, View, parse_columns, parse_sort
from tests.harness.command import Command
from tests.harness.make import MS, compared, document, entry, judge, measurement, memory, record, replicate, result

BENCHMARK = ("min", "max", "mean", "std", "iqr", "rounds", "ops")
FIVE_MS = [10 * MS, 20 * MS, 30 * MS, 40 * MS, 60 * MS]


def measured(
    samples_ns: list[int], case: str = "t.py::test_a", verdict: Verdict = Verdict.OK, repetitions: int = 1
) -> Result:
    """A case with these samples."""
    more: dict[str, Any] = {"memory": memory(2**20), "counts": {"operators": 7}}
    taken = measurement(samples_ns, repetitions=repetitions, warmup_calls=4, **more)
    found = record(summarize(taken, 0.01), measurement=taken)
    latency = Change(before=25.0 * MS, now=30.0 * MS, ratio=1.2)
    return result(case, outcome=found, judgement=Judgement(verdict=verdict, latency=latency))


def shown(*results: Result, view: View | None = None, width: int = 80) -> list[str]:
    return [line.text for line in table(results, width, view or View())]


@given(st.lists(st.integers(1, 10**12), min_size=2, max_size=60), st.integers(1, 50))
def test_statistics_of_samples_are_those_of_pytest_benchmark(samples_ns: list[int], repetitions: int) -> None:
    theirs = Stats()  # type: ignore[no-untyped-call]
    for sample_ns in samples_ns:
        theirs.update(sample_ns / repetitions / 1e9)  # type: ignore[no-untyped-call]
    case = measured(samples_ns, repetitions=repetitions)
    names = {"min": "min", "max": "max", "mean": "mean", "median": "median", "std": "stddev", "iqr": "iqr"}
    for ours, name in names.items():
        wanted = getattr(theirs, name)
        # Summaries keep thousandths of a nanosecond.
        assert named(ours).value(case) == pytest.approx(1e9 * wanted, rel=1e-6, abs=2e-3), ours
    assert named("rounds").value(case) == theirs.rounds
    assert named("iterations").value(case) == repetitions
    if theirs.mean > 1e-6:
        assert named("ops").value(case) == pytest.approx(theirs.ops, rel=1e-6)


def test_a_single_sample_has_no_spread_of_any_kind() -> None:
    case = measured([10 * MS])
    assert [named(name).value(case) for name in ("std", "iqr", "spread")] == [None, None, None]
    assert named("min").value(case) == named("max").value(case) == 10 * MS


def test_chosen_columns_stand_in_the_order_that_was_given_and_the_verdict_last() -> None:
    head, line = shown(measured(FIVE_MS), view=View(parse_columns("max,rounds, min,vs base,warmup,operators")))
    assert head.split() == ["case", "max", "rounds", "min", "vs", "base", "warmup", "operators", "verdict"]
    assert line.split() == ["a", "60.0", "ms", "5", "10.0", "ms", "+20.0%", "4", "7", "ok"]


def test_columns_that_do_not_fit_stand_in_blocks_and_the_last_has_the_verdict() -> None:
    long = "t.py::test_of_a_case_that_has_a_long_name"
    lines = shown(measured(FIVE_MS, long), view=View((*BENCHMARK, "median", "peak")))
    assert [line.split()[1:] for line in lines] == [
        ["min", "max", "mean", "std", "iqr", "rounds"],
        ["10.0", "ms", "60.0", "ms", "32.0", "ms", "19.2", "ms", "27.5", "ms", "5"],
        ["ops/s", "median", "peak", "verdict"],
        ["31.2", "30.0", "ms", "1.00", "MiB", "ok"],
    ]
    (head, line) = shown(measured(FIVE_MS, long), view=View((*BENCHMARK, "median", "peak")), width=140)
    assert (head.split()[-1], line.split()[0]) == ("verdict", long.removeprefix("t.py::test_"))


@given(
    st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=len(COLUMNS), unique=True),
    st.sampled_from(Verdict),
    st.text("abc", min_size=1, max_size=60),
    st.sampled_from([80, 120]),
)
def test_whatever_is_chosen_no_line_is_longer_than_the_terminal_and_no_column_is_lost(
    columns: list[str], verdict: Verdict, name: str, width: int
) -> None:
    lines = shown(measured(FIVE_MS, f"t.py::test_{name}", verdict), view=View(tuple(columns)), width=width)
    assert max(map(len, lines)) <= width
    assert lines[-2].endswith("verdict")
    heads = " ".join(line for line in lines if line.startswith("case "))
    assert [title for title in heads.split() if title not in ("case", "verdict")] == [
        word for column in columns for word in named(column).title.split()
    ]


def order(sort: str, *results: Result) -> list[str]:
    return [one.case.rpartition("::")[2] for one in ordered(results, View(sort=sort))]


def test_lines_are_sorted_by_a_column_both_ways_and_what_has_nothing_there_stands_last() -> None:
    skipped = result("t.py::test_s", Verdict.SKIPPED, outcome=None)
    slow, quick = measured([9 * MS] * 5, "t.py::test_slow"), measured([MS] * 5, "t.py::test_quick")
    run = (slow, skipped, quick)
    assert order("collected", *run) == ["test_slow", "test_s", "test_quick"]
    assert order("-collected", *run) == ["test_quick", "test_s", "test_slow"]
    assert order("min", *run) == ["test_quick", "test_slow", "test_s"]
    assert order("-min", *run) == ["test_slow", "test_quick", "test_s"]
    assert order("ops", *run) == ["test_slow", "test_quick", "test_s"]


def test_lines_are_sorted_by_the_functions_name_or_by_the_whole_one() -> None:
    run = [result("b.py::test_a[x::y]"), result("a.py::TestC::test_c"), result("a.py::test_b")]
    assert [one.case for one in ordered(run, View(sort="name"))] == [run[0].case, run[2].case, run[1].case]
    assert [one.case for one in ordered(run, View(sort="fullname"))] == [run[1].case, run[2].case, run[0].case]
    assert [one.case for one in ordered(run, View(sort="-fullname"))] == [run[0].case, run[2].case, run[1].case]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("min,medain", "'medain' is not one of these; did you mean median\\?\n +median, min,"),
        ("", "'' is not one of these\n +median, min,"),
        ("quoted", "'quoted' is not one"),
    ],
)
def test_a_column_that_there_is_not_is_refused_with_one_that_is_like_it(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_columns(text)


def test_what_cases_are_not_sorted_by_is_refused() -> None:
    assert [parse_sort(order) for order in ORDERS] == list(ORDERS)
    assert parse_sort("-vs base") == "-vs_base"
    with pytest.raises(ValueError, match=r"'medain' is not one of these; did you mean median\?\n +collected, name"):
        parse_sort("-medain")


def test_the_options_defaults_are_what_the_table_shows_by_itself() -> None:
    defaults = {option.name: option.default for option in OPTIONS}
    assert defaults["--perf-columns"] == DEFAULT_COLUMNS
    assert View(parse_columns(DEFAULT_COLUMNS), parse_sort(defaults["--perf-sort"])) == View()


def test_markdown_has_the_columns_and_the_order_and_still_shows_regressions_first() -> None:
    names = ("t.py::test_b", "t.py::test_a", "t.py::test_c")
    run = [measured(FIVE_MS, name) for name in names[:2]] + [measured(FIVE_MS, names[2], Verdict.REGRESSED)]
    text = markdown(document(*run), view=View(("min", "iqr"), "name"))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert rows[0] == "| case | min | iqr | verdict |"
    assert [row.split()[1] for row in rows[2:]] == ["`c`", "`a`", "`b`"]
    assert [cell.strip() for cell in rows[3].split("|")[2:-1]] == ["10.0 ms", "27.5 ms", "ok"]


def test_report_shows_the_columns_and_the_order_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.chdir(tmp_path)
    run = [measured(FIVE_MS, "t.py::test_first"), measured([MS] * 5, "t.py::test_second")]
    write_document(document(*run), Path("a.json"))
    (*_, head, first, second, _tally) = command("report", "a.json", "--columns=min,iqr", "--sort=-name").splitlines()
    assert head.split() == ["case", "min", "iqr", "verdict"]
    assert (first.split()[0], second.split()) == ("second", ["first", "10.0", "ms", "27.5", "ms", "ok"])
    assert "| case | rounds | verdict |" in command("report", "a.json", "--format=markdown", "--columns=rounds")
    assert command("report", "a.json", "--columns=average", status=2) == snapshot


def reading_twice_as_slow(**changes: object) -> Result:
    """A first reading of 200 ms, which three fresh processes of 99, 100 and 101 ms did not confirm."""
    first = measured([198 * MS, 200 * MS, 202 * MS])
    assert first.record.summary is not None
    slow = changed(first.record.summary, phases_ns={"forward": 150.0 * MS, "backward": 50.0 * MS})
    phases = {"forward": 75.0 * MS, "backward": 25.0 * MS}
    fresh = [replicate(ms * MS, phases_ns=phases) for ms in (99, 100, 101)]
    work: dict[str, float] = {"tokens": 1000, "backward_flops": 1e9}
    found = changed(first.record, **{"summary": slow, "fresh": fresh, "work": work, **changes})
    latency = Change(before=99.0 * MS, now=100.0 * MS, ratio=1.01)
    return result(outcome=found, judgement=Judgement(verdict=Verdict.OK, latency=latency))


def test_all_figures_of_a_row_are_of_the_processes_that_were_judged(snapshot: SnapshotAssertion) -> None:
    one = reading_twice_as_slow()
    names = ("min", "median", "mean", "backward", "tokens/s", "backward_flops/s", "ops")
    wanted = [0.99 * 99 * MS, 100 * MS, 100 * MS, 25 * MS, 1e4, 4e10, 10.0]
    assert [named(name).value(one) for name in names] == pytest.approx(wanted)
    assert [named(name).value(one) for name in ("max", "iqr", "iterations", "warmup")] == [
        None
    ] * 4  # of the first alone
    assert "\n".join(shown(one)) == snapshot


def test_figures_that_pairs_do_not_tell_are_not_shown_beside_their_time() -> None:
    one = reading_twice_as_slow(fresh=[], paired=Paired(against="main"))
    assert named("median").value(one) == 100 * MS
    assert named("spread").value(one) is None, "the samples' would say nothing of it"
    assert named("tokens/s").value(one) == pytest.approx(1e4)
    unknown = ("min", "max", "mean", "std", "ops", "forward", "backward_flops/s")
    assert [named(name).value(one) for name in unknown] == [None] * len(unknown)
    assert "mean" not in " ".join(shown(one))


def test_the_spread_beside_what_pairs_say_is_half_of_their_interval_and_not_that_of_the_samples() -> None:
    one = reading_twice_as_slow(fresh=[], paired=Paired(against="main"))
    latency = Change(before=80.0 * MS, now=100.0 * MS, ratio=1.25, low=1.2, high=1.3)
    one = changed(one, judgement=Judgement(verdict=Verdict.REGRESSED, latency=latency))
    assert named("spread").value(one) == pytest.approx(0.04)
    assert interval_ns(one) == pytest.approx((96 * MS, 104 * MS))


def test_an_ab_comparison_tells_the_phases_that_it_compared() -> None:
    one = reading_twice_as_slow(fresh=[], paired=Paired(against="main"))
    assert one.record is not None
    phases = {"backward": Change(before=20.0 * MS, now=25.0 * MS, ratio=1.25)}
    one = changed(one, outcome=compared(one.record), judgement=changed(one.judgement, phases=phases))
    assert named("backward").value(one) == 25 * MS
    assert named("backward_flops/s").value(one) == pytest.approx(4e10)


@given(
    st.lists(st.lists(st.integers(1, 10**9), min_size=2, max_size=9), min_size=1, max_size=5),
    st.lists(st.integers(1, 10**9), min_size=2, max_size=9),
)
def test_figures_of_a_row_can_be_those_of_one_reading(fresh: list[list[int]], first: list[int]) -> None:
    found = measured(first)
    assert found.record is not None
    again = [summarize(measurement(samples_ns), 0.01) for samples_ns in fresh]
    one = changed(
        found,
        outcome=changed(found.record, fresh=again),
        judgement=judge(record(summarize(measurement(first), 0.01), fresh=again), entry(), Policy()),
    )
    low, middle, mean = (named(name).value(one) for name in ("min", "median", "mean"))
    assert isinstance(low, float)
    assert isinstance(middle, float)
    assert isinstance(mean, float)
    assert low <= middle
    assert low <= mean
    assert middle == one.judgement.latency.now
