"""A trace has what autograd does in place when nobody watches, although a dispatch mode makes it do otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from perflab.predicted.trace.trace import Alloc, Free, Op, Trace
from tests.harness.traced import ops, traced_as_is, traced_fake, work

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
