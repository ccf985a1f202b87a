"""What is shown of predicted cases: the table, a failing case, and where they stand in a run."""

from __future__ import annotations

from typing import Any

import pytest

from perflab.predictions import Prediction
from perflab.records import Judgement, Policy, Result, Verdict
from perflab.report.markdown import markdown
from perflab.report.prediction_failure import explain_prediction
from perflab.report.predictions import prediction_table
from perflab.report.side_by_side import side_by_side
from perflab.report.studies import studies
from perflab.report.summary import summary
from tests.harness.make import (
    GIB,
    cost,
    document,
    fit,
    part,
    predicted_baseline,
    predicted_result,
    prediction,
    result,
    saved,
)

USUAL = prediction()
MODEST: dict[str, Any] = {"fits": True, "fits_on": ["a100-80gb", "h100", "h200"], "remedies": {}}


def grown(**changes: Any) -> Prediction:
    """A tensor more in each block, and a product more."""
    return prediction(
        at_peak=[*USUAL.at_peak, part("temporaries", "blocks.*", "aten::mul", 5 * GIB // 4, 32, "model.py:45")],
        costs=[*USUAL.costs, cost("blocks.*.attention.q", "aten::bmm", flops=2 * 10**12)],
        **changes,
    )


def text_of(*results: Result) -> str:
    return "\n".join(line.text for line in prediction_table(results))


def details(now: Prediction) -> list[str]:
    """What stands below a case's line."""
    return text_of(predicted_result(now)).splitlines()[2:]


def test_the_table_says_what_a_case_needs_what_dominates_it_and_where_it_fits() -> None:
    modest = prediction(
        at_peak=USUAL.at_peak[1:4], saved=[], fit=fit(**MODEST, largest={"batch_size": 12, "context_length": 4096})
    )
    leaner = prediction(at_peak=USUAL.at_peak[:-1])
    results = [
        predicted_result(prediction(fit=fit()), saved=True),
        predicted_result(modest, predicted_baseline(modest), "t.py::test_forward[2.7B-1024-fp32]"),
        predicted_result(leaner, predicted_baseline(), "t.py::test_step[2.7B-4096-bf16-of-a-long-name]"),
    ]
    assert (
        text_of(*results)
        == """\
case                          params   FLOPs      peak   time ≥ fits  verdict
step[2.7B-1024-fp32]           3.41B  96.0 T  87.0 GiB   1.20 s   no  new, saved
  peak: activations 32.0 GiB (blocks.*.attention aten::_softmax 32.0 GiB),
    optimizer state 24.0 GiB, parameters 12.0 GiB, other 19.0 GiB
  would fit with checkpointing (61.0 GiB) · fits h200, b200
    largest batch_size 3, context_length 896
  checkpoint first: blocks.*.attention (4, 32, 1024, 1024) float32 x32 32.0 GiB,
    model.py:42
forward[2.7B-1024-fp32]        3.41B  96.0 T  48.0 GiB   1.20 s  yes  ok
  peak: optimizer state 24.0 GiB (blocks.*.attention.q 24.0 GiB),
    parameters 12.0 GiB, gradients 12.0 GiB
  fits a100-80gb, h100, h200 · largest batch_size 12, context_length 4096
step[2.7B…16-of-a-long-name]   3.41B  96.0 T  80.0 GiB   1.20 s    –  improved
  peak memory -7.00 GiB
  peak: activations 32.0 GiB (blocks.*.attention aten::_softmax 32.0 GiB),
    optimizer state 24.0 GiB, parameters 12.0 GiB, gradients 12.0 GiB
  checkpoint first: blocks.*.attention (4, 32, 1024, 1024) float32 x32 32.0 GiB,
    model.py:42"""
    )


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


def test_a_case_without_rates_has_no_time_and_one_of_no_known_room_no_fit() -> None:
    (head, line, *_) = text_of(predicted_result(prediction(gpu="cpu", bound_ns=None))).splitlines()
    assert head == "case                  params   FLOPs      peak  verdict"
    assert line == "step[2.7B-1024-fp32]   3.41B  96.0 T  87.0 GiB  new"


def test_no_number_is_parted_from_its_unit_at_the_end_of_a_line() -> None:
    worse = predicted_result(grown(fit=fit()), predicted_baseline())
    for width in range(80, 120):
        lines = [line.text.split() for line in prediction_table([worse], width)]
        assert {line[0] for line in lines} & {"GiB", "KiB", "TFLOP,", "GiB,", "KiB,"} == set()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"remedies": {}}, ["fits h200, b200 · largest batch_size 3, context_length 896"]),
        ({"remedies": {"bf16": 80 * GIB}}, ["would not fit with bf16 (80.0 GiB) · fits h200, b200"]),
        (
            {"remedies": {"bf16": 60 * GIB, "flash attention": 79 * GIB}, "largest": {}},
            ["would fit with bf16 (60.0 GiB) or flash attention (79.0 GiB)", "  fits h200, b200"],
        ),
        (
            {"remedies": {}, "largest": {"batch_size": None, "context_length": None}, "fits_on": []},
            ["fits no GPU that is known here · not even the smallest batch_size fits"],
        ),
    ],
)
def test_where_a_case_does_not_fit_it_says_what_would(changes: dict[str, Any], said: list[str]) -> None:
    lines = [line[2:] for line in details(prediction(fit=fit(**changes)))]
    assert [line for line in lines if line in said] == said


