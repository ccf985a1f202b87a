"""Offered load on a virtual clock: arrivals are a Poisson process, waiting counts, saturation is at the capacity."""

from __future__ import annotations

import pytest
import torch

from perflab import serving
from perflab.lab.inference.load import Answered, drive, poisson_arrivals
from perflab.lab.inference.paged_cache import PagePool
from perflab.lab.inference.scheduler import Made, Request, Scheduler
from tests.correctness.inference import PLAIN, model_of
from tests.correctness.test_sampling import chi_square

pytestmark = pytest.mark.correctness

STEP_S = 0.5
NEW_TOKENS = 4
BATCH = 2


class Timed(Scheduler):
    """A scheduler each of whose steps takes half a second of its own clock."""

    def __init__(self) -> None:
        pool = PagePool(PLAIN, num_pages=8, dtype=torch.float64)
        super().__init__(model_of(PLAIN), pool, max_batch=BATCH)
        self.now_s = 100.0

    def step(self) -> list[Made]:
        """As of `Scheduler`."""
        self.now_s += STEP_S
        return super().step()

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.now_s += seconds


def answers(arrivals_s: list[float]) -> list[Answered]:
    scheduler = Timed()
    requests = [Request([1, 2, 3], NEW_TOKENS)] * len(arrivals_s)
    return drive(scheduler, requests, arrivals_s, now=lambda: scheduler.now_s, wait=scheduler.wait)


def test_gaps_between_arrivals_are_exponential() -> None:
    arrivals = torch.tensor(poisson_arrivals(2.5, 5000, seed=3), dtype=torch.float64)
    gaps = arrivals.diff(prepend=torch.zeros(1, dtype=torch.float64))
    assert bool((gaps > 0).all())
    assert float(gaps.mean()) == pytest.approx(1 / 2.5, rel=0.05)
    cells = torch.bincount(((1 - (-2.5 * gaps).exp()) * 20).long(), minlength=20)  # even, if exponential with that rate
    assert chi_square(cells, torch.full((20,), 1 / 20)) > 1e-6
    even = torch.full((5000,), 1 / 2.5)  # the control: arrivals as a metronome
    assert chi_square(torch.bincount(((1 - (-2.5 * even).exp()) * 20).long(), minlength=20), cells / cells.sum()) < 1e-6


def test_a_request_alone_takes_its_steps_and_one_that_waits_counts_waiting() -> None:
    (alone,) = answers([3.0])
    assert alone.arrival_s == 3.0
    assert alone.tokens_s == [3.5, 4.0, 4.5, 5.0]
    first, second, third = answers([0.0, 0.0, 0.0])  # a batch of two: the third waits for the first to end
    assert first.tokens_s == [0.5, 1.0, 1.5, 2.0]
    assert second.tokens_s == [1.0, 1.5, 2.0, 2.5]
    assert third.tokens_s[0] == 2.5


def test_it_saturates_where_the_capacity_is() -> None:
    """A request needs four steps and two run at once: one a second at most; less, as prompts come one at a time."""
    completed, capacity = {}, BATCH / (NEW_TOKENS * STEP_S)
    for rate in (0.2, 0.4, 0.8, 1.6, 3.2):
        arrivals = poisson_arrivals(rate, 60)
        found = [serving.Request(a.arrival_s, tuple(a.tokens_s)) for a in answers(arrivals)]
        offered = 59 / (arrivals[-1] - arrivals[0])  # by chance some per cent off the rate that was asked for
        completed[offered] = 59 / (max(one.outputs_s[-1] for one in found) - arrivals[0])
    keeps_up, falls_behind = serving.saturation(completed)
    assert keeps_up is not None
    assert falls_behind is not None
    assert keeps_up <= capacity
    assert max(completed.values()) <= 1.02 * capacity
    assert falls_behind > 0.5 * capacity


@pytest.mark.parametrize(("rate", "number"), [(0.0, 3), (float("inf"), 3), (1.0, 0)])
def test_a_load_of_nothing_is_refused(rate: float, number: int) -> None:
    with pytest.raises(ValueError, match="wanted 1 or more, at a positive rate"):
        poisson_arrivals(rate, number)
