"""What is said of one prediction, in facts and in full, and what is left out because it says nothing new."""

from __future__ import annotations

from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.predicted.report.detail import prediction_detail
from perflab.predicted.report.facts import (
    compute_bound,
    filled_by,
    first_to_checkpoint,
    fit_facts,
    intensity,
    memory_facts,
    mostly_in,
    time_facts,
)
from tests.harness.make import GIB, MS, cost, fit, part, prediction, saved

MODEST: dict[str, Any] = {"fits": True, "remedies": {}, "largest": {}}


def test_the_peak_is_told_by_what_fills_it_with_where_most_of_the_first_is(snapshot: SnapshotAssertion) -> None:
    gate = part("parameters", "blocks.*.ff.gate", "", 3 * GIB)
    up = part("parameters", "blocks.*.ff.up", "", 3 * GIB)
    q = part("parameters", "blocks.*.attention.q", "", 4 * GIB)
    kept = part("activations", "blocks.*", "aten::add", 2 * GIB)
    crumb = part("inputs", "", "", GIB // 100)
    assert filled_by(prediction(at_peak=[gate, up, q, kept, crumb])) == snapshot
    assert filled_by(prediction(at_peak=[])) is None


def test_most_of_it_is_in_the_innermost_module_with_half_of_it_and_of_one_operator_if_that_has_half_too() -> None:
    assert mostly_in([part("activations", "blocks.*.a", "aten::mm", 3), part("activations", "head", "", 2)]) == (
        "blocks.*.a aten::mm"
    )
    assert mostly_in([part("activations", "blocks.*.a", "x", 1), part("activations", "blocks.*.b", "y", 1)]) == (
        "blocks.*.a x"
    ), "half is enough"
    assert mostly_in([part("activations", f"blocks.*.{name}", name, 1) for name in "abc"]) == "blocks.*"
    assert mostly_in([part("temporaries", "", "aten::cat", 1)]) == "aten::cat"
    assert mostly_in([part("temporaries", name, name, 1) for name in "abc"]) == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {},
            [
                "would fit with checkpointing (61.0 GiB); not with bf16 (80.0 GiB)",
                "h100 takes batch_size 3 or context_length 896",
            ],
        ),
        (
            {"remedies": {"bf16": 80 * GIB, "flash attention": 90 * GIB}},
            ["would not fit with bf16 (80.0 GiB) nor flash attention (90.0 GiB)"],
        ),
        (
            {"remedies": {"bf16": 60 * GIB, "flash attention": 78 * GIB}},
            ["would fit with bf16 (60.0 GiB), flash attention (78.0 GiB)"],
        ),
        (
            {"largest": {"batch_size": None, "context_length": 64}},
            ["h100 takes context_length 64", "not even the smallest batch_size fits h100"],
        ),
        (
            {"largest": {"batch_size": None, "context_length": None}},
            ["not even the smallest batch_size or context_length fits h100"],
        ),
    ],
)
def test_where_a_case_does_not_fit_it_says_what_would(changes: dict[str, Any], said: list[str]) -> None:
    assert set(said) < set(fit_facts(prediction(fit=fit(**changes))))


def test_a_remedy_has_to_leave_room_for_the_libraries_workspaces(snapshot: SnapshotAssertion) -> None:
    exactly = {"bf16": 79 * GIB}
    assert fit_facts(prediction(fit=fit(remedies=exactly)))[0] == "would fit with bf16 (79.0 GiB)"
    assert fit_facts(prediction(fit=fit(remedies=exactly), workspace_bytes=512))[0] == snapshot


@pytest.mark.parametrize(
    ("fits_on", "said"),
    [
        ([], "fits no card: b200 has 177 GiB"),
        (["b200"], "fits only b200"),
        (["h100", "h200", "b200"], "fits only h100, h200, b200"),
        (["a100-80gb", "h100", "b200", "h200"], "fits a100-80gb and larger"),
        (["l4", "a100-80gb", "h100", "h200", "b200"], "fits all 5 cards"),
    ],
)
def test_the_cards_that_it_fits_on_are_told_in_few_words(fits_on: list[str], said: str) -> None:
    assert fit_facts(prediction(fit=fit(fits_on=fits_on, **MODEST))) == [said]


