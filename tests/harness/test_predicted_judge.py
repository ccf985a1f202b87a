"""The judge of predictions: any growth fails and is named; what only moved, or has another name, passes."""

from __future__ import annotations

from typing import Any

import pytest

from perflab.base.data import changed
from perflab.predicted.judge.judge import baseline_of, judge_predicted
from perflab.results.peak import PeakPart
from perflab.results.predicted import Cost, PredictedBaseline, Prediction, SavedTensors
from perflab.results.records import Judgement, Policy, Verdict
from tests.harness.make import GIB, cost, part, predicted_baseline, prediction, saved

USUAL = prediction()


def judged(now: Prediction, before: Prediction = USUAL, policy: Policy | None = None) -> Judgement:
    return judge_predicted(now, baseline_of(before, recorded="2026-11-21"), policy or Policy())


def with_more(*added: PeakPart | Cost | SavedTensors, **changes: Any) -> Prediction:
    """The usual prediction and these rows."""
    return prediction(
        at_peak=[*USUAL.at_peak, *(one for one in added if isinstance(one, PeakPart))],
        costs=[*USUAL.costs, *(one for one in added if isinstance(one, Cost))],
        saved=[*USUAL.saved, *(one for one in added if isinstance(one, SavedTensors))],
        **changes,
    )


def test_the_same_is_ok_and_says_nothing() -> None:
    judgement = judged(prediction())
    assert (judgement.verdict, judgement.worse, judgement.reasons) == (Verdict.OK, [], [])
    assert judgement.memory is not None
    assert (judgement.memory.before, judgement.memory.now) == (87 * GIB, 87 * GIB)
    assert list(judgement.counts) == ["saved", "flops", "bytes", "operators"]


def test_operators_in_another_order_on_other_lines_or_in_two_rows_are_the_same() -> None:
    moved = prediction(
        at_peak=[changed(one, line="other.py:7") for one in reversed(USUAL.at_peak)],
        costs=[changed(one, line="other.py:7", roofline_ns=3.0) for one in reversed(USUAL.costs)],
        saved=[changed(one, line="other.py:7") for one in USUAL.saved],
    )
    half = changed(USUAL.costs[0], calls=16, flops=16 * 10**12, bytes_moved=16 * 1024)
    split = prediction(costs=[half, *USUAL.costs[1:], changed(half, line="other.py:7")])
    for same in (moved, split):
        assert judged(same).verdict is Verdict.OK
        assert baseline_of(same, recorded="") == baseline_of(USUAL, recorded=""), "not even the file changes"


