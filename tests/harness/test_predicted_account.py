"""A trace summed up: its peak and what that is made of, costs, what is saved. Pure."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from perflab.predicted.memory.account import (
    STRETCHES,
    Account,
    account_of,
    rounded_as_on_cuda,
    timeline_of,
)
from perflab.predicted.trace.trace import Alloc, Event, Free, Op, Place, Saved, Trace, Use
from tests.harness.traced import exact, stepped, traced_as_is

FORWARD = Place("forward", "blocks.*.mlp", "model.py:12")
BACKWARD = Place("backward", "blocks.*.mlp", "model.py:12")


def op(name: str, place: Place = FORWARD, **changes: int) -> Op:
    numbers = {"flops": 10, "bytes_moved": 100, "launches": 1, **changes}
    return Op(f"aten::{name}", place, numbers["flops"], numbers["bytes_moved"], "float32", numbers["launches"])


def alloc(block: int, size_bytes: int, place: Place = FORWARD, operator: str = "aten::mm") -> Alloc:
    return Alloc(block, size_bytes, place, operator)


def trace(
    *events: Event, held: tuple[Alloc, ...] = (), uses: dict[int, Use] | None = None, result: tuple[int, ...] = ()
) -> Trace:
    blocks = [one.block for one in (*held, *events) if isinstance(one, Alloc)]
    known = {block: Use("temporaries") for block in blocks} | (uses or {})
    return Trace(held=held, events=events, uses=known, result_blocks=frozenset(result))


def test_the_peak_is_the_highest_level_and_what_is_alive_then() -> None:
    account = account_of(
        trace(
            alloc(2, 1000),
            alloc(3, 2000),
            Free(2),
            alloc(4, 3000, BACKWARD),
            Free(1),  # what was held may go too
            alloc(5, 100),
            Free(4),
            alloc(6, 3000),
            held=(alloc(1, 512, Place(module="head"), ""),),
            uses={1: Use("parameters"), 3: Use("activations"), 4: Use("gradients")},
        ),
        rounded=int,
    )
    assert account.held_bytes == 512
    assert account.peak_bytes == 512 + 2000 + 3000
    assert account.composition == {"parameters": 512, "gradients": 3000, "activations": 2000}
    assert [(part.category, part.module, part.size_bytes, part.blocks) for part in account.at_peak] == [
        ("gradients", "blocks.*.mlp", 3000, 1),
        ("activations", "blocks.*.mlp", 2000, 1),
        ("parameters", "head", 512, 1),
    ]


def test_a_call_has_its_peak_before_it_or_beside_the_output_that_is_kept() -> None:
    account = account_of(trace(held=(alloc(1, 700),)))
    assert account.peak_bytes == account.held_bytes == 1024
    assert account.keeping_output_bytes is None
    found = trace(alloc(1, 4000), alloc(2, 1000), Free(1), result=(2,))
    assert account_of(found, rounded=int).keeping_output_bytes == 5000 + 1000


@pytest.mark.parametrize(("size_bytes", "taken"), [(0, 0), (1, 512), (512, 512), (513, 1024), (2**30 + 1, 2**30 + 512)])
def test_each_block_is_rounded_up_by_itself(size_bytes: int, taken: int) -> None:
    assert rounded_as_on_cuda(size_bytes) == taken
    assert account_of(trace(alloc(1, size_bytes), alloc(2, size_bytes))).peak_bytes == 2 * taken


def test_costs_are_summed_by_phase_module_and_operator_in_the_order_in_which_they_came() -> None:
    elsewhere = Place("forward", "blocks.*.mlp", "model.py:99")
    account = account_of(
        trace(op("mm"), op("add", flops=0), op("mm", elsewhere, bytes_moved=900), op("mm", BACKWARD, launches=4)),
        roofline_ns=lambda op: op.bytes_moved / 2 if op.flops else None,
    )
    told = [
        (cost.phase, cost.operator, cost.calls, cost.flops, cost.bytes_moved, cost.roofline_ns, cost.line)
        for cost in account.costs
    ]
    assert told == [
        ("forward", "aten::mm", 2, 20, 1000, 500.0, "model.py:99"),  # where most bytes are moved
        ("forward", "aten::add", 1, 0, 100, 0.0, "model.py:12"),
        ("backward", "aten::mm", 1, 10, 100, 50.0, "model.py:12"),
    ]
    assert account.launches == 7


def test_what_is_saved_is_summed_by_where_and_what_shape_it_is() -> None:
    saved = [Saved((4, 2 * number), "float32", FORWARD) for number in (1, 1, 2)]
    account = account_of(
        trace(
            *(alloc(number, 600) for number in range(3)), uses={n: Use("activations", s) for n, s in enumerate(saved)}
        )
    )
    assert [(one.shape, one.count, one.size_bytes, one.line) for one in account.saved] == [
        ([4, 2], 2, 2048, "model.py:12"),
        ([4, 4], 1, 1024, "model.py:12"),
    ]


class Net(nn.Module):
    """With buffers, a tied weight, and views that are saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 8)
        self.norm = nn.BatchNorm1d(8)
        self.inner = nn.Linear(8, 64)
        self.outer = nn.Linear(32, 8)
        self.head = nn.Linear(8, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.embed(tokens))
        hidden = self.inner(x)
        gate, up = hidden[:, :32], hidden[:, 32:]
        out: Tensor = self.head(self.outer(gate.sigmoid() * up))
        return out