def test_where_the_rooms_of_other_cards_are_not_known_some_are_named(snapshot: SnapshotAssertion) -> None:
    names = ["a100-80gb", "h100", "h200", "b200", "rtx9090"]
    facts = fit_facts(prediction(fit=fit(fits_on=names, rooms={}, **MODEST)))
    assert facts == snapshot
    assert fit_facts(prediction(fit=fit(fits_on=[], rooms={}, **MODEST))) == ["fits no card"]
    assert fit_facts(prediction()) == []


def test_time_is_told_as_the_bound_beside_the_roofline_what_binds_it_and_launches() -> None:
    said = ["at least 1.20 s", "85% compute-bound, 727 M FLOP/B", "140 launches"]
    assert time_facts(prediction()) == said
    assert time_facts(prediction(estimate_ns=2.1e9)) == ["estimate 2.10 s", *said]


def test_a_bound_that_a_cache_makes_meaningless_is_not_told_and_launches_are_where_they_are_the_time(
    snapshot: SnapshotAssertion,
) -> None:
    tiny = prediction(bound_ns=0.03 * MS, roofline_ns=0.1 * MS, launches=1293)
    assert time_facts(tiny)[1:] == snapshot
    assert not any("at least" in fact for fact in time_facts(tiny))
    assert not any("at least" in fact for fact in time_facts(prediction(bound_ns=1.0, launches=1)))
    assert time_facts(prediction(bound_ns=None, roofline_ns=None, launches=7))[-1] == "7 launches"


def test_products_are_compute_bound_where_they_take_longer_than_their_bytes_would() -> None:
    copying = cost("", "aten::add", 1, bytes_moved=1000, roofline_ns=500.0)
    computing = cost("", "aten::mm", 1, flops=9, bytes_moved=100, roofline_ns=1500.0)
    streaming = cost("", "aten::mv", 1, flops=9, bytes_moved=4000, roofline_ns=2000.0)
    assert compute_bound(prediction(costs=[copying, computing])) == pytest.approx(0.75)
    assert compute_bound(prediction(costs=[copying, computing, streaming])) == pytest.approx(0.375)
    assert "62% memory-bound, 0.0 FLOP/B" in time_facts(prediction(costs=[copying, computing, streaming]))
    assert time_facts(prediction(costs=[copying]))[1] == "100% memory-bound"
    assert compute_bound(prediction(costs=[computing])) is None, "nothing tells the bandwidth"
    assert compute_bound(prediction(costs=[cost("", "aten::add", 1)])) is None, "a GPU without rates"


def test_intensity_has_as_many_digits_as_are_worth_reading() -> None:
    assert [intensity(flops, 10) for flops in (0, 42, 99, 100, 12_345, 123_456)] == [
        "–",
        "4.2",
        "9.9",
        "10",
        "1,234",
        "12.3 k",
    ]
    assert intensity(1, 0) == "–"


