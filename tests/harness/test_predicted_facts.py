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
    rank_of,
    time_facts,
)
from perflab.results.predicted import Prediction
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


def alive(keeping_bytes: int, **changes: Any) -> Prediction:
    """A case whose result takes so much where it is still alive."""
    return prediction(keeping_output_bytes=keeping_bytes, **changes)


def reserving(reserved: int, **changes: Any) -> Prediction:
    """A case for which the allocator reserves so many GiB, of which 88 are allocated."""
    return prediction(reserved_bytes=reserved * GIB, allocated_bytes=88 * GIB, **changes)


def modest(**changes: Any) -> Prediction:
    """A case that fits."""
    return prediction(fit=fit(**changes, **MODEST))


_CARDS = ["a100-80gb", "h100", "h200", "b200"]
FACTS: dict[str, list[str]] = {
    "it does not fit": fit_facts(prediction(fit=fit())),
    "no remedy is enough": fit_facts(prediction(fit=fit(remedies={"bf16": 80 * GIB, "flash attention": 90 * GIB}))),
    "each remedy is enough": fit_facts(prediction(fit=fit(remedies={"bf16": 60 * GIB, "flash attention": 78 * GIB}))),
    "not even the smallest batch": fit_facts(prediction(fit=fit(largest={"batch_size": None, "context_length": 64}))),
    "not even the smallest at all": fit_facts(
        prediction(fit=fit(largest={"batch_size": None, "context_length": None}))
    ),
    "a remedy that takes all of the card": fit_facts(prediction(fit=fit(remedies={"bf16": 79 * GIB}))),
    "a remedy without room for workspaces": fit_facts(
        prediction(fit=fit(remedies={"bf16": 79 * GIB}), workspace_bytes=512)
    ),
    "it fits no card": fit_facts(modest(fits_on=[])),
    "it fits one card": fit_facts(modest(fits_on=["b200"])),
    "it fits three cards": fit_facts(modest(fits_on=["h100", "h200", "b200"])),
    "it fits a card and larger ones": fit_facts(modest(fits_on=["a100-80gb", "h100", "b200", "h200"])),
    "it fits all cards": fit_facts(modest(fits_on=["l4", *_CARDS])),
    "cards whose rooms are not known": fit_facts(modest(fits_on=[*_CARDS, "rtx9090"], rooms={})),
    "no card, the rooms not being known": fit_facts(modest(fits_on=[], rooms={})),
    "no fit was asked for": fit_facts(prediction()),
    "time": time_facts(prediction()),
    "time with an estimate": time_facts(prediction(estimate_ns=2.1e9)),
    "launches take the time": time_facts(prediction(bound_ns=0.03 * MS, roofline_ns=0.1 * MS, launches=1293)),
    "a bound that a cache makes meaningless": time_facts(prediction(bound_ns=1.0, launches=1)),
    "no rates": time_facts(prediction(bound_ns=None, roofline_ns=None, launches=7)),
    "a result that takes noticeably more": memory_facts(alive(88 * GIB)),
    "a result that takes a little more": memory_facts(alive(87 * GIB + GIB // 2)),
    "a result that takes more than the card": memory_facts(alive(88 * GIB, fit=fit(room_bytes=87 * GIB, **MODEST))),
    "reserved memory with few fragments": memory_facts(reserving(92)),
    "reserved memory with many fragments": memory_facts(reserving(100)),
    "reserved memory past the card": memory_facts(reserving(92, fit=fit(room_bytes=90 * GIB, **MODEST))),
}


@pytest.mark.parametrize("name", FACTS)
def test_facts_are_told_in_few_words(name: str, snapshot: SnapshotAssertion) -> None:
    assert FACTS[name] == snapshot


def test_a_prediction_of_before_does_not_say_which_rank_it_is_of() -> None:
    assert rank_of(prediction(world_size=8, rank=3)) == "rank 3"
    assert rank_of(prediction(world_size=8)) == "one rank"
