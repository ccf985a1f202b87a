"""What is left of a run's budget, and what of that may be spent on doubts."""

from __future__ import annotations

import pytest

from perflab.plugin.total_budget import TotalBudget


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_without_a_budget_nothing_ends(clock: Clock) -> None:
    budget = TotalBudget(None, now_s=clock)
    assert budget.left_s() is None
    with budget.extra() as left_s:
        assert left_s() is None


def test_what_is_left_is_what_was_not_spent(clock: Clock) -> None:
    budget = TotalBudget(60.0, now_s=clock)
    clock.now_s += 45.0
    assert budget.left_s() == 15.0


def test_cases_to_come_are_given_what_those_before_them_took(clock: Clock) -> None:
    budget = TotalBudget(600.0, now_s=clock)
    budget.cases = 20
    clock.now_s += 12.0
    with budget.extra() as left_s:
        assert left_s() == 600.0 - 12.0 - 19 * 12.0
        clock.now_s += 100.0
        assert left_s() == 600.0 - 12.0 - 19 * 12.0 - 100.0, "what is spent here counts once"
    budget.case_done()
    clock.now_s += 12.0
    with budget.extra() as left_s:
        assert left_s() == 600.0 - 124.0 - 18 * 12.0, "and makes the next cases look no longer than they are"


def test_a_tight_budget_leaves_nothing_over(clock: Clock) -> None:
    budget = TotalBudget(60.0, now_s=clock)
    budget.cases = 10
    clock.now_s += 8.0
    with budget.extra() as left_s:
        left = left_s()
        assert left is not None
        assert left < 0


def test_cases_are_shared_among_workers_and_a_rerun_does_no_harm(clock: Clock) -> None:
    budget = TotalBudget(100.0, now_s=clock)
    budget.cases, budget.processes = 4, 2
    clock.now_s += 10.0
    with budget.extra() as left_s:
        assert left_s() == 100.0 - 10.0 - 10.0
    for _ in range(5):
        budget.case_done()
    with budget.extra() as left_s:
        assert left_s() == 90.0


def test_quick_cases_at_first_do_not_promise_quick_ones_later(clock: Clock) -> None:
    budget = TotalBudget(155.0, 10.0, clock)
    budget.cases = 20
    clock.now_s += 1.0
    with budget.extra() as left_s:
        assert left_s() == 155.0 - 1.0 - 19 * 10.0
