"""What is left of a run's budget, the fair share of a case, and the order in which groups take turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.running.session.case_order import Step, in_rounds
from perflab.settings.settings import SHARE_AT_LEAST_S, TotalBudget


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_is_left_is_what_was_not_spent_and_without_a_budget_nobody_has_to_share(clock: Clock) -> None:
    budget = TotalBudget(60.0, clock)
    clock.now_s += 45.0
    assert budget.left_s() == 15.0
    budget = TotalBudget(None, clock)
    budget.cases = 20
    assert budget.left_s() is None
    assert budget.case_share_s() is None
    assert budget.share_s(3) is None


def test_a_case_may_take_as_much_as_each_of_those_to_come(clock: Clock) -> None:
    budget = TotalBudget(155.0, clock)
    budget.cases = 20
    assert budget.case_share_s() == 155.0 / 20
    clock.now_s += 30.0
    budget.case_done()
    assert budget.case_share_s() == 125.0 / 19
    for _ in range(18):  # skipped, in no time
        budget.case_done()
    assert budget.case_share_s() == 125.0


def test_the_causes_of_failures_have_their_share_before_anything_is_measured_and_a_quarter_at_most(
    clock: Clock,
) -> None:
    budget = TotalBudget(240.0, clock)
    budget.cases = 10
    budget.causes_s = 40.0
    assert (budget.left_s(), budget.measuring_s(), budget.case_share_s()) == (240.0, 200.0, 20.0)
    budget.causes_s = 400.0
    assert budget.measuring_s() == 180.0
    clock.now_s += 200.0
    assert budget.measuring_s() == -20.0
    assert not budget.is_over(), "the causes' share is left"
    clock.now_s += 40.0
    assert budget.is_over()
    assert TotalBudget(None, clock).measuring_s() is None


def test_workers_measure_one_at_a_time_so_they_share_the_time_too(clock: Clock) -> None:
    budget = TotalBudget(100.0, clock)
    budget.cases, budget.processes = 10, 2
    budget.case_done()
    assert budget.case_share_s() == 100.0 / 8


def test_a_share_is_never_too_small_to_measure_in_nor_does_a_rerun_do_harm(clock: Clock) -> None:
    budget = TotalBudget(10.0, clock)
    budget.cases = 1000
    assert budget.case_share_s() == SHARE_AT_LEAST_S
    clock.now_s += 20.0
    assert budget.share_s(1) == SHARE_AT_LEAST_S
    clock.now_s -= 20.0
    for _ in range(1005):
        budget.case_done()
    assert budget.case_share_s() == 10.0


def ordered(*names: str) -> list[str]:
    """Names such as ``a1x``: group a, its step 1, the case x."""
    return [names[place] for place in in_rounds([(name[0], name[1]) for name in names])]


def test_a_case_of_each_group_comes_before_the_second_of_any() -> None:
    assert ordered("a1", "a2", "a3", "b1", "c1", "c2") == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert ordered() == []
    assert ordered("a1", "a2", "a3") == ["a1", "a2", "a3"]


def test_what_is_shown_side_by_side_stays_together_wherever_its_cases_stood() -> None:
    assert ordered("a1x", "a2x", "a1y", "a2y", "b1x", "b1y") == ["a1x", "a1y", "b1x", "b1y", "a2x", "a2y"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=30))
def test_every_case_has_its_turn_once_and_rounds_never_go_back(steps: list[Step]) -> None:
    order = in_rounds(steps)
    assert sorted(order) == list(range(len(steps)))
    numbers: dict[object, list[object]] = {}
    for group, step in steps:
        known = numbers.setdefault(group, [])
        if step not in known:
            known.append(step)
    rounds = [numbers[group].index(step) for group, step in (steps[place] for place in order)]
    assert rounds == sorted(rounds)