def test_what_to_checkpoint_first_is_told_where_memory_is_short_or_mostly_activations() -> None:
    def told(**changes: Any) -> bool:
        return any("checkpoint first" in line for line in details(prediction(**changes)))

    no_activations = {"at_peak": USUAL.at_peak[1:]}
    assert told()
    assert told(fit=fit(), **no_activations)
    assert not told(fit=fit(**MODEST), **no_activations)
    assert not told(fit=fit(), saved=[])
    assert not told(fit=fit(), saved=[saved("blocks.*", [2560], 0)]), "parameters that are saved are there anyway"


def test_estimates_are_called_that_and_stand_apart_from_the_bound() -> None:
    now = prediction(
        roofline_ns=1.4e9,
        estimate_ns=2.1e9,
        estimate_from="57% of the roofline in 3 cases",
        keeping_output_bytes=91 * GIB,
        reserved_bytes=92 * GIB,
    )
    assert details(now)[-3:] == [
        "  roofline 1.40 s · estimate 2.10 s, 57% of the roofline in 3 cases",
        "    91.0 GiB while the result of the call before is alive",
        "    about 92.0 GiB reserved",
    ]


def test_a_note_of_many_cases_stands_once_below_the_table() -> None:
    both, one = "extrapolated from 3 and 4 layers", "autotuned kernels count as one"
    table = text_of(predicted_result(prediction(notes=[both, one])), predicted_result(prediction(notes=[both])))
    assert table.splitlines()[-2:] == [f"note: {both}", f"note (1 of 2 cases): {one}"]


def test_a_worse_case_names_what_grew_before_all_else_and_what_is_not_gated_too() -> None:
    lines = text_of(predicted_result(grown(), predicted_baseline())).splitlines()
    assert lines[2:8] == [
        "  peak memory +1.25 GiB · FLOPs +2.00 TFLOP · bytes moved +32.0 KiB",
        "    operators +32",
        "  blocks.* keeps 32 more tensors at the peak: temporaries of aten::mul,",
        "    +1.25 GiB (model.py:45)",
        "  blocks.*.attention.q, forward: 32 more aten::bmm, +2.00 TFLOP, +32.0 KiB moved",
        "    (model.py:40)",
    ]
    more = prediction(costs=[*USUAL.costs, cost("head", "aten::add", 1, bytes_moved=0)])
    shown = text_of(predicted_result(more, predicted_baseline(), policy=Policy(gate_counts=False)))
    assert "  operators +1\n" in shown


def test_a_failure_shows_before_and_now_what_grew_and_how_to_accept_it() -> None:
    failing = predicted_result(grown(fit=fit()), predicted_baseline())
    assert (
        explain_prediction(failing, "pytest t.py --perf-predict --perf-update")
        == """\
step[2.7B-1024-fp32] needs more on h100 than its baseline, as predicted: peak
  memory, FLOPs, bytes moved, operators
                        before         now       change  limit
peak memory           87.0 GiB    88.2 GiB    +1.25 GiB  exact
saved for backward    32.0 GiB    32.0 GiB         same  exact
FLOPs               96.0 TFLOP  98.0 TFLOP  +2.00 TFLOP  exact
bytes moved            129 KiB     161 KiB    +32.0 KiB  exact
operators                  129         161          +32  exact
what grew:
- blocks.* keeps 32 more tensors at the peak: temporaries of aten::mul,
  +1.25 GiB (model.py:45)
- blocks.*.attention.q, forward: 32 more aten::bmm, +2.00 TFLOP, +32.0 KiB moved
  (model.py:40)
does not fit h100, which has 79.0 GiB for it
would fit with checkpointing (61.0 GiB) · fits h200, b200
largest batch_size 3, context_length 896
if this is meant: pytest t.py --perf-predict --perf-update"""
    )


