"""The judge of predictions: any growth fails and is named; what only moved, or has another name, passes."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

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


def test_two_ranks_are_not_compared_and_rank_0_needs_no_number() -> None:
    of_rank = {rank: prediction(world_size=8, rank=rank) for rank in (None, 0, 7)}
    assert judged(of_rank[0], of_rank[None]).verdict is Verdict.OK
    judgement = judged(of_rank[7], of_rank[0])
    assert (judgement.verdict, judgement.reasons) == (
        Verdict.INCOMPARABLE,
        ["baseline of rank 0 of 8, and this is rank 7 of 8"],
    )


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


def renamed(one: Prediction, old: str, new: str) -> Prediction:
    return changed(
        one,
        at_peak=[changed(row, module=row.module.replace(old, new)) for row in one.at_peak],
        costs=[changed(row, module=row.module.replace(old, new)) for row in one.costs],
        saved=[changed(row, module=row.module.replace(old, new)) for row in one.saved],
    )


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


def test_growth_that_no_row_explains_fails_all_the_same(snapshot: SnapshotAssertion) -> None:
    before: PredictedBaseline = changed(predicted_baseline(), peak_bytes=80 * GIB)
    judgement = judge_predicted(USUAL, before, Policy())
    assert (judgement.worse, judgement.reasons) == snapshot


def first_cost(**changes: Any) -> Prediction:
    """The usual prediction with its first row of costs changed."""
    return prediction(costs=[changed(USUAL.costs[0], **changes), *USUAL.costs[1:]])


_SOFTMAX = changed(USUAL.costs[1], bytes_moved=USUAL.costs[1].bytes_moved + 512)
_AT_PEAK = changed(USUAL.at_peak[0], size_bytes=USUAL.at_peak[0].size_bytes + 512)
_ODD = numbered(USUAL)
_IN_SEQUENCE = [cost(f"net.{number}", f"aten::{name}") for number, name in enumerate(("mm", "relu", "mm", "sum"))]
_SHIFTED = [changed(one, module=f"net.{number}") for number, one in enumerate(_IN_SEQUENCE[1:], start=2)]
_IN_ONE_LAYER = cost("blocks.9", "aten::mul", 1, line="model.py:45")

JUDGED: dict[str, tuple[Prediction, Prediction]] = {
    "a tensor kept alive in each block": (
        with_more(part("temporaries", "blocks.*", "aten::mul", 5 * GIB // 4, 32, "model.py:45")),
        USUAL,
    ),
    "a tensor saved for backward, the peak being elsewhere": (
        with_more(saved("blocks.*", [4, 1024, 2560], 5 * GIB // 4, operator="aten::mul", line="model.py:45")),
        USUAL,
    ),
    "one more product, told once for all that it costs": (
        first_cost(calls=64, flops=34 * 10**12, bytes_moved=2 * GIB + 32 * 1024),
        USUAL,
    ),
    "one more operator": (
        with_more(cost("", "aten::add", 1, phase="", bytes_moved=0, line="train.py:9")),
        USUAL,
    ),
    "an operator on more data": (prediction(costs=[USUAL.costs[0], _SOFTMAX, *USUAL.costs[2:]]), USUAL),
    "larger tensors at the peak": (prediction(at_peak=[_AT_PEAK, *USUAL.at_peak[1:]]), USUAL),
    "less": (prediction(at_peak=USUAL.at_peak[:-1]), USUAL),
    "less of one and more of another": (
        prediction(at_peak=USUAL.at_peak[:-1], costs=[*USUAL.costs, cost("head", "aten::mm", 1, flops=10)]),
        USUAL,
    ),
    "another PyTorch": (with_more(cost("head", "aten::mm")), prediction(torch="2.12.1")),
    "a module of another name": (renamed(USUAL, "attention", "attn"), USUAL),
    "growth beside a module of another name": (
        renamed(
            prediction(
                costs=[changed(USUAL.costs[0], calls=33, flops=33 * 10**12), *USUAL.costs[1:]],
                at_peak=[*USUAL.at_peak, part("inputs", "", "", 512)],
            ),
            "attention",
            "attn",
        ),
        USUAL,
    ),
    "one numbered layer grew": (changed(_ODD, costs=[*_ODD.costs, _IN_ONE_LAYER]), _ODD),
    "one numbered layer grew, all being alike before": (changed(_ODD, costs=[*_ODD.costs, _IN_ONE_LAYER]), USUAL),
    "a module put into a sequential": (
        prediction(costs=[_IN_SEQUENCE[0], cost("net.1", "aten::tanh", 1, line="model.py:7"), *_SHIFTED]),
        prediction(costs=_IN_SEQUENCE),
    ),
    "what backward does comes after its operator, however large": (
        with_more(
            cost("head", "aten::mm", 1, phase="backward", bytes_moved=GIB, line="model.py:60"),
            cost("head", "aten::mul", 1, bytes_moved=512, line="model.py:59"),
            part("temporaries", "head", "aten::mm", GIB, 1),
        ),
        USUAL,
    ),
    "another operator instead": (first_cost(operator="aten::bmm", calls=64), USUAL),
    "one more layer": (for_layers(33), USUAL),
    "one more layer and more": (
        changed(for_layers(33), costs=[*for_layers(33).costs, cost("head", "aten::mul", 1, line="model.py:60")]),
        USUAL,
    ),
    "more layers, which were numbered before": (for_layers(64), numbered(USUAL)),
    "a peak at another moment": (
        prediction(at_peak=[*USUAL.at_peak[1:], part("temporaries", "head", "aten::mm", 33 * GIB, 2, "model.py:70")]),
        USUAL,
    ),
    "many rows": (
        with_more(*(part("temporaries", f"layer{i}", "aten::mm", i * GIB) for i in range(1, 9))),
        USUAL,
    ),
}
for _then in ("star", "number"):
    for _now in ("star", "number"):
        _given = (KEPT if _now == "star" else numbered(KEPT), USUAL if _then == "star" else numbered(USUAL))
        JUDGED[f"layers with a {_then} before and a {_now} now"] = _given


@pytest.mark.parametrize("name", JUDGED)
def test_a_judgement_names_what_grew_and_the_reasons(name: str, snapshot: SnapshotAssertion) -> None:
    judgement = judged(*JUDGED[name])
    assert (str(judgement.verdict), judgement.worse, judgement.reasons) == snapshot
