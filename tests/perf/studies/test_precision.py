"""The precision study: sums, dtypes under autocast, and norms in low precision; the mathematics is in precision.py.

Times stand in the tables too, but nobody comes for them: the budget is small, and the threshold wide.
"""

from __future__ import annotations

import pytest
import torch

from perflab import Perf
from perflab.lab.models import build_model
from perflab.lab.train import cross_entropy_loss, random_tokens

from .precision import (
    ADDEND,
    ADDITIONS,
    EXACT_SUMS,
    FORMATS,
    HOWS,
    NORMS,
    STORED,
    Pair,
    accumulate,
    dtype_flow,
    has_stalled,
    name_of,
    norm_error,
    normalise,
    published_sums,
    rows_about,
    stored_addend,
)
from .precision_findings import OFFSETS, WIDTHS, offset_fact, width_fact

WIDTH = 1024
"""Where the offset grows, and what is timed."""
OFFSET = 1
"""Where the width grows, and what is timed."""


@pytest.fixture(autouse=True)
def of_numbers(perf: Perf) -> None:
    """What these studies are about."""
    if perf.predicts:
        pytest.skip("a study of numbers, and a prediction has none")


def in_study(title: str, *columns: str) -> pytest.MarkDecorator:
    """A case whose numerics count, not its time."""
    return pytest.mark.perf(study=f"precision: {title}", columns=", ".join(columns), budget="200ms", threshold=0.5)


@in_study("sums", "sum", "published", "error_share", "addend_error_share")
@pytest.mark.parametrize("pair", EXACT_SUMS, ids=str)
def test_sum(perf: Perf, device: torch.device, pair: Pair) -> None:
    total = perf(accumulate, pair, device)
    assert total.item() == EXACT_SUMS[pair]
    perf.note(
        accumulator=name_of(pair.accumulator),
        addend=name_of(pair.addend),
        cast=pair.is_cast,
        sum=repr(total.item()),
        published=published_sums().get(pair),
        error_share=total.item() / (ADDEND * ADDITIONS) - 1,
        addend_error_share=stored_addend(pair) / ADDEND - 1,
        stalled=has_stalled(pair, total),
    )


@in_study("autocast", "parameters", "first_linear", "norm", "low_norm", "logits", "loss", "gradients")
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("norm", ["rms", "layer"])
def test_autocast(perf: Perf, device: torch.device, norm: str, precision: str) -> None:
    low = FORMATS[precision]
    torch.manual_seed(0)
    model = build_model("tiny", vocab_size=256, context_length=32, norm=norm, device=device)
    tokens = random_tokens(2, 32, vocab_size=256, device=device)
    flow = dtype_flow(model, tokens, low)
    assert flow["first_linear"] == flow["logits"] == precision
    assert flow["parameters"] == flow["loss"] == flow["gradients"] == "fp32"
    perf.note(autocast=precision, **flow)

    def forward() -> torch.Tensor:
        model.zero_grad()
        with torch.autocast(device.type, dtype=low):
            logits = model(tokens)
        return cross_entropy_loss(logits, tokens)

    perf.step(forward=forward, backward=torch.Tensor.backward)


@in_study("norms, by offset", *map(offset_fact, OFFSETS))
@pytest.mark.parametrize("how", [*HOWS, STORED])
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("norm", NORMS)
def test_norm_by_offset(perf: Perf, device: torch.device, norm: str, precision: str, how: str) -> None:
    dtype = FORMATS[precision]
    errors = {offset: norm_error(norm, how, dtype, offset=offset, width=WIDTH, device=device) for offset in OFFSETS}
    perf.note(norm=norm, format=precision, how=how, **{offset_fact(offset): errors[offset] for offset in OFFSETS})
    measure_norm(perf, device, norm, dtype, how)


@in_study("norms, by width", *map(width_fact, WIDTHS))
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("precision", FORMATS)
@pytest.mark.parametrize("norm", NORMS)
def test_norm_by_width(perf: Perf, device: torch.device, norm: str, precision: str, how: str) -> None:
    dtype = FORMATS[precision]
    errors = {width: norm_error(norm, how, dtype, offset=OFFSET, width=width, device=device) for width in WIDTHS}
    perf.note(norm=norm, format=precision, how=how, **{width_fact(width): errors[width] for width in WIDTHS})
    measure_norm(perf, device, norm, dtype, how)


def measure_norm(perf: Perf, device: torch.device, norm: str, dtype: torch.dtype, how: str) -> None:
    """The norm, or the rounding of its input, at one shape."""
    x = rows_about(OFFSET, WIDTH, device)
    if how == STORED:
        assert perf(x.to, dtype).dtype == dtype
    else:
        assert perf(normalise, x.to(dtype), norm, how).shape == x.shape
