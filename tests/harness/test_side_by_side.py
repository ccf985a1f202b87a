"""Levels of one parameter against each other: grouped, fastest first, what did not run and what is quoted below.

Also the intervals of their ratios.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.judging.interleave import Reading
from perflab.judging.statistics import LEAST_PAIRS
from perflab.measured.report.side_by_side import levels_with_bases, side_by_side, side_by_side_data, side_by_side_lines
from perflab.measured.run.tables import ROUNDS, Row, ratio_of
from perflab.report.summary import markdown, summary
from perflab.results.documents import merge, write_document
from perflab.results.measured import MeasuredCase
from perflab.results.measurement import Beside, OutOfMemory, Quote
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from perflab.turns.comparison import BASE, HEAD
from perflab.turns.messages import Ready
from perflab.turns.rounds import CaseTurns
from tests.harness.command import Command
from tests.harness.machine import Machine
from tests.harness.make import MS, cuda_environment, document, environment, in_turns, record, replicate, result

TABLES = 600


def case(impl: str, ms: float, length: int = 128, **changes: Any) -> Result:
    """``attention[IMPL-LENGTH]``, a case that asks to be set side by side."""
    node = f"tests/perf/test_x.py::test_attention[{impl}-{length}]"
    parameters = {"impl": impl, "seq_len": length}
    found = record(replicate(ms * MS, peak_bytes=2**20), case=node, parameters=parameters, **changes)
    return result(node, outcome=found, side_by_side="impl")


def skipped(impl: str, reason: str, length: int = 128) -> Result:
    return Result(
        case=f"tests/perf/test_x.py::test_attention[{impl}-{length}]",
        judgement=Judgement(verdict=Verdict.SKIPPED, reasons=[reason]),
        parameters={"impl": impl, "seq_len": length},
        side_by_side="impl",
    )


def out_of_memory(impl: str) -> Result:
    node = f"tests/perf/test_x.py::test_attention[{impl}-128]"
    found = MeasuredCase(
        case=node,
        environment=environment(),
        parameters={"impl": impl, "seq_len": 128},
        out_of_memory=OutOfMemory(asked_bytes=2**34),
    )
    return Result(case=node, outcome=found, judgement=Judgement(verdict=Verdict.OOM), side_by_side="impl")


def lines(*results: Result, parameter: str | None = None) -> list[str]:
    return [line.text for line in side_by_side_lines(side_by_side(results, parameter))]


def test_levels_stand_fastest_first_with_their_ratio_to_it(snapshot: SnapshotAssertion) -> None:
    assert lines(*in_turns(case("sdpa-flash", 10), case("naive", 30), case("tiled", 15))) == snapshot


def test_levels_that_took_no_turns_have_their_times_and_no_ratio_and_the_table_says_why(
    snapshot: SnapshotAssertion,
) -> None:
    alone, (base, turned) = case("naive", 30), in_turns(case("sdpa", 10), case("tiled", 15))
    shown = lines(base, turned, alone)
    assert shown == snapshot
    late = changed(alone, beside=[Beside(base=base.case, base_ns=10 * MS, problem="it was late -> begin earlier")])
    (group,) = side_by_side_data(side_by_side([base, turned, late]))
    assert group["no_ratios"] == snapshot
    assert [(one["ratio"], one.get("between")) for one in group["levels"]] == [
        (1.0, None),
        (1.5, pytest.approx([1.485, 1.515])),
        (None, None),
    ]


def test_a_base_that_was_measured_again_by_another_run_takes_its_ratios_along(snapshot: SnapshotAssertion) -> None:
    base, turned = in_turns(case("sdpa", 10), case("tiled", 15))
    both, again = document(base, turned), document(case("sdpa", 11))
    assert "1.50 (" in "".join(lines(*both.results))
    merged = lines(*merge([both, changed(again, created=both.created.replace(year=2099))]).results)
    assert "1.50" not in "".join(merged)
    assert "".join(merged) == snapshot


def test_turns_are_taken_with_the_fastest_and_first_for_the_groups_that_a_summary_shows() -> None:
    results = [case("naive", 30), case("sdpa", 10), case("naive", 80, 256), case("sdpa", 90, 256), skipped("fa", "no")]
    pairs = [(row.case.rpartition("[")[2], base.case.rpartition("[")[2]) for row, base in levels_with_bases(results)]
    assert pairs == [("sdpa-256]", "naive-256]"), ("naive-128]", "sdpa-128]")]


def test_each_test_and_each_other_parameter_is_a_group_of_its_own() -> None:
    short, long = (
        in_turns(case("sdpa", 10), case("naive", 30)),
        in_turns(case("sdpa", 60, 256), case("naive", 90, 256)),
    )
    shown = lines(short[1], long[1], short[0], long[0])
    assert [line.split()[0] for line in shown[1:]] == [
        "attention[128]",
        "sdpa",
        "naive",
        "attention[256]",
        "sdpa",
        "naive",
    ]
    assert shown[-1].split()[4] == "1.50"


def test_rate_and_share_of_the_matmul_rate_stand_where_they_are_known() -> None:
    known = {"work": {"flops": 2e11}, "matmul_flops_per_second": 4e13}
    shown = lines(case("naive", 20, **known), case("sdpa", 10, **known))
    assert shown[0].split()[3:] == ["impl", "median", "spread", "ratio", "rate", "matmul", "peak"]
    assert shown[2].split() == ["sdpa", "10.0", "ms", "±0.2%", "1.00", "20.0", "TFLOP/s", "50.0%", "1.00", "MiB"]
    assert max(map(len, shown)) <= 80


def test_phases_are_held_against_those_of_the_fastest_level(snapshot: SnapshotAssertion) -> None:
    def step(impl: str, forward_ms: float, backward_ms: float) -> Result:
        found = case(impl, forward_ms + backward_ms)
        phases = {"forward": forward_ms * MS, "backward": backward_ms * MS}
        summary = replicate((forward_ms + backward_ms) * MS, phases_ns=phases)
        work = {"flops": 3e10, "backward_flops": 2e10}
        changed = record(
            summary, case=found.case, parameters=found.record.parameters, work=work, matmul_flops_per_second=4e12
        )
        return result(found.case, outcome=changed, side_by_side="impl")

    shown = lines(*in_turns(step("one", 10, 20), step("other", 30, 10)))
    assert shown == snapshot


def test_what_did_not_run_says_why_below_those_that_did(snapshot: SnapshotAssertion) -> None:
    shown = lines(skipped("cudnn", "not here"), case("sdpa", 10), out_of_memory("naive"), skipped("fa3", "not here"))
    assert shown[2:] == snapshot


def test_quotes_stand_last_once_and_take_part_in_no_ratio(snapshot: SnapshotAssertion) -> None:
    quotes = [Quote(source="H100, compiled", ns=5 * MS, phases_ns={"forward": 2 * MS})]
    assert lines(*in_turns(case("sdpa", 10, quotes=quotes), case("naive", 30, quotes=quotes)))[2:] == snapshot


def test_a_level_alone_is_nothing_and_a_parameter_asked_for_takes_the_cases_place() -> None:
    assert lines(case("naive", 30), case("sdpa", 60, 256)) == []
    shown = lines(*in_turns(case("naive", 30), case("naive", 90, 256)), parameter="seq_len")
    assert shown[0].startswith("side by side: seq_len")
    assert [line.split()[0] for line in shown[1:]] == ["attention[naive]", "128", "256"]


def test_a_level_that_its_id_does_not_show_leaves_the_others_by_name() -> None:
    def odd(impl: str, identifier: str) -> Result:
        node = f"t.py::test_a[{identifier}]"
        return result(node, outcome=record(case=node, parameters={"impl": impl, "length": 5}), side_by_side="impl")

    assert lines(odd("one", "x"), odd("two", "y"))[1] == "a[length=5]"


def test_a_runs_summary_and_its_markdown_hold_the_table(snapshot: SnapshotAssertion) -> None:
    run = document(case("naive", 30), case("sdpa", 10))
    assert "side by side: impl" in "\n".join(line.text for line in summary(run))
    shown = markdown(run).splitlines()
    at = shown.index(r"| attention\[128\], by impl | median | spread | ratio | peak |")
    assert shown[at + 1 : at + 3] == snapshot


def test_the_report_command_sets_any_parameter_side_by_side(
    tmp_path: Path, command: Command, snapshot: SnapshotAssertion
) -> None:
    file = tmp_path / "a.json"
    write_document(document(case("naive", 30), case("naive", 90, 256)), file)
    assert "side by side: seq_len" in command("report", file, "--side-by-side=seq_len")
    assert command("report", file, "--side-by-side=seqlen", status=2).replace(str(file), "FILE") == snapshot


def test_machines_of_different_kinds_do_not_stand_in_each_others_way() -> None:
    """A merged run may hold both; ratios across machines say nothing of the code."""
    here, there = case("naive", 30), case("sdpa", 10)
    elsewhere = result(
        there.case,
        outcome=record(replicate(10 * MS), environment=cuda_environment(), parameters=there.record.parameters),
        side_by_side="impl",
    )
    assert here.record.environment == environment()
    assert lines(here, elsewhere) == []


@pytest.mark.parametrize("rounds", [LEAST_PAIRS, ROUNDS])
@pytest.mark.parametrize(("slowdown", "ruined"), [(0.0, 0.0), (0.0, 0.15), (0.5, 0.05)])
def test_an_interval_holds_the_true_ratio_in_95_of_100_tables(rounds: int, slowdown: float, ruined: float) -> None:
    machine = Machine(random.Random(32), ruined=ruined)
    held = 0
    for _ in range(TABLES):
        taken = [machine.take(slowdown, (HEAD, BASE)) for _ in range(rounds)]
        found = ratio_of([one.log for turns in taken if (one := turns.reading(HEAD, BASE)) is not None])
        held += found.low <= 1 + slowdown <= found.high
    two_errors = 2 * math.sqrt(0.95 * 0.05 / TABLES)
    assert held / TABLES > 0.95 - two_errors


def test_a_row_whose_fastest_calls_alone_are_like_its_base_s_has_the_ratio_of_the_means() -> None:
    row = Row(result("t.py::test_a[1]"), result("t.py::test_a[0]"))
    row.readings = [Reading(noise, 0.01, math.log(2.0), 0.01, math.log(2.0), 0.1) for noise in (-0.01, 0.0, 0.01) * 2]
    assert row.beside.call.value == pytest.approx(2.0, rel=0.01)


def test_phases_have_ratios_of_their_own_and_too_few_rounds_have_none() -> None:
    def turns(forward_ns: int, repetitions: int) -> CaseTurns:
        ready = Ready(case="", device="cpu", environment=environment(), parameters={})
        return CaseTurns(ready, phases_ns={"forward": [forward_ns * repetitions] * 4}, repetitions=repetitions)

    row = Row(result("t.py::test_a[1]"), result("t.py::test_a[0]"))
    for _ in range(LEAST_PAIRS):
        row.take(turns(300, 7), turns(100, 2), Reading(math.log(2.0)))
    assert (row.beside.call.value, row.beside.phases["forward"].value) == (pytest.approx(2.0), pytest.approx(3.0))
    row.readings.pop()
    row.problem = "the run was over"
    assert (row.beside.call, row.beside.problem) == (None, "the run was over")
