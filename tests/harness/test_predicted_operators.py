"""What one call of an operator costs: FLOPs, bytes, the dtype of products; what autograd does in place unwatched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula

from perflab.predicted.trace.trace import Alloc, Free, Op, Trace
from tests.harness.traced import ops, traced_as_is, traced_fake, work


def only(call: Callable[[], Any]) -> Op:
    """The one operator of a call without autograd."""

    def without_a_graph() -> Any:
        with torch.no_grad():
            return call()

    (op,) = ops(traced_as_is(work(without_a_graph)))
    return op


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (lambda: numbers(3, 4) @ numbers(4, 5), 2 * 3 * 4 * 5),
        (lambda: numbers(7, 3, 4) @ numbers(7, 4, 5), 2 * 7 * 3 * 4 * 5),
        (lambda: F.linear(numbers(3, 4), numbers(5, 4), numbers(5)), 2 * 3 * 4 * 5),
        (lambda: F.conv1d(numbers(2, 3, 10), numbers(4, 3, 3)), 2 * 2 * 8 * 4 * 3 * 3),
        (lambda: F.scaled_dot_product_attention(*[numbers(2, 4, 8, 16)] * 3), 2 * 2 * (2 * 4 * 8 * 8 * 16)),
        (lambda: numbers(100).exp(), 0),
    ],
)
def test_flops_are_of_products_a_multiplication_and_an_addition_each(call: Callable[[], Tensor], flops: int) -> None:
    # Made outside: what makes the operands is work as well.
    found = [op for op in ops(traced_as_is(work(call))) if op.flops]
    assert sum(op.flops for op in found) == flops
    with FlopCounterMode(display=False) as counter:
        call()
    assert counter.get_total_flops() in (flops, 0)  # 0: it has no formula of what a CPU takes for attention


@pytest.mark.parametrize(
    ("call", "bytes_moved"),
    [
        (lambda x, y: x + y, 3 * 96),
        (lambda x, y: x.add_(y), 3 * 96),  # read, written, and the other
        (lambda x, y: x.mul_(2.0), 2 * 96),
        (lambda x, y: x.exp(), 2 * 96),
        (lambda x, y: x.double(), 96 + 192),
        (lambda x, y: x + y[:1], 2 * 96 + 24),
        (lambda x, y: x + y[:1].expand(4, 6), 2 * 96 + 24),  # as what it is expanded from
        (lambda x, y: x[:2] + y[:2], 3 * 48),
        (lambda x, y: x.t().contiguous(), 2 * 96),
        (lambda x, y: torch.add(x, 1.0, out=y), 2 * 96),  # y is not read
        (lambda x, y: torch.mul(x, y, out=y), 3 * 96),
        (lambda x, y: x.zero_(), 96),  # nor is what is only filled
        (lambda x, y: x.copy_(y), 2 * 96),
        (lambda x, y: x.normal_(), 96),
        (lambda x, y: torch._foreach_add([x, y], 1.0), 4 * 96),
        (lambda x, y: x.sum(), 96 + 4),
    ],
)
def test_bytes_are_of_each_operand_and_result_once(call: Callable[[Tensor, Tensor], Tensor], bytes_moved: int) -> None:
    x, y = numbers(4, 6), numbers(4, 6)
    assert only(lambda: call(x, y)).bytes_moved == bytes_moved


@pytest.mark.parametrize(
    "look_up",
    [
        lambda table, rows: F.embedding(rows, table),
        lambda table, rows: table[rows],
        lambda table, rows: table.index_select(0, rows),
    ],
)
def test_of_a_table_only_the_rows_that_are_taken_are_read(look_up: Callable[[Tensor, Tensor], Tensor]) -> None:
    table, rows = numbers(1000, 6), torch.zeros(3, dtype=torch.int64)
    assert only(lambda: look_up(table, rows)).bytes_moved == 2 * 3 * 6 * 4 + 3 * 8


def test_memory_without_numbers_is_no_work_and_moves_nothing() -> None:
    assert ops(traced_as_is(work(lambda: torch.empty(4, 6)))) == []


@pytest.mark.parametrize(
    ("dtype", "precision", "said"),
    [
        (torch.float32, "highest", "float32"),
        (torch.float32, "high", "tf32"),
        (torch.bfloat16, "high", "bfloat16"),
        (torch.float64, "high", "float64"),
    ],
)
def test_the_dtype_of_products_is_what_they_are_computed_in(dtype: torch.dtype, precision: str, said: str) -> None:
    x, before = numbers(4, 4, dtype=dtype), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert only(lambda: x @ x).dtype == said
    finally:
        torch.set_float32_matmul_precision(before)
    assert only(lambda: x + x).dtype == str(dtype).removeprefix("torch.")


@contextmanager
def operator_of_ones_own() -> Iterator[Callable[[Tensor, Tensor], Tensor]]:
    """``prediction_test::weigh``: a product of rows with a formula of its own, and a derivative."""

    @torch.library.custom_op("prediction_test::weigh", mutates_args=())
    def weigh(x: Tensor, weights: Tensor) -> Tensor:
        return (x * weights).sum(-1)

    @weigh.register_fake
    def _(x: Tensor, weights: Tensor) -> Tensor:
        return x.new_empty(x.shape[:-1])

    @torch.library.custom_op("prediction_test::weigh_backward", mutates_args=())
    def weigh_backward(gradient: Tensor, weights: Tensor) -> Tensor:
        return gradient[..., None] * weights

    @weigh_backward.register_fake
    def _(gradient: Tensor, weights: Tensor) -> Tensor:
        return gradient.new_empty(*gradient.shape, weights.shape[-1])

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return weigh_backward(gradient.contiguous(), *ctx.saved_tensors), None

    def keep_weights(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    weigh.register_autograd(backward, setup_context=keep_weights)
    packet = torch.ops.prediction_test.weigh
    register_flop_formula(packet)(lambda x, weights, *_, out_shape=None, **__: 2 * x[0] * x[1])
    try:
        yield weigh
    finally:
        flop_registry.pop(packet, None)


def test_an_operator_of_ones_own_is_one_operator_with_its_own_formula_forward_and_backward() -> None:
    with operator_of_ones_own() as weigh:

        def call() -> None:
            x = torch.zeros(6, 4, requires_grad=True)
            weigh(x, torch.ones(4)).sum().backward()

        for trace in (traced_as_is(work(call)), traced_fake(lambda: work(call))):
            found = {op.name: op for op in ops(trace) if op.name.startswith("prediction_test")}
            assert found.keys() == {"prediction_test::weigh", "prediction_test::weigh_backward"}
            forward, backward = found.values()
            assert forward.flops == 2 * 6 * 4
            assert forward.bytes_moved == (6 * 4 + 4 + 6) * 4
            assert forward.dtype == "float32"
            assert backward.flops == 0
            assert backward.place.phase == "backward"
            assert "" != backward.place.line != forward.place.line != "", "a backward written by hand has its own line"


SIZE = 1000
BYTES = 4 * SIZE


def summed(branches: int) -> Callable[[], Any]:
    """A tensor that so many branches multiply: of each comes a gradient."""
    leaf = torch.zeros(SIZE, requires_grad=True)

    def call() -> None:
        middle = leaf.view(SIZE).mul(1.0)
        sum(middle.mul(float(number)).sum() for number in range(branches)).backward()  # type: ignore[union-attr]

    return call


def sums(trace: Trace) -> list[Op]:
    return [
        op for op in ops(trace) if op.name == "aten::add" and op.place.phase == "backward" and op.bytes_moved > BYTES
    ]


@pytest.mark.parametrize("branches", [2, 3, 9])
def test_gradients_that_meet_are_added_up_in_the_memory_of_the_first(branches: int) -> None:
    trace = traced_as_is(work(summed(branches)))
    assert len(sums(trace)) == branches - 1
    assert made_by_sums(trace) == made_by_sums(traced_fake(lambda: work(summed(branches)))) == 0


def test_blocks_and_frees_stay_in_pairs() -> None:
    trace = traced_as_is(work(summed(5)))
    known = {block.block for block in trace.held}
    for event in trace.events:
        if isinstance(event, Alloc):
            assert event.block not in known
            known.add(event.block)
        elif isinstance(event, Free):
            known.remove(event.block)


def met(kind: str) -> Callable[[], None]:
    """Two gradients that meet: fresh ones, ones that somebody ``kept``, or ``view``s of fresh ones."""
    leaf, kept = torch.zeros(SIZE, requires_grad=True), list[Any]()

    def keep(gradients: Any, _: Any) -> None:
        kept.extend(gradients)

    def call() -> None:
        kept.clear()
        middle = leaf.mul(1.0)
        first, second = (middle.view(SIZE) if kind == "view" else middle for _ in range(2))
        products = first.mul(2.0), second.mul(3.0)
        for one in products if kind == "kept" else ():
            assert one.grad_fn is not None
            one.grad_fn.register_hook(keep)
        (products[0].sum() + products[1].sum()).backward()

    return call


@pytest.mark.parametrize(("kind", "blocks"), [("fresh", 0), ("kept", 1), ("view", 1)])
def test_a_gradient_that_something_else_refers_to_is_not_written_to(kind: str, blocks: int) -> None:
    """A view refers to what it is a view of."""
    assert made_by_sums(traced_as_is(work(met(kind)))) == blocks
    assert made_by_sums(traced_fake(lambda: work(met(kind)))) == blocks


def made_by_sums(trace: Trace) -> int:
    return sum(
        isinstance(event, Alloc) and event.operator == "aten::add" and event.size_bytes == BYTES
        for event in trace.events
    )


def test_with_a_graph_of_the_backward_nothing_is_in_place() -> None:
    leaf = torch.zeros(SIZE, requires_grad=True)

    def call() -> Tensor:
        middle = leaf.mul(1.0)
        (grad,) = torch.autograd.grad((middle.mul(2.0) + middle.mul(3.0)).sum(), leaf, create_graph=True)
        return grad

    assert made_by_sums(traced_as_is(work(call))) == 2  # the forward's, and that of the gradients


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        first, second = grads[0].mul(1.0), grads[0].mul(1.0)
        del grads
        both = first + second
        del first
        return both


def test_a_sum_in_a_user_s_own_backward_is_as_it_is_written() -> None:
    leaf = torch.zeros(SIZE, requires_grad=True)
    assert made_by_sums(traced_as_is(work(lambda: Doubled.apply(leaf).sum().backward()))) == 1


def test_gradients_of_picked_rows_are_written_into_the_zeros_that_were_made_for_them() -> None:
    rows, index = torch.zeros(10, 100, requires_grad=True), torch.zeros(30, dtype=torch.int64)
    trace = traced_as_is(work(lambda: rows.mul(1.0)[index].sum().backward()))
    made = [event.operator for event in trace.events if isinstance(event, Alloc) and event.size_bytes == BYTES]
    assert "aten::index_put" in [op.name for op in ops(trace)]
    assert "aten::index_put" not in made
    assert any("zeros" in operator for operator in made)
