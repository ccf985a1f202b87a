"""What is shown of predicted cases: the table, a failing case, and where they stand in a run."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.measured.report.side_by_side import side_by_side
from perflab.measured.report.studies import studies
from perflab.predicted.report.detail import explain_prediction
from perflab.predicted.report.table import prediction_head, prediction_notes, prediction_table
from perflab.report.summary import markdown, summary
from perflab.results.predicted import PredictedBaseline, Prediction
from perflab.results.records import Judgement, Policy, Verdict
from perflab.results.result import Result
from perflab.tables.view import View
from tests.harness.make import (
    GIB,
    cost,
    document,
    fit,
    grown,
    part,
    predicted_baseline,
    predicted_result,
    prediction,
    result,
    saved,
)

USUAL = prediction()
MODEST: dict[str, Any] = {"fits": True, "fits_on": ["a100-80gb", "h100", "h200", "b200"], "remedies": {}}


def text_of(*results: Result) -> str:
    return "\n".join(line.text for line in prediction_table(results))


def details(now: Prediction) -> list[str]:
    """What stands below a case's line."""
    return text_of(predicted_result(now)).splitlines()[2:]


def test_no_line_is_wider_than_80_columns_whatever_the_names() -> None:
    long = "encoder.stages.*.residual.attention.projection_of_queries"
    now = prediction(
        at_peak=[part("activations", long, "aten::_scaled_dot_product_efficient_attention_backward", 90 * GIB)],
        saved=[saved(long, [4, 32, 1024, 1024], GIB, line="perflab/lab/attention/naive.py:45")],
        fit=fit(fits_on=["a100-40gb", "a100-80gb", "h100", "h200", "b200", "rtx4090", "l4"]),
        estimate_ns=2e9,
        estimate_from="0.41 of the roofline, as measured in 12 cases of step[1.4B] on an NVIDIA H100 80GB HBM3",
    )
    results = [
        predicted_result(now, case="t.py::test_a_case_of_quite_a_long_name[2.7B-131072-bfloat16-flash]"),
        predicted_result(now, predicted_baseline(prediction(torch="2.9")), case="t.py::test_another[2.7B]", saved=True),
    ]
    assert max(len(line.text) for line in prediction_table(results)) <= 80
    assert max(len(line.text) for line in summary(document(*results))) <= 80


def test_parameters_are_a_column_where_models_differ_and_stand_above_the_table_where_they_do_not() -> None:
    small, large = predicted_result(prediction(parameters=1_413_888), case="t.py::test_a"), predicted_result()
    assert text_of(small, large).splitlines()[0].split()[:3] == ["case", "params", "FLOPs"]
    assert [line.split()[1] for line in text_of(small, large).splitlines() if line.endswith("new")] == [
        "1.41M",
        "3.41B",
    ]
    assert "params" not in text_of(large, large)
    assert prediction_head([large, large]) == ["predicted for h100, not run", "3.41B parameters", "torch 2.13.0"]
    assert "parameters" not in " ".join(prediction_head([small, large]))
    assert "parameters" not in " ".join(prediction_head([predicted_result(prediction(parameters=0))]))


def test_no_number_is_parted_from_its_unit_at_the_end_of_a_line() -> None:
    worse = predicted_result(grown(fit=fit()), predicted_baseline())
    for width in range(80, 120):
        lines = [line.text.split() for line in prediction_table([worse], width)]
        assert {line[0] for line in lines} & {"GiB", "KiB", "TFLOP,", "GiB,", "KiB,"} == set()


def test_what_many_cases_say_alike_stands_once_below_the_table(snapshot: SnapshotAssertion) -> None:
    shorter = prediction(saved=[saved("blocks.*.attention", [1], 8 * GIB)], snapshot="b.pickle")
    other = prediction(saved=[saved("head.*", [1], 16 * GIB)], layers={"head": 2}, estimate_from="3 cases")
    results = [
        predicted_result(shorter, case="t.py::test_b"),
        predicted_result(prediction(estimate_from="3 cases", snapshot="a.pickle"), case="t.py::test_a"),
        predicted_result(other, case="t.py::test_c"),
    ]
    assert [prediction_notes(results), prediction_notes(results[:1])] == snapshot


def test_measured_predicted_and_compiled_cases_stand_in_one_summary_each_in_a_table_of_its_own(
    snapshot: SnapshotAssertion,
) -> None:
    skipped = Result(case="t.py::test_b", judgement=Judgement(verdict=Verdict.SKIPPED, reasons=["no room"]))
    run = document(
        predicted_result(grown(fit=fit()), predicted_baseline(), failure="needs more"),
        predicted_result(prediction(gpu="l4"), case="t.py::test_other"),
        result(),
        skipped,
        exitstatus=1,
    )
    assert [line.text for line in summary(run)] == snapshot
    every = [line.text for line in summary(run, view=View(every=True))]
    assert next(text for text in every if text.startswith("b ")).endswith("skipped: no room")
    assert "baselines" not in "".join(line.text for line in summary(document(run.results[0], baselines=None)))


