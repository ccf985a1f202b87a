"""The order in which groups take turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perflab.running.session.case_order import Step, in_rounds


def ordered(*names: str) -> list[str]:
    """Names such as ``a1x``: group a, its step 1, the case x."""
    return [names[place] for place in in_rounds([(name[0], name[1]) for name in names])]


def test_a_case_of_each_group_comes_before_the_second_of_any() -> None:
    assert ordered("a1", "a2", "a3", "b1", "c1", "c2") == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_what_is_shown_side_by_side_stays_together_wherever_its_cases_stood() -> None:
    assert ordered("a1x", "a2x", "a1y", "a2y", "b1x", "b1y") == ["a1x", "a1y", "b1x", "b1y", "a2x", "a2y"]


def test_nothing_gives_nothing_and_one_group_stays_as_it_is() -> None:
    assert ordered() == []
    assert ordered("a1", "a2", "a3") == ["a1", "a2", "a3"]


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
