"""What piles up from call to call is found, whoever holds it; what fills once, is replaced or is garbage is none."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch

from perflab.judging.memory_texts import leak_text
from perflab.measure.calls.workload import Workload
from perflab.measurement.passes import find_leak
from perflab.results.measurement import Leak
from perflab.results.peak import PeakPart

pytestmark = pytest.mark.usefixtures("whole_collections")
CPU = torch.device("cpu")
KIB = 1024


class Elsewhere:
    """Holds what the callable cannot reach: a class is not followed."""

    kept: list[Any] = []
    rows: deque[Any] = deque((torch.zeros(KIB) for _ in range(100)), maxlen=100)


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
    assert "test_leaks.py:" in kept.line


def test_what_fills_once_is_replaced_or_is_garbage_is_no_leak() -> None:
    cache: dict[int, torch.Tensor] = {}
    count = iter(range(1000))
    last: list[torch.Tensor] = []

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


def test_a_leak_whose_blocks_were_not_recorded_is_told_by_its_size() -> None:
    assert leak_text(Leak(grown_bytes=[512, 512, 512])) == "memory held grows in each of 3 calls, by 512 B a call"
    parts = [PeakPart(category="kept", size_bytes=KIB, blocks=1, operator="aten::mul", line="a.py:1")] * 5
    said = "memory held grows in each of 3 calls, by 5.00 KiB a call: "
    listed = ", ".join(["1.00 KiB of aten::mul (a.py:1)"] * 3)
    assert leak_text(Leak(grown_bytes=[8, 8, 8], kept=parts)) == f"{said}{listed}, 2 smaller parts"
