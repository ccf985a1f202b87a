"""Calibration, warm-up and stopping, told on a clock that moves only when the measured work moves it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from perflab.measure.clocks.clock import Sample
from perflab.measure.stopping import Plan, Warmup, collect, is_cut_short, repetitions_for, warm_up
from tests.harness.make import MS
from tests.harness.virtual_clock import VirtualClock

US = 1_000
S = 1_000 * MS


class Work:
    """Work whose n-th call, counted from 0, takes ``cost_ns(n)``; it keeps every sample that was taken of it."""

    def __init__(self, clock: VirtualClock, cost_ns: Callable[[int], int]) -> None:
        self.clock = clock
        self.cost_ns = cost_ns
        self.calls = 0
        self.samples: list[Sample] = []
        self.repetitions: list[int] = []

    def time_once(self, repetitions: int) -> Sample:
        total_ns = sum(self.cost_ns(self.calls + n) for n in range(repetitions))
        self.calls += repetitions
        self.clock.advance(total_ns)
        self.samples.append(Sample(total_ns))
        self.repetitions.append(repetitions)
        return self.samples[-1]


def steady(cost_ns: int) -> Callable[[int], int]:
    return lambda _call: cost_ns


def silent(_text: str) -> None:
    """Progress that nobody watches."""


def warm(work: Work, budget_ns: float = 10 * S, warmup: int | None = None) -> Warmup:
    return warm_up(work.time_once, Plan(budget_ns, warmup), silent)


def sampled(work: Work, budget_ns: float, repetitions: int = 1) -> list[Sample]:
    return collect(work.time_once, repetitions, Plan(budget_ns), budget_ns, silent, between=lambda: None)


# --- calibration -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost_ns", [20, 300, 7 * US, 400 * US, 999_999])
def test_short_calls_are_repeated_until_a_sample_lasts_a_millisecond(virtual_clock: VirtualClock, cost_ns: int) -> None:
    warmup = warm(Work(virtual_clock, steady(cost_ns)))
    assert 1 * MS <= warmup.repetitions * cost_ns < 2 * MS
    assert warmup.settled
    assert warm(Work(virtual_clock, steady(cost_ns)), warmup=5).repetitions * cost_ns >= 1 * MS


@pytest.mark.parametrize("cost_ns", [1 * MS, 5 * MS, 3 * S])
def test_long_calls_are_not_repeated(virtual_clock: VirtualClock, cost_ns: int) -> None:
    assert warm(Work(virtual_clock, steady(cost_ns)), budget_ns=60 * S).repetitions == 1


def test_repetitions_grow_at_most_tenfold_and_a_slow_first_call_spoils_nothing(virtual_clock: VirtualClock) -> None:
    work = Work(virtual_clock, lambda call: 2 * S if call == 0 else 10 * US)
    assert warm(work, budget_ns=60 * S).repetitions >= 100
    assert repetitions_for(0, 7) == 70
    assert repetitions_for(1, 7) == 70
    assert repetitions_for(500_000, 7) == 14
    assert repetitions_for(1_000_000, 7) == 7


# --- warm-up -----------------------------------------------------------------------------------------------------


def test_warm_up_ends_once_two_successive_readings_agree(virtual_clock: VirtualClock) -> None:
    costs = [900, 400, 200, 120, 100, 101, 100]
    warmup = warm(Work(virtual_clock, lambda call: costs[min(call, 6)] * MS), budget_ns=100 * S)
    assert warmup.settled
    assert warmup.calls == 6
    assert warmup.readings_ns == tuple(cost * MS for cost in costs[:6])


def test_readings_that_never_agree_end_with_a_quarter_of_the_budget_and_are_marked(virtual_clock: VirtualClock) -> None:
    assert not warm(Work(virtual_clock, lambda call: (100 if call % 2 else 200) * MS), budget_ns=10 * S).settled
    assert 2.5 * S <= virtual_clock.now_ns <= 3 * S


def test_a_case_that_outlasts_the_budget_or_gets_slower_is_not_settled(virtual_clock: VirtualClock) -> None:
    warmup = warm(Work(virtual_clock, steady(20 * S)), budget_ns=10 * S)
    assert (warmup.calls, warmup.settled) == (1, False)
    assert not warm(Work(virtual_clock, lambda call: round(1.2**call * MS)), budget_ns=1 * S).settled


@pytest.mark.parametrize("calls", [0, 1, 2, 5])
def test_a_fixed_warm_up_makes_exactly_so_many_calls(virtual_clock: VirtualClock, calls: int) -> None:
    work = Work(virtual_clock, lambda call: (100 - 10 * min(call, 5)) * MS)
    warmup = warm(work, warmup=calls)
    assert (warmup.calls, work.calls) == (calls, calls)
    assert len(warmup.readings_ns) == calls


def test_a_warm_up_of_zero_leaves_the_very_first_call_to_the_first_sample(virtual_clock: VirtualClock) -> None:
    work = Work(virtual_clock, lambda call: 500 * MS if call == 0 else 10 * MS)
    warmup = warm(work, warmup=0)
    assert warmup.repetitions == 1
    assert sampled(work, budget_ns=1 * S, repetitions=warmup.repetitions)[0].total_ns == 500 * MS


def test_warm_up_ends_on_a_clock_that_stands_still(virtual_clock: VirtualClock) -> None:
    calls = 0

    def time_once(repetitions: int) -> Sample:
        nonlocal calls
        calls += repetitions
        return Sample(0)

    warmup = warm_up(time_once, Plan(10 * S), silent)
    assert not warmup.settled
    assert warmup.calls == calls < 10_000_000


# --- stopping ----------------------------------------------------------------------------------------------------


def test_sampling_stops_long_before_the_budget_once_the_median_is_known_to_a_percent(
    virtual_clock: VirtualClock,
) -> None:
    assert len(sampled(Work(virtual_clock, lambda call: 10 * MS + call % 3 * US), budget_ns=60 * S)) >= 12
    assert 0.3 * S <= virtual_clock.now_ns <= 1 * S


def test_a_tight_beginning_is_not_trusted_before_the_machine_had_time_to_change(virtual_clock: VirtualClock) -> None:
    samples = sampled(Work(virtual_clock, steady(1 * MS)), budget_ns=60 * S)
    assert sum(sample.total_ns for sample in samples) >= 300 * MS


def test_noisy_samples_are_taken_until_the_budget_is_spent(virtual_clock: VirtualClock) -> None:
    draw = random.Random(7)
    work = Work(virtual_clock, lambda _call: round(100 * MS * draw.lognormvariate(0.0, 0.5)))
    samples = sampled(work, budget_ns=10 * S)
    assert 10 * S <= virtual_clock.now_ns <= 10 * S + samples[-1].total_ns


@pytest.mark.parametrize(
    ("cost_ns", "samples", "budget_ns"),
    [(60 * MS, 4, 10 * S), (2 * S, 3, 60 * S), (60 * MS, 3, 100 * MS), (2 * S, 1, 1 * S)],
)
def test_a_brief_plan_ends_with_three_samples_over_300_ms_however_uncertain_the_median_and_never_later_than_another(
    virtual_clock: VirtualClock, cost_ns: int, samples: int, budget_ns: int
) -> None:
    work = Work(virtual_clock, lambda call: cost_ns * (2 if call % 2 else 1))
    plan = Plan(budget_ns, brief=True)
    taken = collect(work.time_once, 1, plan, budget_ns, silent, between=lambda: None)
    assert len(taken) == samples
    lasted_ns = virtual_clock.now_ns
    assert is_cut_short(taken, plan, budget_ns, lasted_ns) == (lasted_ns < budget_ns and samples >= 3)
    assert not is_cut_short(taken, Plan(budget_ns), budget_ns, lasted_ns), "this is all that such a plan takes"
    assert not is_cut_short([Sample(50 * MS)] * 6, plan, budget_ns, 300 * MS), "nor would any plan have gone on"


@pytest.mark.parametrize(("cost_ns", "samples"), [(900 * MS, 3), (1_400 * MS, 2), (2 * S, 1)])
def test_three_samples_are_taken_though_the_budget_is_spent_and_fewer_of_a_call_far_beyond_it(
    virtual_clock: VirtualClock, cost_ns: int, samples: int
) -> None:
    assert len(sampled(Work(virtual_clock, steady(cost_ns)), budget_ns=1 * S)) == samples


def test_a_case_that_has_to_share_a_run_s_time_has_three_samples_where_its_own_budget_allows(
    virtual_clock: VirtualClock,
) -> None:
    def sampled_within(cost_ns: int) -> int:
        work, share = Work(virtual_clock, steady(cost_ns)), Plan(1 * S, least_samples_ns=3 * 15 * S)
        return len(collect(work.time_once, 1, share, 1 * S, silent, between=lambda: None))

    assert sampled_within(4 * S) == 3
    assert sampled_within(23 * S) == 1


@pytest.mark.parametrize("cost_ns", [20 * MS, 400 * MS, 1 * S, 2 * S, 2_900 * MS])
def test_sampling_never_takes_more_than_three_budgets(virtual_clock: VirtualClock, cost_ns: int) -> None:
    sampled(Work(virtual_clock, steady(cost_ns)), budget_ns=1 * S)
    assert virtual_clock.now_ns <= 3 * S


def test_no_sample_is_dropped_or_moved_and_each_has_the_repetitions_that_were_calibrated(
    virtual_clock: VirtualClock,
) -> None:
    draw = random.Random(11)
    work = Work(virtual_clock, lambda _call: draw.choice([10, 11, 12, 500]) * MS)
    assert sampled(work, budget_ns=5 * S, repetitions=2) == work.samples
    assert set(work.repetitions) == {2}


def test_what_runs_between_samples_runs_before_each_and_is_in_none(virtual_clock: VirtualClock) -> None:
    work = Work(virtual_clock, steady(10 * MS))
    seen: list[int] = []

    def between() -> None:
        seen.append(len(work.samples))
        virtual_clock.advance(3 * MS)

    samples = collect(work.time_once, 1, Plan(1 * S), 1 * S, silent, between)
    assert seen == list(range(len(samples)))
    assert {sample.total_ns for sample in samples} == {10 * MS}


def test_sampling_ends_on_a_clock_that_stands_still(virtual_clock: VirtualClock) -> None:
    assert 3 <= len(sampled(Work(virtual_clock, steady(0)), budget_ns=1 * S)) <= 1000


def test_a_watcher_is_told_of_warm_up_and_of_every_sample_with_the_time_that_it_takes(
    virtual_clock: VirtualClock,
) -> None:
    told: list[str] = []
    work = Work(virtual_clock, steady(1 * S))
    warm_up(work.time_once, Plan(10 * S), told.append)
    assert told == ["warm-up 1", "warm-up 2"]
    told.clear()
    samples = collect(work.time_once, 1, Plan(10 * S), 10 * S, told.append, between=lambda: None)
    assert len(told) == len(samples)
    assert told[4] == "sample 5, 4 s of 10 s"