def test_a_failures_limits_say_what_slack_there_is_and_what_is_not_gated() -> None:
    policy = Policy(memory_threshold=0.01, gate_counts=False)
    lines = explain_prediction(predicted_result(grown(), predicted_baseline(), policy=policy), None).splitlines()
    limits = {line.split("  ")[0]: line.split()[-1] for line in lines[3:8]}
    assert limits == {
        "peak memory": "+1%",
        "saved for backward": "+1%",
        "FLOPs": "exact",
        "bytes moved": "none",
        "operators": "none",
    }


def test_a_case_that_strict_checking_fails_says_why_it_could_not_be_judged() -> None:
    failing = predicted_result(prediction(torch="2.14.0"), predicted_baseline())
    assert (
        explain_prediction(failing, "pytest t.py --perf-update-new")
        == """\
step[2.7B-1024-fp32] could not be judged (incomparable), and --perf-check=strict
  wants it to be
why: baseline from another PyTorch: torch 2.13.0 then, 2.14.0 now
if this is meant: pytest t.py --perf-update-new"""
    )


def test_measured_predicted_and_compiled_cases_stand_in_one_summary_each_in_a_table_of_its_own() -> None:
    skipped = Result(
        case="t.py::test_b", record=None, judgement=Judgement(verdict=Verdict.SKIPPED, reasons=["no room"])
    )
    run = document(
        predicted_result(grown(fit=fit()), predicted_baseline(), failure="needs more"),
        predicted_result(prediction(gpu="l4"), case="t.py::test_other"),
        result(),
        skipped,
        exitstatus=1,
    )
    shown = [line.text for line in summary(run)]
    heads = [text for text in shown if text.startswith(("cpu: ", "case", "predicted for", "baselines/"))]
    assert [head.split("  ")[0] for head in heads] == [
        "cpu: AMD EPYC (family 25, model 17), 2 cores · torch 2.13.0",
        "baselines/cpu-amd-epyc-25-17-2c-torch2.13/",
        "case",
        "predicted for h100 (79.0 GiB) · nothing was run · torch 2.13.0",
        "baselines/predicted-h100/",
        "case",
        "predicted for l4 · nothing was run · torch 2.13.0 · baselines/predicted-l4/",
        "case",
    ]
    assert shown[4] == "b                     skipped: no room"
    assert shown[-1] == "1 ok · 1 regressed · 1 new · 1 skipped   (save: --perf-update-new)"
    assert "baselines" not in "".join(line.text for line in summary(document(run.results[0], baselines=None)))


def test_markdown_has_a_table_of_predictions_with_regressions_first_and_failures_to_unfold() -> None:
    run = document(
        predicted_result(prediction(notes=["extrapolated"]), case="t.py::test_new[x]"),
        predicted_result(grown(), predicted_baseline(), failure="needs more"),
    )
    text = markdown(run)
    assert "predicted for h100 · nothing was run · torch 2.13.0 · baselines/predicted-h100/" in text
    lines = text.splitlines()
    head = lines.index("| case | params | FLOPs | peak | time ≥ | verdict |")
    assert lines[head + 2].startswith(
        "| `step[2.7B-1024-fp32]` | 3.41B | 98.0 T | 88.2 GiB | 1.20 s | **REGRESSED**<br>"
    )
    assert lines[head + 3].startswith(
        "| `new[x]` | 3.41B | 96.0 T | 87.0 GiB | 1.20 s | new<br>peak: activations 32.0 GiB"
    )
    assert "note (1 of 2 cases): extrapolated" in text
    assert "<details><summary>step[2.7B-1024-fp32]: regressed</summary>" in text


def test_nothing_predicted_stands_beside_measured_numbers() -> None:
    asked: dict[str, Any] = {"parameters": {"impl": "a"}, "side_by_side": "impl", "study": "impls"}
    results = [
        predicted_result(case="t.py::test_x[a]", **asked),
        predicted_result(case="t.py::test_x[b]", **{**asked, "parameters": {"impl": "b"}}),
    ]
    assert side_by_side(results) == []
    assert studies(results) == []
