"""Models whose layers are predicted from a few: what comes out is what all of them do, event by event.

The whole is traced too, on fake tensors as on CUDA, and compared. What is not alike enough is run whole.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.memory.sizes import Interpolated, Outline, outline_of
from perflab.predicted.prediction import traced
from perflab.predicted.run.exploring import Search
from perflab.predicted.trace.unroll import same
from tests.correctness.predicted import on_a_gpu, setup_of, work

pytestmark = pytest.mark.correctness

GPT = {"norm": "layer", "positions": "learned", "feed_forward": "gelu", "tied_head": True}
SWITCHES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("train_step", {"precision": "bf16", "checkpointing": "selective"}, {"attention": "tiled"}),
    ("train_step", {"precision": "fp16", "optimizer": "foreach", "max_grad_norm": 1.0}, {"attention": "triton"}),
    ("train_step", {"precision": "pure-bf16"}, GPT),
    ("train_step", {"precision": "tf32", "checkpointing": "every-block"}, {"attention": "naive"}),
    (
        "train_step",
        {"optimizer": "loop", "max_grad_norm": 1.0, "micro_batches": 2, "fused_loss": True},
        {"residual_dropout": 0.1, "num_kv_heads": 4, "fused_norm": True, "fused_feed_forward": True},
    ),
    ("forward", {"precision": "bf16"}, {"attention": "naive", "window": 16}),
]


def named(mode: str, training: dict[str, Any], changes: dict[str, Any]) -> str:
    return "-".join(map(str, (mode, *training.values(), *changes.values())))


@pytest.mark.parametrize(("mode", "training", "changes"), SWITCHES, ids=[named(*case) for case in SWITCHES])
def test_unrolled_is_the_whole_whatever_is_switched(
    mode: str, training: dict[str, Any], changes: dict[str, Any]
) -> None:
    shape = {"num_layers": 6, "d_model": 48, "num_heads": 12, "d_ff": 96}
    with on_a_gpu():
        what = work(mode, setup_of("small", device="cuda", training=training, **shape, **changes))
        unrolled = traced(what, ON_CUDA)
        whole = traced(what, ON_CUDA, whole=True)
    assert unrolled.layers_run == [3, 4]
    assert unrolled.notes == []
    assert whole.layers_run == []
    assert same(unrolled.trace, whole.trace)


# --- other sizes


@cache
def outline(mode: str, impl: str, batch_size: int, context_length: int) -> Outline:
    with on_a_gpu():
        setup = setup_of("tiny", batch_size, context_length, device="cuda", attention=impl)
        return outline_of(traced(work(mode, setup), ON_CUDA).trace)


SIZED = [("forward", "sdpa"), ("train_step", "naive")]


@pytest.mark.parametrize(("mode", "impl"), SIZED)
def test_the_peak_at_a_size_that_nobody_traced_is_what_a_trace_of_it_shows(mode: str, impl: str) -> None:
    by_batch = Interpolated({size: outline(mode, impl, size, 64) for size in (2, 3)})
    lengths = (64, 96, 128) if impl == "naive" else (64, 96)
    by_context = Interpolated({length: outline(mode, impl, 2, length) for length in lengths})
    assert by_batch.holds
    assert by_context.holds
    for size in (1, 40):
        assert by_batch.peak_bytes(size) == outline(mode, impl, size, 64).peak_bytes()
    for length in (32, 1024):
        assert by_context.peak_bytes(length) == outline(mode, impl, 2, length).peak_bytes()


def test_between_sizes_that_kernels_pad_to_the_peak_is_off_by_the_padding() -> None:
    # CUDA's memory-efficient attention pads its logsumexp to 32 rows: stairs, which no polynomial has.
    by_context = Interpolated({length: outline("forward", "sdpa", 2, length) for length in (64, 96)})
    missing = outline("forward", "sdpa", 2, 333).peak_bytes() - by_context.peak_bytes(333)
    layers, row_bytes, padded = 2, 2 * 4 * 4, 352 - 333
    assert 0 < missing <= layers * (row_bytes * padded + 512)


@pytest.mark.parametrize(("mode", "impl"), SIZED)
def test_the_longest_context_that_fits_is_found_with_two_or_three_traces_more(mode: str, impl: str) -> None:
    asked = []

    def outline_at(length: int) -> Outline:
        asked.append(length)
        return outline(mode, impl, 2, length)

    room_bytes = outline(mode, impl, 2, 900).peak_bytes()
    search = Search(outline_at, room_bytes, {64: outline(mode, impl, 2, 64)}, points=None)
    assert search.largest(64) == 896  # in steps of 32
    assert search.points is not None
    assert len(asked) == (3 if impl == "naive" else 2)
    assert outline(mode, impl, 2, 928).peak_bytes() > room_bytes