def test_a_case_that_came_to_nothing_stands_in_the_table_of_the_gpu_it_was_to_be_predicted_for(
    snapshot: SnapshotAssertion,
) -> None:
    failed = Judgement(verdict=Verdict.FAILED, reasons=["its process was ended by SIGSEGV"])
    short = Judgement(verdict=Verdict.OOM, reasons=["out of memory on h100: Tried to allocate 200.00 GiB."])
    late = Judgement(verdict=Verdict.SKIPPED, reasons=["tracing took longer"])
    run = document(
        predicted_result(prediction()),
        Result(case="t.py::test_crash", judgement=failed, place="h100"),
        Result(case="t.py::test_large", judgement=short, place="h100"),
        Result(case="t.py::test_late", judgement=late, place="h100"),
        exitstatus=1,
    )
    shown = [line.text for line in summary(run)]
    assert shown == snapshot
    every = [line.text for line in summary(run, view=View(every=True))]
    assert next(text for text in every if text.startswith("late")).endswith("skipped")
    assert "crash" in markdown(run)


def test_a_dry_run_of_which_nothing_came_is_called_one(snapshot: SnapshotAssertion) -> None:
    failed = Judgement(verdict=Verdict.FAILED, reasons=["set-up failed"])
    run = document(Result(case="t.py::test_it", judgement=failed, place="l4-dry-run"), exitstatus=1)
    assert [line.text for line in summary(run)] == snapshot


def test_markdown_has_a_table_of_predictions_with_regressions_first_and_failures_to_unfold(
    snapshot: SnapshotAssertion,
) -> None:
    run = document(
        predicted_result(prediction(notes=["extrapolated"]), case="t.py::test_new[x]"),
        predicted_result(grown(), predicted_baseline(), failure="needs more"),
    )
    assert markdown(run) == snapshot


def test_the_only_prediction_of_a_run_is_told_in_full_and_of_several_none_is(snapshot: SnapshotAssertion) -> None:
    one, two = predicted_result(case="t.py::test_a"), predicted_result(case="t.py::test_b")
    assert [line.text for line in summary(document(one, result()))] == snapshot
    assert "saved for backward" not in "".join(line.text for line in summary(document(one, two)))
    assert markdown(document(one)) == snapshot
    assert "in full" not in markdown(document(one, two))


def test_nothing_predicted_stands_beside_measured_numbers() -> None:
    asked: dict[str, Any] = {"parameters": {"impl": "a"}, "side_by_side": "impl", "study": "impls"}
    results = [
        predicted_result(case="t.py::test_x[a]", **asked),
        predicted_result(case="t.py::test_x[b]", **{**asked, "parameters": {"impl": "b"}}),
    ]
    assert side_by_side(results) == []
    assert studies(results) == []


def failing(*before: PredictedBaseline, policy: Policy | None = None, **changes: Any) -> Result:
    """A case that needs more than its baseline."""
    (baseline,) = before or (predicted_baseline(),)
    return predicted_result(grown(**changes), baseline, policy=policy or Policy())


FAILURES: dict[str, Result] = {
    "a failure": failing(fit=fit(), roofline_ns=1.5e9),
    "it no longer fits": failing(fit=fit(room_bytes=88 * GIB)),
    "it did not fit before": failing(fit=fit(room_bytes=86 * GIB)),
    "the commit and the reason of the baseline": failing(
        predicted_baseline(recorded="2026-11-21T10:00:00Z", commit="1a2b3c4", reason="longer contexts")
    ),
    "no time is known": failing(predicted_baseline(prediction(roofline_ns=None))),
    "slack, and counts that are not gated": failing(policy=Policy(memory_threshold=0.01, gate_counts=False)),
    "strict checking of another PyTorch": predicted_result(prediction(torch="2.14.0"), predicted_baseline()),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_shows_before_and_now_what_grew_and_how_to_accept_it(name: str, snapshot: SnapshotAssertion) -> None:
    assert explain_prediction(FAILURES[name], "pytest t.py --perf-predict --perf-update") == snapshot


_FITTING = prediction(
    at_peak=USUAL.at_peak[1:4], saved=[], fit=fit(**MODEST, largest={"batch_size": 12, "context_length": 4096})
)
_MORE = prediction(costs=[*USUAL.costs, cost("head", "aten::add", 1, bytes_moved=0)])
TABLES: dict[str, list[Result]] = {
    "what a case needs, what dominates it and where it fits": [
        predicted_result(prediction(fit=fit()), saved=True),
        predicted_result(_FITTING, predicted_baseline(_FITTING), "t.py::test_forward[2.7B-1024-fp32]"),
        predicted_result(
            prediction(at_peak=USUAL.at_peak[:-1]),
            predicted_baseline(),
            "t.py::test_step[2.7B-4096-bf16-of-a-long-name-indeed]",
        ),
    ],
    "no rates and no known room": [predicted_result(prediction(gpu="cpu", bound_ns=None, roofline_ns=None))],
    "a note of many cases stands once": [
        predicted_result(prediction(notes=["extrapolated", "autotuned kernels count as one"])),
        predicted_result(prediction(notes=["extrapolated"])),
    ],
    "a worse case": [predicted_result(grown(), predicted_baseline())],
    "what is not gated": [predicted_result(_MORE, predicted_baseline(), policy=Policy(gate_counts=False))],
}


@pytest.mark.parametrize("name", TABLES)
def test_a_whole_table_reads_well(name: str, snapshot: SnapshotAssertion) -> None:
    assert text_of(*TABLES[name]) == snapshot