def step() -> Account:
    net, tokens = Net(), torch.zeros(16, dtype=torch.int64)
    adam = torch.optim.Adam(net.parameters())

    return exact(traced_as_is(stepped(net, adam, tokens, lambda out: out.logsumexp(-1).mean())))


def test_the_parts_of_a_peak_are_all_of_it_whatever_the_code() -> None:
    account = step()
    assert sum(account.composition.values()) == account.peak_bytes
    assert sum(part.size_bytes for part in account.at_peak) == account.peak_bytes
    parameters = 4 * (32 * 8 + 8 * 64 + 64 + 32 * 8 + 8 + 2 * 8)
    assert account.composition["parameters"] == parameters
    assert account.composition["optimizer state"] == 2 * parameters + 7 * 4  # and the steps that it has counted
    assert account.composition["buffers"] == 2 * 8 * 4 + 8
    assert account.composition["inputs"] == 16 * 8


def test_what_is_saved_is_named_with_the_whole_block_that_a_view_keeps() -> None:
    rows = {(one.module, one.operator, tuple(one.shape)): one for one in step().saved}
    half = rows["", "aten::addmm", (16, 32)]  # of what the first product made, all of which it keeps
    assert (half.dtype, half.count, half.size_bytes) == ("float32", 1, 16 * 64 * 4)
    assert ("outer", "aten::mul", (16, 32)) in rows
    assert all(row.line.startswith("tests/harness/test_predicted_account.py:") for row in rows.values())
    assert not any(row.shape == [32, 8] for row in rows.values())  # the weight is there anyway


def test_the_timeline_has_the_highest_level_of_each_stretch_and_where_phases_begin() -> None:
    held = (alloc(1, 512, Place(), ""),)
    few = timeline_of(trace(alloc(2, 1000), op("mm"), Free(2), op("mm", BACKWARD), alloc(3, 100, BACKWARD), held=held))
    assert few.highest_bytes == [512, 1536, 512, 1024]
    assert few.phases == {"forward": 1, "backward": 3}
    events: list[Event] = []
    for number in range(2, 1002):
        events += [alloc(number, 512 * number, FORWARD if number < 700 else BACKWARD), Free(number)]
    many = timeline_of(trace(*events, held=held))
    assert len(many.highest_bytes) == STRETCHES
    assert max(many.highest_bytes) == account_of(trace(*events, held=held)).peak_bytes
    assert many.highest_bytes == sorted(many.highest_bytes)
    assert many.phases == {"forward": 0, "backward": STRETCHES * 1397 // 2001}