def test_a_tensor_kept_alive_in_each_block_fails_and_is_named() -> None:
    judgement = judged(with_more(part("temporaries", "blocks.*", "aten::mul", 5 * GIB // 4, 32, "model.py:45")))
    assert (judgement.verdict, judgement.worse) == (Verdict.REGRESSED, ["memory"])
    assert judgement.reasons == [
        "blocks.* keeps 32 more tensors at the peak: temporaries of aten::mul, +1.25 GiB (model.py:45)"
    ]


def test_a_tensor_saved_for_backward_fails_though_the_peak_is_elsewhere_and_its_shape_is_told() -> None:
    more = saved("blocks.*", [4, 1024, 2560], 5 * GIB // 4, operator="aten::mul", line="model.py:45")
    judgement = judged(with_more(more))
    assert (judgement.verdict, judgement.worse) == (Verdict.REGRESSED, ["saved"])
    assert judgement.reasons == [
        "blocks.* saves 32 more tensors for backward: aten::mul (4, 1024, 2560) float32, +1.25 GiB (model.py:45)"
    ]


def test_one_more_product_in_a_module_fails_and_is_named_once_for_all_that_it_costs() -> None:
    product = changed(USUAL.costs[0], calls=64, flops=34 * 10**12, bytes_moved=2 * GIB + 32 * 1024)
    judgement = judged(prediction(costs=[product, *USUAL.costs[1:]]))
    assert (judgement.verdict, judgement.worse) == (Verdict.REGRESSED, ["flops", "bytes", "operators"])
    assert judgement.reasons == [
        "blocks.*.attention.q, forward: 32 more aten::mm, +2.00 TFLOP, +2.00 GiB moved (model.py:41)"
    ]


def test_one_more_operator_fails_and_is_named() -> None:
    judgement = judged(with_more(cost("", "aten::add", 1, phase="", bytes_moved=0, line="train.py:9")))
    assert (judgement.verdict, judgement.worse) == (Verdict.REGRESSED, ["operators"])
    assert judgement.reasons == ["code outside of modules: 1 more aten::add (train.py:9)"]


def test_the_same_operators_on_more_data_are_larger_ones() -> None:
    larger = changed(USUAL.costs[1], bytes_moved=USUAL.costs[1].bytes_moved + 512)
    judgement = judged(prediction(costs=[USUAL.costs[0], larger, *USUAL.costs[2:]]))
    assert judgement.worse == ["bytes"]
    assert judgement.reasons == ["blocks.*.attention, forward: larger aten::_softmax, +512 B moved (model.py:42)"]
    grown = changed(USUAL.at_peak[0], size_bytes=USUAL.at_peak[0].size_bytes + 512)
    judgement = judged(prediction(at_peak=[grown, *USUAL.at_peak[1:]]))
    assert judgement.reasons == [
        "blocks.*.attention keeps larger tensors at the peak: activations of aten::_softmax, +512 B (model.py:42)"
    ]


@pytest.mark.parametrize("size_bytes", [1, 512])
def test_there_is_no_slack_unless_memory_is_given_some(size_bytes: int) -> None:
    kept = with_more(part("buffers", "rope", "", size_bytes), saved("rope", [1], size_bytes, 1))
    assert judged(kept).worse == ["memory", "saved"]
    assert judged(kept, policy=Policy(memory_threshold=0.01)).verdict is Verdict.OK
    assert judged(kept, policy=Policy(memory_threshold=0.01)).reasons == []


def test_numbers_past_what_a_float_holds_are_compared_to_the_last_one() -> None:
    huge = [changed(USUAL.costs[0], flops=10**17)]
    more = [changed(USUAL.costs[0], flops=10**17 + 1)]
    assert float(10**17) == float(10**17 + 1)
    assert judged(prediction(costs=more), prediction(costs=huge)).worse == ["flops"]
    assert judged(prediction(costs=huge), prediction(costs=more)).verdict is Verdict.IMPROVED


def test_less_is_improved_and_less_of_one_does_not_make_up_for_more_of_another() -> None:
    assert judged(prediction(at_peak=USUAL.at_peak[:-1])).verdict is Verdict.IMPROVED
    traded = prediction(at_peak=USUAL.at_peak[:-1], costs=[*USUAL.costs, cost("head", "aten::mm", 1, flops=10)])
    assert (judged(traded).verdict, judged(traded).worse) == (Verdict.REGRESSED, ["flops", "bytes", "operators"])


def test_counts_that_are_only_reported_are_shown_and_fail_nothing() -> None:
    policy = Policy(gate_counts=False)
    judgement = judged(with_more(cost("blocks.*", "aten::add", 32)), policy=policy)
    assert (judgement.verdict, judgement.reasons) == (Verdict.OK, [])
    assert (judgement.counts["operators"].now, judgement.counts["operators"].limit) == (161, None)
    assert judged(with_more(cost("head", "aten::mm", 1, flops=10)), policy=policy).worse == ["flops"]
    assert judged(with_more(part("inputs", "", "", 512)), policy=policy).worse == ["memory"]
    fewer = prediction(costs=[changed(USUAL.costs[0], bytes_moved=0), *USUAL.costs[1:]])
    assert judged(fewer, policy=policy).verdict is Verdict.OK, "what is not gated is no improvement either"


def test_without_a_baseline_it_is_new() -> None:
    assert judge_predicted(USUAL, None, Policy()) == Judgement(verdict=Verdict.NEW, reasons=["no baseline yet"])


def test_another_pytorchs_operators_are_not_compared() -> None:
    assert judged(with_more(cost("head", "aten::mm")), prediction(torch="2.12.1")) == Judgement(
        verdict=Verdict.INCOMPARABLE, reasons=["baseline from another PyTorch: torch 2.12.1 then, 2.13.0 now"]
    )


def renamed(one: Prediction, old: str, new: str) -> Prediction:
    return changed(
        one,
        at_peak=[changed(row, module=row.module.replace(old, new)) for row in one.at_peak],
        costs=[changed(row, module=row.module.replace(old, new)) for row in one.costs],
        saved=[changed(row, module=row.module.replace(old, new)) for row in one.saved],
    )


def test_a_module_of_another_name_is_no_regression() -> None:
    assert judged(renamed(USUAL, "attention", "attn")).verdict is Verdict.OK


def test_what_grew_beside_a_module_of_another_name_is_all_that_is_told() -> None:
    product = changed(USUAL.costs[0], calls=33, flops=33 * 10**12)
    more = prediction(costs=[product, *USUAL.costs[1:]], at_peak=[*USUAL.at_peak, part("inputs", "", "", 512)])
    assert judged(renamed(more, "attention", "attn")).reasons == [
        "blocks.*.attn.q, forward: 1 more aten::mm, +1.00 TFLOP (model.py:41)",
        "code outside of modules keeps 1 more tensor at the peak: inputs, +512 B",
    ]


def numbered(one: Prediction) -> Prediction:
    """The same with a row for each of the 32 layers, as where layers are not alike."""

    def of(row: Any, **amounts: int) -> list[Any]:
        if "*" not in row.module:
            return [row]
        each = {name: amount // 32 for name, amount in amounts.items()}
        return [changed(row, module=row.module.replace("*", str(number)), **each) for number in range(32)]

    return changed(
        one,
        layers={},
        at_peak=[new for row in one.at_peak for new in of(row, size_bytes=row.size_bytes, blocks=row.blocks)],
        costs=[
            new for row in one.costs for new in of(row, calls=row.calls, flops=row.flops, bytes_moved=row.bytes_moved)
        ],
        saved=[new for row in one.saved for new in of(row, count=row.count, size_bytes=row.size_bytes)],
    )


KEPT = with_more(
    part("temporaries", "blocks.*", "aten::mul", 5 * GIB // 4, 32, "model.py:45"),
    cost("blocks.*", "aten::mul", 32, bytes_moved=2 * GIB, line="model.py:45"),
)


@pytest.mark.parametrize("then", [USUAL, numbered(USUAL)])
@pytest.mark.parametrize("now", [KEPT, numbered(KEPT)])
def test_layers_with_a_number_each_and_layers_with_a_star_are_the_same_layers(
    then: Prediction, now: Prediction
) -> None:
    assert judged(now, then).reasons == [
        "blocks.* keeps 32 more tensors at the peak: temporaries of aten::mul, +1.25 GiB (model.py:45)",
        "blocks.*, forward: 32 more aten::mul, +2.00 GiB moved (model.py:45)",
    ]


def test_of_numbered_layers_the_one_that_grew_is_named() -> None:
    odd = numbered(USUAL)
    more = changed(odd, costs=[*odd.costs, cost("blocks.9", "aten::mul", 1, line="model.py:45")])
    named = ["blocks.9, forward: 1 more aten::mul, +1.00 KiB moved (model.py:45)"]
    assert judged(more, odd).reasons == judged(more).reasons == named


def test_a_module_put_into_a_sequential_does_not_blame_those_whose_number_it_changes() -> None:
    products = [cost(f"net.{number}", f"aten::{name}") for number, name in enumerate(("mm", "relu", "mm", "sum"))]
    shifted = [
        products[0],
        cost("net.1", "aten::tanh", 1, line="model.py:7"),
        *(changed(one, module=f"net.{number}") for number, one in enumerate(products[1:], start=2)),
    ]
    judgement = judged(prediction(costs=shifted), prediction(costs=products))
    assert judgement.reasons == ["net.1, forward: 1 more aten::tanh, +1.00 KiB moved (model.py:7)"]


def test_more_layers_are_counted_where_they_were_numbered_before() -> None:
    (reason,) = judged(for_layers(64), numbered(USUAL)).reasons
    assert reason.startswith("blocks has 64 layers instead of 32: +80.0 GiB at the peak, ")


def test_what_backward_does_for_an_operator_is_told_after_it_however_large() -> None:
    judgement = judged(
        with_more(
            cost("head", "aten::mm", 1, phase="backward", bytes_moved=GIB, line="model.py:60"),
            cost("head", "aten::mul", 1, bytes_moved=512, line="model.py:59"),
            part("temporaries", "head", "aten::mm", GIB, 1),
        )
    )
    assert judgement.reasons[0] == "head, forward: 1 more aten::mul, +512 B moved (model.py:59)"


def test_the_operator_that_was_called_instead_is_told() -> None:
    first, *rest = USUAL.costs
    assert judged(prediction(costs=[changed(first, operator="aten::bmm", calls=64), *rest])).reasons[0] == (
        "blocks.*.attention.q, forward: 64 more aten::bmm instead of 32 aten::mm, +32.0 TFLOP, +32.0 KiB moved "
        "(model.py:41)"
    )


def for_layers(count: int) -> Prediction:
    """The usual model with as many layers; what is outside of them stays."""

    def of(module: str, amount: int) -> int:
        return amount * count // 32 if module.startswith("blocks.*") else amount

    return prediction(
        layers={"blocks": count},
        at_peak=[
            changed(one, size_bytes=of(one.module, one.size_bytes), blocks=of(one.module, one.blocks))
            for one in USUAL.at_peak
        ],
        costs=[
            changed(
                one,
                calls=of(one.module, one.calls),
                flops=of(one.module, one.flops),
                bytes_moved=of(one.module, one.bytes_moved),
            )
            for one in USUAL.costs
        ],
        saved=[
            changed(one, count=of(one.module, one.count), size_bytes=of(one.module, one.size_bytes))
            for one in USUAL.saved
        ],
    )


def test_one_more_layer_is_named_as_that_and_not_row_by_row() -> None:
    judgement = judged(for_layers(33))
    assert judgement.worse == ["memory", "saved", "flops", "bytes", "operators"]
    assert judgement.reasons == [
        "blocks has 33 layers instead of 32: +2.50 GiB at the peak, +1.00 GiB saved for backward, +3.00 TFLOP, "
        "+4.00 KiB moved, +4 operators"
    ]


def test_what_a_model_of_more_layers_does_beyond_that_is_named_too() -> None:
    longer = for_layers(33)
    judgement = judged(changed(longer, costs=[*longer.costs, cost("head", "aten::mul", 1, line="model.py:60")]))
    assert judgement.reasons[1:] == ["head, forward: 1 more aten::mul, +1.00 KiB moved (model.py:60)"]


def test_a_peak_at_another_moment_says_what_is_gone_from_it() -> None:
    elsewhere = [*USUAL.at_peak[1:], part("temporaries", "head", "aten::mm", 33 * GIB, 2, "model.py:70")]
    assert judged(prediction(at_peak=elsewhere)).reasons == [
        "head keeps 2 more tensors at the peak: temporaries of aten::mm, +33.0 GiB (model.py:70)",
        "against that 32.0 GiB less at the peak, most of it blocks.*.attention aten::_softmax",
    ]


def test_of_many_rows_the_largest_are_told_and_the_rest_counted() -> None:
    parts = [part("temporaries", f"layer{i}", "aten::mm", i * GIB) for i in range(1, 9)]
    reasons = judged(with_more(*parts)).reasons
    assert [reason.split()[0] for reason in reasons] == ["layer8", "layer7", "layer6", "layer5", "layer4", "and"]
    assert reasons[-1] == "and 3 more rows like these grew"


def test_growth_that_no_row_explains_fails_all_the_same() -> None:
    before: PredictedBaseline = changed(predicted_baseline(), peak_bytes=80 * GIB)
    judgement = judge_predicted(USUAL, before, Policy())
    assert (judgement.worse, judgement.reasons) == (["memory"], ["the totals grew, but no single row did"])
