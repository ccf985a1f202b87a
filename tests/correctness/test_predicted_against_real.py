"""Predictions of CUDA held to PyTorch's real CUDA build: its allocator and its launches, on a machine without a GPU.

    python -m nocuda run -- python -m pytest tests/correctness/test_predicted_against_real.py

The bounds are those that docs/predicted-against-real.md states. Shapes: tokens (B, T).
"""

from __future__ import annotations

import random

import pytest
import torch

from nocuda.launch import is_active
from nocuda.library import library
from perflab.lab.attention import attention
from perflab.measure.calls.workload import Workload
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.prediction import Work
from perflab.predicted.run.predicting import work_of
from tests.harness.routed_calls import CALLS, Call

pytestmark = [
    pytest.mark.correctness,
    pytest.mark.skipif(not is_active(), reason="no nocuda: python -m nocuda run -- python -m pytest ..."),
]

ALLOCATED_WITHIN = 0.001
RESERVED_WITHIN = 0.02
LAUNCHES_WITHIN = 0.02
"""Of the lab's Triton attention: an operator of one's own counts as one launch. All others are equal."""
TRITON = "perflab.flash_attention_backward.default"


@pytest.mark.parametrize("attention", ["naive", "sdpa", "triton"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("mode", ["forward", "forward_backward", "train_step"])
@pytest.mark.parametrize("model", ["tiny", "2.7B"])
def test_a_call_takes_what_was_predicted(model: str, mode: str, precision: str, attention: str) -> None:
    from tests.studies.predicted_against_real import Case, compared

    case = Case(model, mode, precision, attention)
    seen = compared(str(case), case.work)
    assert seen.predicted.asked_bytes == seen.real.asked_bytes
    assert abs(seen.off("allocated_bytes")) <= ALLOCATED_WITHIN
    assert abs(seen.off("reserved_bytes")) <= RESERVED_WITHIN
    if attention != "triton":
        assert seen.predicted.launches == seen.real.launches
    assert abs(seen.off("launches")) <= LAUNCHES_WITHIN


@pytest.mark.parametrize("impl", ["triton", "triton-one-pass"])
def test_a_backward_that_is_the_peak_takes_what_was_predicted(impl: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, with delta, the float32 sum of dq, and no workspace of cuBLAS: nothing else multiplies."""
    from tests.studies.predicted_against_real import compared

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, upstream: torch.Tensor) -> object:
        out = attention(q, k, v, is_causal=True, impl=impl)
        return torch.autograd.grad(out, (q, k, v), upstream)

    def make() -> Work:
        shape = {"size": (2, 4, 1024, 64), "dtype": torch.bfloat16, "device": "cuda"}
        return work_of(Workload(step, tuple(torch.zeros(**shape, requires_grad=True) for _ in range(4)), {}))

    monkeypatch.setenv("PERFLAB_AUTOTUNE", "0")
    seen = compared("attention", make)
    rows = 2 * 4 * 1024
    inputs_out_gradients, ends_and_delta = 8 * rows * 64 * 2, 2 * rows * 4
    dq_sum = rows * 64 * 4 if impl == "triton-one-pass" else 0
    assert seen.real.asked_bytes == inputs_out_gradients + ends_and_delta + dq_sum
    assert seen.predicted.asked_bytes == seen.real.asked_bytes
    assert seen.predicted.allocated_bytes == seen.real.allocated_bytes


@pytest.mark.parametrize("attention", ["naive", "sdpa", "triton"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_operator_launches_and_takes_what_is_said_of_it(precision: str, attention: str) -> None:
    from tests.studies.predicted_against_real import OPAQUE, Case, operators

    found = operators(Case("tiny", "train_step", precision, attention).work().run)
    unknown = {TRITON, *(f"{name.replace('::', '.')}.default" for name in OPAQUE)}
    assert found.calls > 100
    assert [one for one in found.differences if one.operator not in unknown] == []


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name.removeprefix("aten::"))
def test_a_call_launches_and_takes_what_is_said_of_it(call: Call) -> None:
    """The figures that ``tests/harness/test_predicted_cuda_kernels.py`` holds the rules to."""
    counted = library()

    def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros(*shape, dtype=dtype, device="cuda")

    arguments = call.arguments(zeros)
    call.operator(*arguments, **call.keywords)
    torch.cuda.reset_peak_memory_stats()
    counted.reset()
    result = call.operator(*arguments, **call.keywords)
    stats, counts = torch.cuda.memory_stats(), counted.counts()
    taken = stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]
    assert counts.launches + counts.copies["device to device"][0] == call.launches
    assert call.hidden_bytes <= taken <= call.hidden_bytes + call.tiles
    del result


@pytest.mark.parametrize("seed", range(4))
def test_reductions_take_the_staging_buffers_that_are_computed(seed: int) -> None:
    """Reductions of random shapes and layouts; strides of 0, whose order has ties, are left out."""
    draw = random.Random(seed)
    staged = 0
    for _ in range(150):
        dims = draw.randint(1, 4)
        shape = [max(1, int(2 ** draw.uniform(0, (24, 12, 8, 6)[dims - 1]))) for _ in range(dims)]
        if draw.random() < 0.5:
            shape = [max(8, size // 8 * 8) for size in shape]
        tensor = torch.empty(shape, device="cuda", dtype=draw.choice([torch.float32, torch.bfloat16, torch.float16]))
        if draw.random() < 0.4:
            tensor = tensor.permute(draw.sample(range(dims), dims))
        if draw.random() < 0.2 and tensor.shape[0] > 3:
            tensor = tensor[1:]
        over = draw.sample(range(dims), draw.randint(1, dims))
        name, arguments = draw.choice(
            [
                ("sum.dim_IntList", (tensor, over)),
                ("mean.dim", (tensor, over)),
                ("linalg_vector_norm.default", (tensor, 2, over)),
                ("amax.default", (tensor, over)),
                ("any.dims", (tensor, over)),
                ("argmin.default", (tensor, over[0])),
                ("max.dim", (tensor, over[0])),
                ("prod.dim_int", (tensor, over[0])),
                ("var_mean.correction", (tensor, over)),
            ]
        )
        operator, _, overload = name.partition(".")
        torch.cuda.reset_peak_memory_stats()
        result = getattr(getattr(torch.ops.aten, operator), overload)(*arguments)
        stats = torch.cuda.memory_stats()
        real = stats["requested_bytes.all.peak"] - stats["requested_bytes.all.current"]
        said = sum(ON_CUDA.blocks_of(f"aten::{operator}", arguments, {}))
        assert said == real, (name, tensor.dtype, tensor.shape, tensor.stride(), over)
        staged += said > 0
        del result
    assert staged > 5
