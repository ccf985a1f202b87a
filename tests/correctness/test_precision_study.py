"""The precision study's own mathematics: sums to the last bit, errors that grow where they must, and findings."""

from __future__ import annotations

import math
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from perflab.lab.models import build_model
from perflab.lab.train import random_tokens
from tests.perf.studies.precision import (
    ADDEND,
    ADDITIONS,
    EXACT_SUMS,
    FORMATS,
    NORMS,
    Pair,
    accumulate,
    dtype_flow,
    has_stalled,
    norm_error,
    published_sums,
)
from tests.perf.studies.precision_findings import (
    OFFSETS,
    growth,
    offset_fact,
    passes,
    precision_findings,
    tell,
    width_fact,
)

pytestmark = pytest.mark.correctness

CPU = torch.device("cpu")
UNIT_ROUNDOFF = {"bf16": 2.0**-8, "fp16": 2.0**-11}
FLOAT16_PAIR = Pair(torch.float16, torch.float16)


def rounded(value: float, dtype: torch.dtype) -> float:
    """To the nearest number of the format, even ones first, by Python alone."""
    if dtype == torch.bfloat16:  # the upper half of a float32
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        upper = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
        return float(struct.unpack("<f", struct.pack("<I", upper << 16))[0])
    code = {torch.float32: "<f", torch.float16: "<e"}[dtype]
    return float(struct.unpack(code, struct.pack(code, value))[0])


def error(norm: str, how: str, precision: str, *, offset: float = 0, width: int = 256) -> float:
    return norm_error(norm, how, FORMATS[precision], offset=offset, width=width, device=CPU)


@pytest.mark.parametrize("pair", EXACT_SUMS, ids=str)
def test_a_sum_is_what_rounding_after_every_addition_gives(pair: Pair, device: torch.device) -> None:
    total, addend = 0.0, rounded(ADDEND, pair.addend)
    for _ in range(ADDITIONS):
        total = rounded(total + addend, pair.accumulator)  # float64 holds the sum of two of them exactly
    assert total == EXACT_SUMS[pair]
    assert accumulate(pair, device).item() == total


def test_our_sums_are_the_published_ones_as_far_as_those_were_written() -> None:
    published = published_sums()
    assert len(published) == 4
    assert all(f"{EXACT_SUMS[pair]:.4f}" == written for pair, written in published.items())


def test_only_bfloat16_stalls() -> None:
    assert [str(pair) for pair in EXACT_SUMS if has_stalled(pair, accumulate(pair, CPU))] == ["bf16+=bf16"]


@pytest.mark.parametrize("precision", FORMATS)
def test_autocast_makes_products_low_and_leaves_parameters_gradients_and_loss(
    precision: str, device: torch.device
) -> None:
    model = build_model("tiny", vocab_size=32, context_length=8, num_layers=1, device=device)
    flow = dtype_flow(model, random_tokens(1, 8, vocab_size=32, device=device), FORMATS[precision])
    assert flow["first_linear"] == flow["logits"] == precision
    assert flow["parameters"] == flow["gradients"] == flow["loss"] == flow["norm"] == "fp32"


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("norm", NORMS)
def test_the_norm_that_is_float32_inside_rounds_its_result_and_nothing_else(norm: str, precision: str) -> None:
    for offset in (0, 10, 1000):
        assert error(norm, "torch", precision, offset=offset) <= 1.01 * UNIT_ROUNDOFF[precision]


@pytest.mark.parametrize("precision", FORMATS)
def test_a_layer_norm_of_rounded_operations_gets_worse_with_the_offset_which_its_mean_is_rounded_at(
    precision: str,
) -> None:
    near, far = (error("LayerNorm", "operations", precision, offset=offset) for offset in (10, 1000))
    assert far > 10 * near


def test_an_rms_norm_subtracts_nothing_and_so_minds_no_offset_until_its_squares_overflow() -> None:
    assert error("RMSNorm", "operations", "bf16", offset=1000) < 3 * UNIT_ROUNDOFF["bf16"]
    assert error("RMSNorm", "operations", "fp16", offset=100) < 3 * UNIT_ROUNDOFF["fp16"]
    assert error("RMSNorm", "operations", "fp16", offset=1000) > 0.5  # 256 squared is beyond float16


@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("norm", NORMS)
def test_a_running_sum_in_the_format_gets_worse_with_the_width(norm: str, precision: str) -> None:
    narrow, wide = (error(norm, "running-sum", precision, offset=1, width=width) for width in (64, 1024))
    assert wide > 3 * narrow
    assert error(norm, "operations", precision, offset=1, width=1024) < wide / 3