def test_a_result_that_is_still_alive_is_advice_where_it_takes_noticeably_more(snapshot: SnapshotAssertion) -> None:
    def told(keeping_bytes: int, **changes: Any) -> list[str]:
        return memory_facts(prediction(keeping_output_bytes=keeping_bytes, **changes))

    assert told(88 * GIB) == snapshot
    assert told(87 * GIB + GIB // 2) == []
    roomy = fit(room_bytes=87 * GIB, **MODEST)
    assert told(88 * GIB, fit=roomy) == snapshot


def test_reserved_memory_is_told_where_much_of_it_is_fragments_or_it_is_past_the_card(
    snapshot: SnapshotAssertion,
) -> None:
    def told(reserved: int, allocated: int = 88, **changes: Any) -> list[str]:
        return memory_facts(prediction(reserved_bytes=reserved * GIB, allocated_bytes=allocated * GIB, **changes))

    assert told(92) == []
    assert told(100) == snapshot
    assert told(92, fit=fit(room_bytes=90 * GIB, **MODEST)) == snapshot


def test_what_to_checkpoint_first_is_told_where_memory_is_short_or_mostly_activations() -> None:
    def told(**changes: Any) -> bool:
        return first_to_checkpoint(prediction(**changes)) is not None

    no_activations = {"at_peak": prediction().at_peak[1:]}
    assert told()
    assert told(fit=fit(), **no_activations)
    assert not told(fit=fit(**MODEST), **no_activations)
    assert not told(fit=fit(), saved=[])
    assert not told(fit=fit(), saved=[saved("blocks.*", [2560], 0)]), "parameters that are saved are there anyway"
    assert not told(saved=[saved("head", [2560], GIB)]), "what is no layer is there again when it is run again"


def test_to_checkpoint_is_the_innermost_module_of_layers_that_keeps_half_of_everything() -> None:
    rows = [
        saved("blocks.*.ff", [1], 4 * GIB, line="model.py:7"),
        saved("blocks.*.ff.down", [1], 2 * GIB, line="model.py:8"),
        saved("blocks.*.attention", [1], 3 * GIB),
        saved("", [1], GIB),
    ]
    found = first_to_checkpoint(prediction(saved=rows))
    assert found is not None
    assert (found.module, found.line, found.frees_bytes) == ("blocks.*.ff", "model.py:7", 6 * GIB * 31 // 32)
    assert first_to_checkpoint(prediction(saved=[*rows, saved("", [1], 20 * GIB)])) is None


def test_one_prediction_in_full(snapshot: SnapshotAssertion) -> None:
    product: dict[str, Any] = {"flops": 32 * 10**9, "bytes_moved": GIB, "roofline_ns": 2.0e6}
    twice = {name: 2 * amount for name, amount in product.items()}
    now = prediction(
        fit=fit(),
        held_bytes=36 * GIB,
        keeping_output_bytes=88 * GIB,
        allocated_bytes=89 * GIB,
        workspace_bytes=64 * 2**20,
        reserved_bytes=92 * GIB,
        traced_layers=[3, 4],
        costs=[
            cost("blocks.*.attention.q", "aten::mm", **product),
            cost("blocks.*.attention.q", "aten::mm", 64, phase="backward", **twice),
            cost("", "aten::_foreach_add_", 1, bytes_moved=4 * GIB, roofline_ns=2.0e6, phase="optimizer"),
        ],
        roofline_ns=8.0e6,
    )
    assert "\n".join(prediction_detail(now)) == snapshot


def test_the_largest_ten_rows_are_told_and_what_the_others_come_to(snapshot: SnapshotAssertion) -> None:
    now = prediction(
        at_peak=[part("activations", f"part{n}", "aten::mm", (20 - n) * GIB) for n in range(12)],
        saved=[saved(f"part{n}", [n + 1], (20 - n) * GIB) for n in range(11)],
        costs=[cost(f"part{n}", "aten::mm", 1, flops=10, roofline_ns=float(20 - n)) for n in range(13)],
    )
    assert prediction_detail(now) == snapshot


def test_a_forward_pass_has_no_columns_of_phases_and_no_table_of_what_is_kept() -> None:
    now = prediction(costs=[cost("", "aten::mm", 1, phase=""), cost("a", "aten::add", 1, phase="")], saved=[])
    text = "\n".join(prediction_detail(now))
    assert "fwd" not in text
    assert "saved for backward" not in text
    assert "time" in text


def test_no_line_of_it_is_wider_than_80_columns_whatever_the_names() -> None:
    long = "encoder.stages.*.residual.attention.projection_of_queries"
    operator = "aten::_scaled_dot_product_efficient_attention_backward"
    now = prediction(
        at_peak=[part("optimizer state", long, operator, GIB, 4, "perflab/lab/models/transformer.py:203")],
        saved=[saved(long, [4, 32, 1024, 1024], GIB, operator=operator, line="perflab/lab/attention/naive.py:45")],
        costs=[
            cost(long, operator, 123_456, flops=10**15, bytes_moved=GIB, roofline_ns=1.0, phase=phase)
            for phase in ("forward", "backward")
        ],
        fit=fit(fits_on=["l4", "a100-80gb", "h100", "h200", "b200"]),
    )
    assert max(len(line) for line in prediction_detail(now)) <= 80
