"""One measurement from beginning to end, on a clock that moves only when the measured work moves it."""

from __future__ import annotations

import gc
import itertools
from collections import deque
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from perflab.measure.calls.workload import Step, Workload
from perflab.measure.clocks.set_up import SetUpWorkload
from perflab.measure.counts.counter import CallCounter, compiler_state
from perflab.measure.memory.alike import Watched
from perflab.measure.stopping import Plan
from perflab.measurement.measurement import Measured, measure, replicate_of
from perflab.results.measurement import Measurement
from tests.harness.make import MS
from tests.harness.virtual_clock import VirtualClock

CPU = torch.device("cpu")
S = 1_000 * MS


def measured(workload: Workload, budget_ns: float = 2 * S, warmup: int | None = None) -> Measured:
    return measure(workload, CPU, Plan(budget_ns, warmup), lambda _text: None, label="a case")


def test_a_measurement_has_its_samples_its_memory_and_the_last_result(virtual_clock: VirtualClock) -> None:
    calls: list[int] = []

    def work() -> torch.Tensor:
        calls.append(1)
        virtual_clock.advance(100 * MS)
        return torch.full((256,), float(len(calls)))

    found = measured(Workload(work, (), {}))
    assert set(found.measurement.samples_ns) == {100 * MS}
    assert found.measurement.repetitions == 1
    assert found.measurement.settled
    assert found.measurement.clock == "host"
    assert found.measurement.memory.peak_bytes == 1024
    assert found.result[0].item() == len(calls)


def test_every_phase_has_as_many_samples_as_the_whole_and_a_fixed_warm_up_is_counted(
    virtual_clock: VirtualClock,
) -> None:
    step = Step(lambda: virtual_clock.advance(60 * MS), lambda _loss: virtual_clock.advance(40 * MS))
    found = measured(step).measurement
    assert list(found.phases_ns) == ["forward", "backward"]
    assert [sum(parts) for parts in zip(*found.phases_ns.values(), strict=True)] == found.samples_ns
    assert measured(Workload(virtual_clock.advance, (100 * MS,), {}), warmup=3).measurement.warmup_calls == 3


def boiled_down(samples_ns: list[int], repetitions: int = 1) -> Measurement:
    return Measurement(
        samples_ns=samples_ns, repetitions=repetitions, warmup_calls=2, settled=True, clock="host", phases_ns={}
    )


def test_a_replicate_tells_times_of_one_call_and_trims_no_sample() -> None:
    found = replicate_of(boiled_down([1_000 * MS, 1_400 * MS, 1_200 * MS], repetitions=10))
    assert (found.median_ns, found.fastest_ns, found.mean_ns, found.samples) == (120 * MS, 100 * MS, 120 * MS, 3)
    assert found.std_ns == pytest.approx(20 * MS)
    assert found.noise == pytest.approx(20.0 / 120.0, abs=1e-6)
    found = replicate_of(boiled_down([1_000]))
    assert (found.median_ns, found.std_ns, found.samples) == (1_000.0, 0.0, 1)
    found = replicate_of(boiled_down([100] * 9 + [100_000]))
    assert found.mean_ns == 10_090.0
    assert found.std_ns > 30_000
    assert found.median_ns == 100.0


def test_phases_are_boiled_down_to_their_medians_of_one_call() -> None:
    measurement = Measurement(
        samples_ns=[30, 60, 90],
        repetitions=10,
        warmup_calls=0,
        settled=True,
        clock="host",
        phases_ns={"forward": [10, 20, 30], "backward": [20, 40, 60]},
    )
    assert replicate_of(measurement).phases_ns == {"forward": 2.0, "backward": 4.0}


# --- calls that differ -----------------------------------------------------------------------------------------------


def growing() -> Callable[[], object]:
    cache: dict[int, torch.Tensor] = {}

    def work() -> None:
        cache[len(cache)] = torch.zeros(256)

    return work


def popping() -> Callable[[], object]:
    queue = deque([3, 4])
    return lambda: torch.zeros(queue.popleft()).sum() if queue else None


def popping_at_once() -> Callable[[], object]:
    todo = [3, 4]

    def work() -> None:
        while todo:
            torch.zeros(todo.pop())

    return work


def exhausting(source: Iterator[int]) -> Callable[[], object]:
    return lambda: list(source)


def shrinking() -> Callable[[], object]:
    x = torch.arange(100.0)
    return lambda: x.sub_(10).clamp_(0).nonzero()


def alternating() -> Callable[[], object]:
    calls = itertools.count()
    return lambda: [torch.zeros(2) for _ in range(1 + next(calls) % 2)][-1]


DIFFERENT: dict[str, tuple[Callable[[], object], list[str], bool]] = {
    "a cache that grows": (
        growing(),
        ["held memory differs (9.00 KiB to 10.0 KiB)", "cache is changed by each call"],
        False,
    ),
    "a queue": (popping(), ["queue is used up", "the first call returned float32 (), and the last None"], True),
    "a queue that the first call empties": (popping_at_once(), ["todo is used up"], True),
    "an iterator": (exhausting(iter([1])), ["source is used up", "the first call returned list of 1: number"], True),
    "a generator": (exhausting(_ for _ in [1]), ["source is used up", "the first call returned list of 1"], True),
    "a changed input": (
        shrinking(),
        ["the first call returned int64 (89, 1), and the last int64 (0, 1)", "x is changed by each call"],
        False,
    ),
    "turns": (alternating(), ["operators differ (1 to 2)", "allocations differ (1 to 2)"], False),
}


