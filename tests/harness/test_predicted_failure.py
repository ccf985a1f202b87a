"""What a predicted case says that fails: before and now, what grew, whether it still fits, what to do."""

from __future__ import annotations

from perflab.predicted.report.failure import explain_prediction
from perflab.results.records import Policy
from tests.harness.make import GIB, fit, grown, predicted_baseline, predicted_result, prediction


def test_a_failure_shows_before_and_now_what_grew_and_how_to_accept_it() -> None:
    failing = predicted_result(grown(fit=fit(), roofline_ns=1.5e9), predicted_baseline())
    assert (
        explain_prediction(failing, "pytest t.py --perf-predict --perf-update")
        == """\
step[2.7B-1024-fp32] needs more on h100 than its baseline, as predicted:
  peak memory, FLOPs, bytes moved, operators
                        before         now       change          limit
peak memory           87.0 GiB    88.2 GiB    +1.25 GiB   +1.4%  exact  failed
FLOPs               96.0 TFLOP  98.0 TFLOP  +2.00 TFLOP   +2.1%  exact  failed
bytes moved            129 KiB     161 KiB    +32.0 KiB  +24.8%  exact  failed
operators                  129         161          +32  +24.8%  exact  failed
saved for backward    32.0 GiB    32.0 GiB         same          exact
roofline time           1.40 s      1.50 s      +100 ms   +7.1%   none
what grew:
- blocks.*.attention.q, forward: 32 more aten::bmm, +2.00 TFLOP, +32.0 KiB moved
  (model.py:40)
- blocks.* keeps 32 more tensors at the peak: temporaries of aten::mul,
  +1.25 GiB (model.py:45)
does not fit h100, which has 79.0 GiB
would fit with checkpointing (61.0 GiB); not with bf16 (80.0 GiB)
h100 takes batch_size 3 or context_length 896 · fits only h200, b200
checkpoint first: blocks.*.attention (model.py:42), frees up to 31.0 GiB of
  88.2 GiB
if intended: pytest t.py --perf-predict --perf-update"""
    )


def test_a_case_that_did_fit_no_longer_fits() -> None:
    def said(room_bytes: int) -> str:
        now = grown(fit=fit(room_bytes=room_bytes))
        return explain_prediction(predicted_result(now, predicted_baseline()), None)

    assert "\nno longer fits h100, which has 88.0 GiB\n" in said(88 * GIB)
    assert "\ndoes not fit h100, which has 86.0 GiB\n" in said(86 * GIB)


def test_a_failure_names_the_commit_and_the_reason_of_its_baseline() -> None:
    before = predicted_baseline(recorded="2026-11-21T10:00:00Z", commit="1a2b3c4", reason="longer contexts")
    lines = explain_prediction(predicted_result(grown(), before), None).splitlines()
    assert "its baseline was saved 2026-11-21 at 1a2b3c4: longer contexts" in lines
    assert "baseline was saved" not in explain_prediction(predicted_result(grown(), predicted_baseline()), None)


def test_a_failure_says_nothing_of_time_where_none_is_known() -> None:
    before = predicted_baseline(prediction(roofline_ns=None))
    assert "roofline" not in explain_prediction(predicted_result(grown(), before), None)


def test_a_failures_limits_say_what_slack_there_is_and_what_is_not_gated() -> None:
    policy = Policy(memory_threshold=0.01, gate_counts=False)
    lines = explain_prediction(predicted_result(grown(), predicted_baseline(), policy=policy), None).splitlines()
    assert {line.split("  ")[0]: line.removesuffix("  failed").split()[-1] for line in lines[3:8]} == {
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
step[2.7B-1024-fp32] could not be judged (incomparable), and --perf-check fails
  such cases
why: baseline from another PyTorch: torch 2.13.0 then, 2.14.0 now
if intended: pytest t.py --perf-update-new"""
    )