def test_a_sum_beyond_float16_is_an_infinite_error() -> None:
    assert error("LayerNorm", "running-sum", "fp16", offset=1000, width=1024) == math.inf


def test_what_the_input_loses_as_it_is_stored_grows_with_the_offset_too() -> None:
    near, far = (error("LayerNorm", "stored", "bf16", offset=offset) for offset in (10, 100))
    assert far > 4 * near


def test_growth_is_the_power_between_noise_and_saturation() -> None:
    errors = {0: 1e-4, 1: 1.5e-4, 10: 1e-3, 100: 1e-2, 1000: 0.9}
    assert growth(errors) == pytest.approx(1.0)
    assert growth({64: 1e-4, 256: 2e-4, 1024: 4e-4}) == pytest.approx(0.5)
    assert growth({0: 1e-4, 1: 1e-4, 10: 1e-4}) is None
    assert growth({1: 1e-6, 10: 9e-2}) is None  # a cliff is no power


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ({0: 0.001, 10: 0.003}, "at most 0.3%"),
        ({0: 1e-4, 10: 1e-3, 100: 1e-2, 1000: 0.1}, "over 1% from an offset of about 100, growing like offset^1.00"),
        ({0: 0.02, 10: 0.5}, "over 1% at every offset"),
        ({0: 1e-4, 100: 1e-4, 1000: 0.8}, "over 1% between offset 100 and 1000"),
        ({0: 1e-4, 1: 0.5}, "over 1% between offset 0 and 1"),
        ({0: 0.0, 1: 0.0, 10: 0.02}, "over 1% between offset 1 and 10"),
        ({0: 1e-4, 10: 1e-4, 100: math.inf}, "over 1% between offset 10 and 100, not finite from 100 on"),
    ],
)
def test_errors_by_offset_in_words(errors: dict[int, float], said: str) -> None:
    assert tell(errors, "offset") == said


def test_where_an_error_passes_its_limit_lies_between_two_places() -> None:
    assert passes({64: 0.005, 256: 0.02, 1024: 0.08}, "width") == "from a width of about 130"


def noted(*cases: dict[str, Any]) -> list[Any]:
    """Results with these facts, one of a case that did not run, and one of a case that noted nothing."""
    records = [None, SimpleNamespace(facts={}), *(SimpleNamespace(facts=facts) for facts in cases)]
    return [SimpleNamespace(record=record) for record in records]


def test_findings_on_sums_part_the_addends_rounding_from_the_sums(snapshot: SnapshotAssertion) -> None:
    half = {"accumulator": "fp16", "addend": "fp16", "cast": False, "stalled": False}
    wide = {**half, "accumulator": "fp32"}
    cases = noted(
        {**half, "sum": "9.953125", "error_share": -0.0046875, "addend_error_share": 0.00021},
        {**wide, "sum": "10.002", "error_share": 0.00021, "addend_error_share": 0.00021},
        {**wide, "sum": "10.002", "error_share": 0.00021, "addend_error_share": 0.00021, "cast": True},
        {**half, "sum": "4.0", "error_share": -0.6, "addend_error_share": 0.001, "stalled": True},
    )
    assert precision_findings("precision: sums", cases) == snapshot


def test_findings_on_autocast_say_which_tensors_are_low_which_not_and_which_depend(snapshot: SnapshotAssertion) -> None:
    bf16 = {"autocast": "bf16", "loss": "fp32", "first_linear": "bf16", "low_norm": "bf16"}
    assert precision_findings("precision: autocast", noted(bf16, {**bf16, "low_norm": "fp32"})) == snapshot


def test_findings_on_norms_are_one_line_a_norm_and_format_with_infinities_as_they_were_noted(
    snapshot: SnapshotAssertion,
) -> None:
    def case(how: str, *errors: float | str) -> dict[str, Any]:
        named = dict(zip(map(offset_fact, OFFSETS), errors, strict=True))
        return {"norm": "LayerNorm", "format": "fp16", "how": how, **named}

    cases = noted(case("torch", *[4e-4] * 5), case("running-sum", 2e-3, 2e-3, 9e-3, "inf", "inf"))
    assert precision_findings("precision: norms, by offset", cases) == snapshot
    narrow = {"norm": "RMSNorm", "format": "bf16", "how": "torch", width_fact(64): 0.002}
    assert precision_findings("precision: norms, by width", noted(narrow)) == snapshot


def test_studies_that_are_not_of_precision_or_did_not_run_have_no_findings() -> None:
    assert precision_findings("end to end", noted()) is None
    assert precision_findings("precision: something else", noted()) is None
    for title in ("sums", "autocast", "norms, by offset", "norms, by width"):
        assert precision_findings(f"precision: {title}", noted()) == []
