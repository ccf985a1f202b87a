"""What a measured callable may return: finished work of any library, and no NaN, looked for in next to no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.pool import ThreadPool
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from perflab.base.errors import UsageError
from perflab.measure.memory.peak import cpu_allocations
from perflab.running.case.refusals import holds_nan, refuse_unfinished


class Pool:
    """A pool of one thread, whose work waits at a gate."""

    def __init__(self, pool: ThreadPool) -> None:
        self.pool, self.gate = pool, Event()

    def work(self, _number: int = 0) -> bool:
        """What is promised."""
        return self.gate.wait()


@pytest.fixture
def pool() -> Iterator[Pool]:
    with ThreadPool(1) as threads:
        found = Pool(threads)
        yield found
        found.gate.set()


def kept_future(value: int | None = None) -> torch.futures.Future[int]:
    future: torch.futures.Future[int] = torch.futures.Future()
    if value is not None:
        future.set_result(value)
    return future


def refused(result: Any) -> str:
    state: Any = SimpleNamespace(case="t.py::t", problem=None)
    with pytest.raises(UsageError) as caught:
        refuse_unfinished(state, result)
    assert state.problem == "no work"
    return str(caught.value)


def accepted(result: Any) -> None:
    state: Any = SimpleNamespace(case="t.py::t", problem=None)
    refuse_unfinished(state, result)
    assert state.problem is None


def test_a_future_of_pytorch_is_refused_until_it_is_done(snapshot: SnapshotAssertion) -> None:
    assert refused(kept_future()) == snapshot
    accepted(kept_future(5))


@pytest.mark.parametrize("within", [lambda one: one, lambda one: [1, one], lambda one: (one,)])
def test_a_coroutine_that_nobody_awaits_is_refused_among_others_too(
    within: Callable[[Any], Any], snapshot: SnapshotAssertion
) -> None:
    async def work() -> int:
        return 1

    made = work()
    assert refused(within(made)) == snapshot
    made.close()


@pytest.mark.parametrize(
    "ask",
    [lambda one: one.pool.apply_async(one.work), lambda one: one.pool.map_async(one.work, range(3))],
    ids=["apply", "map"],
)
def test_a_result_of_a_pool_is_refused_until_it_is_ready(
    pool: Pool, ask: Callable[[Pool], Any], snapshot: SnapshotAssertion
) -> None:
    result = ask(pool)
    assert refused(result) == snapshot
    pool.gate.set()
    result.wait()
    accepted(result)
    accepted(result.get())


def test_the_iterators_of_a_pool_are_to_be_consumed(pool: Pool) -> None:
    assert "returned an IMapIterator" in refused(pool.pool.imap(pool.work, range(2)))
    assert "consume it in the callable" in refused(pool.pool.imap_unordered(pool.work, range(2)))
    pool.gate.set()
    accepted(list(pool.pool.imap(pool.work, range(2))))


KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "float32": lambda: torch.zeros(2048, 1024),
    "bfloat16": lambda: torch.zeros(2048, 1024, dtype=torch.bfloat16),
    "float64": lambda: torch.zeros(2048, 1024, dtype=torch.float64),
    "transposed": lambda: torch.zeros(1024, 2048).t(),
    "every other": lambda: torch.zeros(2048, 2048)[:, ::2],
    "with a graph": lambda: torch.zeros(2048, 1024, requires_grad=True) * 2,
    "complex": lambda: torch.zeros(2048, 1024, dtype=torch.complex64),
    "conjugate": lambda: torch.zeros(2048, 1024, dtype=torch.complex64).conj(),
    "float8": lambda: torch.zeros(4096, 4096).to(torch.float8_e5m2),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_look_takes_less_than_a_tenth_of_the_result(kind: str) -> None:
    result = KINDS[kind]()
    holds_nan(result)
    with cpu_allocations() as allocations:
        found = holds_nan(result)
    assert not found
    assert allocations.peak_bytes() < result.numel() * result.itemsize / 10


@pytest.mark.parametrize("kind", KINDS)
def test_one_nan_is_found_wherever_it_stands(kind: str) -> None:
    for place in ((0, 0), (-1, -1), (517, 333)):
        result = KINDS[kind]().detach()
        result[place] = float("nan")
        assert holds_nan(result)


def test_nan_is_found_in_either_part_of_a_complex_number_and_nowhere_else() -> None:
    assert not holds_nan(torch.tensor([float("inf"), float("-inf")]))
    assert not holds_nan(torch.empty(0, 3))
    assert not holds_nan(torch.arange(3))
    assert not holds_nan(torch.empty(3, device="meta"))
    assert holds_nan(torch.tensor(float("nan")))
    assert holds_nan(torch.complex(torch.tensor([0.0]), torch.tensor([float("nan")])).conj())
    assert holds_nan(torch.complex(torch.tensor([float("nan")]), torch.tensor([0.0])))
