"""Few layers are believed once all of them, run beside, did the same. And a few figures that must not be too good."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from syrupy.assertion import SnapshotAssertion
from torch import Tensor, nn

from perflab.predicted import prediction
from perflab.predicted.cuda.as_cuda import as_cuda
from perflab.predicted.cuda.fake import fake_tensors
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.gpus import bound_ns, parse_gpu, roofline_ns
from perflab.predicted.memory.account import account_of
from perflab.predicted.prediction import Proofs, Work, predict, traced
from perflab.predicted.trace.trace import Op, Trace

from .traced import phased, work

H100 = parse_gpu("h100")


class Block(nn.Module):
    """A layer, one of which may do what the others do not."""

    def __init__(self, number: int, odd: int | None) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.number, self.odd = number, odd

    def forward(self, x: Tensor) -> Tensor:
        if self.number == self.odd:
            self.kept = torch.cat([x] * 64)
        out: Tensor = self.linear(x)
        return x + out


def stack_of(odd: int | None) -> Work:
    model = nn.Sequential(*(Block(number, odd) for number in range(10)))
    x = torch.randn(4, 8)
    return work(lambda: model(x), model, x)


def test_a_layer_that_does_more_than_the_others_is_found_by_its_number_alone(snapshot: SnapshotAssertion) -> None:
    with fake_tensors():
        believed = traced(stack_of(odd=6), ON_CUDA)
        proven = traced(stack_of(odd=6), ON_CUDA, proofs=Proofs())
        whole = traced(stack_of(odd=6), ON_CUDA, whole=True)
    assert believed.layers_run == [3, 4]
    assert account_of(believed.trace).peak_bytes < account_of(whole.trace).peak_bytes
    assert proven.layers_run == []
    assert account_of(proven.trace) == account_of(whole.trace)
    assert proven.notes == snapshot


def test_a_kind_of_call_is_run_whole_once(monkeypatch: pytest.MonkeyPatch) -> None:
    proofs = Proofs()
    wholes = 0

    def counting(*args: Any) -> Any:
        nonlocal wholes
        wholes += 1
        return trace_whole(*args)

    trace_whole = prediction._trace_whole
    monkeypatch.setattr(prediction, "_trace_whole", counting)
    with fake_tensors():
        for _ in range(3):
            assert traced(stack_of(odd=None), ON_CUDA, proofs=proofs).layers_run == [3, 4]
    assert wholes == 1
    assert list(proofs.known.values()) == [True]


class Keeping(nn.Module):
    """A layer that leaves something in itself with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.calls = 0
        self.history: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.linear(x)
        self.last = 1.0 * y
        self.calls += 1
        self.history.append(self.calls)
        return y


def test_what_a_run_of_few_layers_leaves_in_them_does_not_make_them_unlike_the_others() -> None:
    proofs = Proofs()
    with fake_tensors():
        model = nn.Sequential(*(Keeping() for _ in range(10)))
        first, again = (
            traced(work(lambda model=model, x=x: model(x), model, x), ON_CUDA, proofs=proofs)
            for x in (torch.randn(4, 8), torch.randn(6, 8))
        )
        whole = traced(work(lambda: model(torch.randn(6, 8)), model), ON_CUDA, whole=True)
    assert (first.layers_run, first.notes) == ([3, 4], [])
    assert (again.layers_run, again.notes) == ([3, 4], [])
    assert again.trace.layers == {"": 10}
    assert sum(one.name == "aten::mul" for one in ops(again.trace, "mul")) == len(ops(whole.trace, "mul")) == 10


def test_attributes_that_a_test_sets_in_one_layer_still_make_it_unlike_the_others() -> None:
    proofs = Proofs()
    with fake_tensors():
        model, x = nn.Sequential(*(Keeping() for _ in range(10))), torch.randn(4, 8)
        traced(work(lambda: model(x), model, x), ON_CUDA, proofs=proofs)
        model[2].special = True
        odd = traced(work(lambda: model(x), model, x), ON_CUDA, proofs=proofs)
    assert odd.trace.layers == {}


def ops(trace: Trace, name: str) -> list[Op]:
    return [event for event in trace.events if isinstance(event, Op) and name in event.name]


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_lower_bound_of_causal_attention_is_of_half_its_flops(is_causal: bool) -> None:
    with fake_tensors(), as_cuda((9, 0)):
        q, k, v = torch.randn(3, 1, 16, 32768, 128, dtype=torch.bfloat16)
        (op,) = ops(
            traced(work(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal)), ON_CUDA).trace,
            "attention",
        )
    least, textbook = bound_ns(op, H100), roofline_ns(op, H100)
    assert least is not None
    assert textbook is not None
    assert least == pytest.approx(textbook / (2 if is_causal else 1), rel=1e-6)


@pytest.mark.parametrize("allowed", [True, False])
def test_convolutions_have_a_switch_of_their_own_for_tf32(allowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", allowed)
    with fake_tensors(), as_cuda((9, 0)):
        x, weight, matrix = torch.randn(2, 4, 8, 8), torch.randn(4, 4, 3, 3), torch.randn(8, 8)
        trace = traced(work(lambda: (F.conv2d(x, weight), matrix @ matrix)), ON_CUDA).trace
    assert [op.dtype for op in ops(trace, "convolution")] == ["tf32" if allowed else "float32"]
    assert [op.dtype for op in ops(trace, "mm")] == ["float32"]


def test_what_is_saved_is_what_is_kept_at_once() -> None:
    with fake_tensors():
        x, weight = torch.randn(64, 64), torch.randn(64, 64, requires_grad=True)

        def micro_batches() -> None:
            for _ in range(8):
                (x @ weight).exp().sum().backward()

        once, eight = (
            account_of(traced(one, ON_CUDA).trace)
            for one in (work(lambda: (x @ weight).exp().sum().backward()), work(micro_batches))
        )
    assert sum(row.size_bytes for row in once.saved) == sum(row.size_bytes for row in eight.saved) == 64 * 64 * 4
    assert sum(row.size_bytes for row in eight.saved) <= eight.peak_bytes


def test_products_that_nobody_can_count_are_named(snapshot: SnapshotAssertion) -> None:
    with fake_tensors(), as_cuda((9, 0)):
        model, x = nn.LSTM(8, 8), torch.randn(4, 2, 8)
        now, _ = predict(phased(forward=lambda: model(x)), H100, ON_CUDA)
        plain, _ = predict(phased(forward=lambda: x.exp()), H100, ON_CUDA)
        gated = nn.GRU(8, 8, bidirectional=True)
        stepwise, _ = predict(phased(forward=lambda: gated(x)), H100, ON_CUDA)
    assert now.notes == snapshot
    assert plain.notes == []
    assert stepwise.notes == now.notes[:1]  # its products are matrix products, and counted