@pytest.mark.parametrize("kind", DIFFERENT)
def test_calls_that_differ_are_told_by_what_makes_them_differ_and_count_nothing(
    virtual_clock: VirtualClock, kind: str
) -> None:
    work, expected, used_up = DIFFERENT[kind]
    found = in_turns_with(virtual_clock, work)
    assert found.memory is not None
    for text in expected:
        assert any(said.startswith(text) for said in found.memory.calls_differ), found.memory.calls_differ
    assert found.memory.used_up == used_up
    assert found.counts == {}
    assert (found.memory.shown_bytes is None) == ("memory" in found.memory.least) == (kind != "turns")
    assert found.memory.least.keys() >= {"operators", "allocations"}


@pytest.mark.parametrize(("workers", "told"), [(0, []), (1, []), (2, ["batches of 2 workers arrive in any order"])])
def test_calls_that_draw_batches_of_several_workers_are_never_alike(
    virtual_clock: VirtualClock, workers: int, told: list[str]
) -> None:
    batches = iter(DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=1, num_workers=workers))
    memory = in_turns_with(virtual_clock, lambda: next(batches)[0].sum()).memory
    assert [said for said in memory.calls_differ if "workers" in said] == told
    assert (memory.shown_bytes is None) == bool(told)


def test_batches_that_a_set_up_draws_leave_calls_alike(virtual_clock: VirtualClock) -> None:
    batches = iter(DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=1, num_workers=2))
    work = SetUpWorkload(lambda x: x.sum(), (), {}, lambda: tuple(next(batches)), CPU)
    memory = in_turns_with(virtual_clock, work).memory
    assert (memory.calls_differ, memory.held_bytes) == ([], 16)


def in_turns_with(virtual_clock: VirtualClock, work: Callable[[], object] | Workload) -> Measurement:
    """Of calls that take 100 ms each."""
    inner = work if isinstance(work, Workload) else Workload(work, (), {})

    class Timed(Watched):
        def run(self, after_phase: Callable[[], None] = lambda: None) -> object:
            virtual_clock.advance(100 * MS)
            return inner.run(after_phase)

    counter = CallCounter(CPU, compiler_state())
    return measure(Timed(inner, CPU), CPU, Plan(2 * S), lambda _text: None, "a case", counter).measurement


def training() -> Workload:
    """With state that the optimizer makes in its first step, parameters that change, and a log that grows."""
    model = nn.Sequential(nn.LazyLinear(4), nn.LayerNorm(4))
    model(torch.ones(2, 3))
    optimizer, losses = torch.optim.AdamW(model.parameters()), list[float]()

    def update() -> None:
        optimizer.step()
        optimizer.zero_grad()
        losses.append(1.0)

    return Step(lambda: model(torch.ones(2, 3)).sum(), torch.Tensor.backward, update)


def set_up_once() -> Callable[[], object]:
    pending = [3, 4]

    def work() -> torch.Tensor:
        while pending:
            torch.zeros(pending.pop())
        return torch.ones(8).sum()

    return work


def scratch(buffer: list[torch.Tensor]) -> torch.Tensor:
    buffer.append(torch.ones(8))
    total = torch.stack(buffer[-1:]).sum()
    buffer.clear()
    return total


def settling() -> Callable[[], object]:
    cache, calls = dict[int, torch.Tensor](), itertools.count()
    return lambda: cache.setdefault(min(next(calls), 2), torch.zeros(2)) + 1


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(training(), id="a training step"),
        pytest.param(settling(), id="a cache that settles"),
        pytest.param(set_up_once(), id="a list that lazy set-up empties"),
        pytest.param(Workload(scratch, ([torch.ones(8)],), {}), id="a list that each call fills and empties"),
        pytest.param(lambda: torch.ones(8).relu_(), id="in place"),
        pytest.param(lambda: [1.0, None, {"a": torch.ones(2)}], id="a result of many parts"),
    ],
)
def test_calls_that_are_alike_once_all_is_set_up_have_an_exact_peak_and_counts(
    virtual_clock: VirtualClock, work: Callable[[], object]
) -> None:
    found = in_turns_with(virtual_clock, work)
    assert (found.memory.calls_differ, found.memory.used_up) == ([], False)
    assert found.memory.shown_bytes
    assert found.counts["allocations"] > 0


# --- the collector, last: what is thawed for it makes each collection slow -------------------------------------------


@pytest.mark.usefixtures("whole_collections")
@pytest.mark.parametrize("raises", [True, False])
def test_the_collector_runs_during_samples_and_forgets_nothing_afterwards(
    virtual_clock: VirtualClock, raises: bool
) -> None:
    before = gc.get_freeze_count()  # 375 in Python 3.12
    frozen: list[int] = []

    def work() -> None:
        frozen.append(gc.get_freeze_count())
        virtual_clock.advance(500 * MS)
        if raises:
            raise ValueError("no")

    if raises:
        with pytest.raises(ValueError, match="no"):
            measured(Workload(work, (), {}))
    else:
        measured(Workload(work, (), {}))
    assert frozen[0] > before
    assert gc.get_freeze_count() <= before


@pytest.mark.usefixtures("whole_collections")
def test_what_a_program_froze_itself_stays_frozen(virtual_clock: VirtualClock) -> None:
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        measured(Workload(virtual_clock.advance, (100 * MS,), {}))
        assert gc.get_freeze_count() == pytest.approx(before, rel=0.01)  # nothing of ours, and nothing let go
    finally:
        gc.unfreeze()
