"""What a case says that ran out of memory: what it asked for, what was alive, and what would free some of it.

What piles up from call to call is found, whoever holds it; what fills once, is replaced or is garbage is none.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from torch import nn

from perflab.attribution.held import held_by_address
from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.judging.memory_texts import leak_text, out_of_memory_texts
from perflab.measure.calls.workload import Step, Workload
from perflab.measure.machine.devices import as_out_of_memory
from perflab.measurement.passes import find_leak
from perflab.profiles.take_peak import take_failure
from perflab.results.measurement import Leak, OutOfMemory
from perflab.results.peak import PeakPart

CPU = torch.device("cpu")
MIB = 1 << 20
TOO_MUCH = 1 << 50
KIB = 1024


def part(category: str, mib: int, module: str = "", operator: str = "") -> PeakPart:
    """Of what was alive."""
    return PeakPart(category=category, size_bytes=mib * MIB, blocks=1, module=module, operator=operator)


def _failing(where: str) -> Step:
    """A step that asks for too much in one of its phases."""
    net = nn.ModuleDict({"first": nn.Linear(64, 64), "second": nn.Linear(64, 64)})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def ask(phase: str) -> None:
        if phase == where:
            torch.empty(TOO_MUCH, dtype=torch.uint8)

    def forward() -> torch.Tensor:
        kept = torch.relu(net["second"](torch.relu(net["first"](torch.ones(32, 64)))))
        ask("forward")
        return kept.sum()

    def backward(loss: torch.Tensor) -> None:
        loss.backward()
        ask("backward")

    return Step(forward, backward, optimizer.step)


def test_what_is_alive_is_that_of_the_moment_of_failure() -> None:
    found = take_failure(_failing("forward"), CPU)
    assert found is not None
    alive, asked_by = found
    assert asked_by.operator == "aten::empty"
    first = _failing.__code__.co_firstlineno
    assert asked_by.line == f"tests/harness/test_out_of_memory.py:{first + 7}"
    assert [int(line.rpartition(":")[2]) - first for line in asked_by.stack] == [7, 11]
    (one,) = (part for part in alive.parts if part.operator == "aten::ones")
    assert (one.stack, one.line) == ([one.line], f"tests/harness/test_out_of_memory.py:{first + 10}")
    sizes = {(one.category, one.module): one.size_bytes for one in alive.parts if one.operator != "aten::ones"}
    assert sizes["parameters", "first"] == 4 * (64 * 64 + 64)
    assert sum(one.size_bytes for one in alive.parts if one.operator == "aten::clamp_min") == 2 * 4 * 32 * 64
    assert {one.category for one in alive.parts} == {"parameters", "made by the forward"}


def test_gradients_of_a_backward_that_failed_after_it_are_its_own() -> None:
    found = take_failure(_failing("backward"), CPU)
    assert found is not None
    alive, _ = found
    made = [one for one in alive.parts if one.category == "made by the backward"]
    assert sum(one.size_bytes for one in made) >= 4 * 2 * (64 * 64 + 64)
    assert {one.module for one in made} >= {"first", "second"}


def test_gradients_that_the_step_has_let_go_are_neither_alive_nor_a_remedy() -> None:
    net = nn.Linear(512, 512)
    net(torch.ones(1, 512)).sum().backward()

    def step() -> None:
        net.zero_grad()
        kept = torch.relu(net(torch.ones(64, 512)))
        torch.empty(TOO_MUCH, dtype=torch.uint8)
        kept.sum().backward()

    found = take_failure(Workload(step, (), {}), CPU)
    assert found is not None
    alive, _ = found
    assert "gradients" not in {one.category for one in alive.parts}
    texts = out_of_memory_texts(OutOfMemory(asked_bytes=TOO_MUCH, alive=alive.parts))
    assert not any("zero_grad" in text for text in texts)


def test_gradients_of_tensors_that_no_module_has_are_gradients() -> None:
    leaf = torch.ones(1024, requires_grad=True)
    (leaf * 2).sum().backward()
    sizes = {one.category: one.size_bytes for one in held_by_address([leaf, leaf.grad], {}, CPU).values()}
    assert sizes == {"inputs": 4096, "gradients": 4096}


def test_a_call_that_gets_through_is_no_failure_and_another_error_is_raised() -> None:
    assert take_failure(_failing("nowhere"), CPU) is None
    with pytest.raises(ZeroDivisionError):
        take_failure(Workload(lambda: 1 / 0, (), {}), CPU)
    with torch.autograd.profiler.profile(), pytest.raises(UsageError, match="a profiler runs"):
        take_failure(_failing("forward"), CPU)


def test_cudas_error_says_what_was_asked_for_and_what_was_cached(snapshot: SnapshotAssertion) -> None:
    text = (
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.18 GiB of which 1.40 GiB is "
        "free. Of the allocated memory 60.00 GiB is allocated by PyTorch, and 3.50 GiB is reserved by PyTorch but "
        "unallocated."
    )
    found = as_out_of_memory(torch.OutOfMemoryError(text))
    assert found == OutOfMemory(asked_bytes=2 << 30, cached_bytes=3584 * MIB)
    (_, cached) = out_of_memory_texts(found)
    assert cached == snapshot
    assert len(out_of_memory_texts(OutOfMemory(asked_bytes=2 << 30, cached_bytes=MIB))) == 1
    (_, declared) = out_of_memory_texts(OutOfMemory(asked_bytes=2 << 30, remedies=["bf16", "checkpointing"]))
    assert declared == snapshot


def test_remedies_are_named_by_what_they_would_free_where_that_is_worth_it(snapshot: SnapshotAssertion) -> None:
    alive = [
        part("made by the forward", 600, "blocks.*.mlp", "aten::mm"),
        part("made by the forward", 100, "blocks.*.attention", "aten::mm"),
        part("gradients", 200, "blocks.*.mlp"),
        part("parameters", 200, "blocks.*.mlp"),
    ]
    texts = out_of_memory_texts(
        OutOfMemory(asked_bytes=50 * MIB, asked_by=part("", 0, "head", "aten::addmm"), alive=alive)
    )
    assert texts == snapshot
    optimizer = [*alive[2:], part("made by the optimizer", 300, operator="aten::_foreach_sqrt")]
    assert out_of_memory_texts(OutOfMemory(asked_bytes=None, alive=optimizer)) == snapshot


def test_who_asked_is_named_with_those_that_called_him(snapshot: SnapshotAssertion) -> None:
    stack = ["ops.py:3", "net.py:9", "train.py:5", "run.py:1"]
    asker = changed(part("", 0, "head", "aten::addmm"), line=stack[0], stack=stack)
    (said,) = out_of_memory_texts(OutOfMemory(asked_bytes=MIB, asked_by=asker))
    assert said == snapshot
    assert out_of_memory_texts(OutOfMemory(asked_bytes=MIB, asked_by=changed(asker, stack=[]))) == snapshot


def test_without_a_second_look_the_size_is_all_that_is_known(snapshot: SnapshotAssertion) -> None:
    assert out_of_memory_texts(OutOfMemory(asked_bytes=MIB)) == snapshot
    assert out_of_memory_texts(OutOfMemory(asked_bytes=None)) == ["out of memory"]


class Elsewhere:
    """Holds what the callable cannot reach: a class is not followed."""

    kept: list[Any] = []
    rows: deque[Any] = deque(maxlen=100)


def appends() -> None:
    Elsewhere.kept.append(torch.full((KIB,), 1.0))


def keeps_graphs() -> None:
    x = torch.ones(KIB, requires_grad=True)
    loss = (x * 3.0).exp().sum()
    loss.backward(retain_graph=True)
    Elsewhere.kept.append(loss)


def found_in(call: Any, calls: int = 4) -> Leak | None:
    return find_leak(Workload(call, (), {}), CPU, calls)


@pytest.mark.parametrize(("call", "operator"), [(appends, "aten::full"), (keeps_graphs, "aten::exp")])
def test_a_leak_is_found_with_what_a_call_keeps_and_where(call: Any, operator: str) -> None:
    leak = found_in(call)
    assert len(leak.grown_bytes) == 4
    assert all(grown > 0 for grown in leak.grown_bytes)
    (kept,) = (part for part in leak.kept if part.operator == operator)
    assert (kept.size_bytes, kept.blocks) == (4 * KIB, 1)
    assert "test_out_of_memory.py:" in kept.line


def test_what_fills_once_is_replaced_or_is_garbage_is_no_leak() -> None:
    cache: dict[int, torch.Tensor] = {}
    count = iter(range(1000))
    last: list[torch.Tensor] = []
    Elsewhere.rows.extend(torch.zeros(KIB) for _ in range(100))

    def fills_a_cache() -> None:
        number = next(count) % 3
        cache.setdefault(number, torch.ones(KIB))

    def turns_a_full_ring() -> None:
        Elsewhere.rows.append(torch.ones(KIB))

    def replaces() -> None:
        last[:] = [torch.ones(KIB)]

    def leaves_a_cycle() -> None:
        ring: list[Any] = [torch.ones(KIB)]
        ring.append(ring)

    def keeps_views() -> None:
        Elsewhere.kept.append(WEIGHT[:10])

    for call in (fills_a_cache, turns_a_full_ring, replaces, leaves_a_cycle, keeps_views, lambda: torch.ones(KIB)):
        assert found_in(call) is None


WEIGHT = torch.ones(KIB)


def test_a_leak_whose_blocks_were_not_recorded_is_told_by_its_size(snapshot: SnapshotAssertion) -> None:
    assert leak_text(Leak(grown_bytes=[512, 512, 512])) == snapshot
    parts = [PeakPart(category="kept", size_bytes=KIB, blocks=1, operator="aten::mul", line="a.py:1")] * 5
    said = "memory held grows in each of 3 calls, by 5.00 KiB a call: "
    listed = ", ".join(["1.00 KiB of aten::mul (a.py:1)"] * 3)
    assert leak_text(Leak(grown_bytes=[8, 8, 8], kept=parts)) == f"{said}{listed}, 2 smaller parts"
