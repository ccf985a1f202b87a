"""Timed calls compared with untimed ones: who returns something else while being timed, and who merely takes turns."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from perflab.base.errors import ResultsError
from perflab.measure.calls.same import Comparing
from perflab.measure.calls.workload import Workload
from perflab.results.measurement import Results


def concluded(call: Callable[[bool], torch.Tensor], calls: int) -> tuple[Results | None, ResultsError | None]:
    """Measure a call that learns whether it is timed: warm-up, samples of so many calls, then an untimed call."""
    is_timed = True
    workload = Workload(lambda: call(is_timed), (), {})
    comparing = Comparing(workload)

    def sample(*, warm: bool) -> None:
        nonlocal is_timed
        is_timed = True
        wrapped = comparing.wrapped(workload, calls, warm=warm)
        for _ in range(calls):
            wrapped.run()
        comparing.note(wrapped, warm=warm)
        is_timed = False

    sample(warm=False)
    for _ in range(6):
        sample(warm=True)
    return comparing.concluded(comparing.left(workload.run()), lambda: sample(warm=True))


@pytest.mark.parametrize("period", [2, 3, 4])
@pytest.mark.parametrize("calls", [1, 2, 3, 4, 6])
def test_results_that_come_in_turns_are_not_comparable_and_accuse_nobody(period: int, calls: int) -> None:
    for phase in range(period):
        made = [phase]

        def in_turns(_is_timed: bool, made: list[int] = made) -> torch.Tensor:
            made[0] += 1
            return torch.full((8,), float(made[0] % period))

        known, error = concluded(in_turns, calls)
        assert error is None
        assert known in (Results.SAME, Results.NOT_COMPARABLE)


def test_a_call_that_returns_something_else_while_it_is_timed_is_an_error() -> None:
    known, error = concluded(lambda is_timed: torch.zeros(8) if is_timed else torch.ones(8), 2)
    assert known is None
    assert isinstance(error, ResultsError)
    assert concluded(lambda _: torch.ones(8), 2) == (Results.SAME, None)
