"""Arguments that are made anew before each call: what they may be, and that nothing of their making is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from perflab.base.errors import UsageError
from perflab.measure.calls.outputs import outputs_of
from perflab.measure.clocks import set_up
from perflab.measure.clocks.set_up import SetUpWorkload, arguments_in, workload_of
from perflab.measure.counts.counter import CallCounter, compiler_state
from perflab.measure.memory.histories import record_call
from perflab.measure.stopping import Plan
from perflab.measurement.callables import Comparison, Limits, in_turns
from perflab.measurement.measurement import measure, replicate_of
from perflab.predicted.cuda.kernels import ON_CUDA
from perflab.predicted.prediction import traced
from perflab.predicted.run.exploring import work_of as predicted_work_of
from perflab.profiles.take_peak import take_peak
from perflab.results.measurement import Measurement
from tests.harness.make import MS
from tests.harness.virtual_clock import VirtualClock

CPU = torch.device("cpu")
US = MS // 1_000


def one(x: object, /, *, scale: int = 1) -> object:
    return x, scale


def two(x: object, y: object) -> object:
    return x, y


def anything(*args: object, **kwargs: object) -> object:
    return args, kwargs


@pytest.mark.parametrize(
    ("call", "made", "wanted"),
    [
        (one, (3,), ((3,), {})),
        (one, ((3,), {"scale": 2}), ((3,), {"scale": 2})),
        (two, ((3,), {"scale": 2}), (((3,), {"scale": 2}), {})),
        (two, (3, {"y": 2}), ((3, {"y": 2}), {})),
        (two, {"x": 1, "y": 2}, ((), {"x": 1, "y": 2})),
        (one, ([3], {}), ((3,), {})),
        (torch.Tensor.add_, ((3, 4), {"alpha": 2}), ((3, 4), {"alpha": 2})),
        (anything, (), ((), {})),
    ],
)
def test_a_set_up_returns_arguments_as_a_tuple_a_dict_or_both(
    call: Callable[..., Any], made: object, wanted: object
) -> None:
    assert arguments_in(made, call) == wanted


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (torch.ones(3), "returned Tensor\n  -> return the call's arguments: a tuple"),
        ([1], "returned list"),
        ({1: 2}, "returned dict"),
        (((1,), {"a": 2}), "takes either\n  -> return a dict"),
    ],
)
def test_what_may_be_no_arguments_or_others_is_refused(made: object, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        arguments_in(made, anything)


def measured(workload: SetUpWorkload, budget_ns: float = 2_000 * MS) -> Measurement:
    counter = CallCounter(CPU, compiler_state())
    return measure(workload, CPU, Plan(budget_ns), lambda _text: None, "a case", counter).measurement


def test_neither_time_nor_memory_nor_operators_of_the_set_up_are_the_calls(virtual_clock: VirtualClock) -> None:
    def make() -> tuple[torch.Tensor]:
        virtual_clock.advance(30 * US)
        scratch = torch.ones(1 << 20)
        return (scratch[:256] + 1,)

    def grow(x: torch.Tensor) -> torch.Tensor:
        virtual_clock.advance(100 * US)
        return x.neg_().sum()

    found = measured(SetUpWorkload(grow, (), {}, make, CPU))
    assert set(found.samples_ns) == {1 * MS}
    assert found.repetitions == 10
    assert not found.memory.calls_differ
    assert (found.memory.held_bytes, found.memory.growth_bytes) == (1024, 4)
    assert (found.counts["operators"], found.counts["allocations"]) == (2, 1)


def test_what_a_call_appends_to_is_new_for_each_and_counts_as_it_was_given(virtual_clock: VirtualClock) -> None:
    def grow(cache: list[torch.Tensor]) -> None:
        virtual_clock.advance(MS)
        cache.append(torch.ones(256))

    made: list[list[torch.Tensor]] = []

    def make() -> dict[str, object]:
        made.append([torch.ones(256)])
        return {"cache": made[-1]}

    memory = measured(SetUpWorkload(grow, (), {}, make, CPU)).memory
    assert (memory.calls_differ, memory.peak_bytes) == ([], 2048)
    assert {len(one) for one in made} == {1, 2}, "each was given to one call at most"


def test_all_arguments_of_a_sample_are_made_before_its_first_call() -> None:
    story: list[str] = []
    workload = SetUpWorkload(lambda: story.append("call"), (), {}, lambda: story.append("set up"), CPU)
    workload.make_ready(2)
    for _ in range(3):
        workload.run()
    assert story == ["set up", "set up", "call", "call", "set up", "call"]


def test_arguments_beside_a_set_up_are_every_calls_and_it_may_return_none_then() -> None:
    x = torch.zeros(3)
    assert SetUpWorkload(torch.sum, (x,), {}, lambda: x.fill_(2.0) is None or None, CPU).run() == 6
    with pytest.raises(UsageError, match="was given arguments, and setup returned tuple too\n  -> leave the arguments"):
        SetUpWorkload(torch.sum, (x,), {}, lambda: (x,), CPU).run()


def test_where_memory_is_short_a_sample_has_fewer_calls_and_the_clocks_step_widens_the_interval(
    virtual_clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: list[int] = []
    monkeypatch.setattr(set_up, "available_bytes", lambda _device: 1000 - 10 * len(alive))
    monkeypatch.setattr(set_up, "resident_bytes", lambda: 10 * len(alive))
    workload = SetUpWorkload(lambda: virtual_clock.advance(US), (), {}, lambda: alive.append(1), CPU)
    make_ready = workload.make_ready
    monkeypatch.setattr(workload, "make_ready", lambda calls: alive.clear() or make_ready(calls))
    found = measured(workload)
    assert found.repetitions == 25, "a quarter of the memory, 10 B a call"
    assert set(found.samples_ns) == {25 * US}
    assert replicate_of(found).noise == 0
    monkeypatch.setattr("perflab.measure.clocks.clock.step_ns", lambda: 50)
    assert replicate_of(found).noise == 50 / (25 * US)


def test_a_set_up_that_takes_long_leaves_a_sample_few_calls(virtual_clock: VirtualClock) -> None:
    workload = SetUpWorkload(lambda: virtual_clock.advance(US), (), {}, lambda: virtual_clock.advance(10 * MS), CPU)
    assert measured(workload).repetitions == 10, "a twentieth of two seconds"


def test_two_callables_are_compared_on_fresh_arguments_of_the_same_making(virtual_clock: VirtualClock) -> None:
    def made() -> tuple[list[int]]:
        virtual_clock.advance(MS)
        return ([10 * MS, 9 * MS],)

    def compared(base: Callable[..., Any], candidate: Callable[..., Any]) -> Comparison:
        sides = [SetUpWorkload(one, (), {}, made, CPU) for one in (base, candidate)]
        return in_turns(*sides, CPU, Limits(2_000 * MS))

    found = compared(lambda left: virtual_clock.advance(left.pop(0)), lambda left: virtual_clock.advance(left.pop()))
    assert (found.verdict, found.base_ns, found.ratio) == ("improved", 10 * MS, pytest.approx(0.9))


def test_a_prediction_sees_each_call_with_its_own_arguments_and_nothing_of_their_making() -> None:
    def make() -> tuple[torch.Tensor]:
        return (torch.empty(1 << 20)[:256].clone(),)

    found = traced(predicted_work_of(SetUpWorkload(lambda x: x.resize_(0) + 1, (), {}, make, CPU)), ON_CUDA).trace
    assert [block.size_bytes for block in found.held] == [1024]
    assert not [event for event in found.events if getattr(event, "name", "") == "aten::clone"]


def test_a_snapshot_and_a_peak_hold_the_arguments_of_one_call(tmp_path: Any) -> None:
    workload = SetUpWorkload(torch.exp, (), {}, lambda: (torch.ones(256),), CPU)
    assert sum(part.size_bytes for part in take_peak(workload, CPU).parts) == 2048
    assert record_call(workload, tmp_path / "one", CPU).peak_bytes == 1024


def test_outputs_are_those_of_arguments_that_were_made_from_the_same_seed() -> None:
    workload = SetUpWorkload(torch.Tensor.exp_, (), {}, lambda: (torch.rand(8),), CPU)
    workload.make_ready(3)
    assert outputs_of(workload) == outputs_of(workload)


def test_a_set_up_that_was_called_too_early_is_named() -> None:
    with pytest.raises(UsageError, match="'tuple', which cannot be called\n  -> pass the function that makes"):
        workload_of(anything, (), {}, (1,), CPU)  # type: ignore[arg-type]
