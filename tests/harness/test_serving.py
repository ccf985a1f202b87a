"""Statistics of serving, by their definitions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.base.errors import UsageError
from perflab.serving import Percentile, Request, goodput, percentiles, saturation, served

QUICK = Request(0.0, (0.2, 0.3, 0.4, 0.5))
LATE = Request(1.0, (2.0, 2.1, 2.2))
SLOW = Request(1.0, (1.2, 2.2, 3.2))
SINGLE = Request(2.0, (2.5,))
GIVEN_UP = Request(3.0, (3.5, 4.0), is_cancelled=True)
WAITING = Request(3.0)
ALL = [QUICK, LATE, SLOW, SINGLE, GIVEN_UP, WAITING]


def test_a_request_has_its_first_token_apart_from_the_others() -> None:
    assert LATE.ttft_s == pytest.approx(1.0)
    assert LATE.tpot_s == pytest.approx(0.1)
    assert SINGLE.tpot_s is None
    assert (WAITING.ttft_s, WAITING.tpot_s) == (None, None)


def test_speculation_changes_the_time_per_token_and_not_the_times_between_outputs() -> None:
    plain, speculative = Request(0.0, (1.0, 2.0, 3.0)), Request(0.0, (1.0, 2.0, 3.0), tokens=5)
    assert (plain.tpot_s, speculative.tpot_s) == (1.0, 0.5)
    assert served([plain]).itl_s == served([speculative]).itl_s


def test_requests_are_summed_up_over_the_whole_time() -> None:
    found = served(ALL)
    assert found.duration_s == 4.0
    assert (found.completed, found.cancelled, found.unanswered) == (4, 1, 1)
    assert found.requests_per_s == 1.0
    assert found.tokens_per_s == 13 / 4.0, "cancelled ones were made too"
    assert found.ttft_s == {"p50": Percentile(pytest.approx((0.2 + 0.5) / 2))}
    assert found.tpot_s["p50"].value == pytest.approx(0.1)
    assert served(ALL, duration_s=8.0).requests_per_s == 0.5


def test_goodput_counts_what_met_both_limits() -> None:
    assert goodput(ALL) == 1.0
    assert goodput(ALL, ttft_s=0.6) == 0.75
    assert goodput(ALL, tpot_s=0.11) == 0.75, "one token alone exceeds no time per token"
    assert goodput(ALL, ttft_s=0.6, tpot_s=0.11) == 0.5
    assert goodput(ALL, ttft_s=0.01) == 0.0


@pytest.mark.parametrize(
    ("completed", "found"),
    [
        ({1.0: 1.0, 2.0: 1.98, 4.0: 3.0, 8.0: 3.1}, (2.0, 4.0)),
        ({8.0: 3.0, 4.0: 4.0}, (4.0, 8.0)),
        ({1.0: 1.0, 2.0: 2.0}, (2.0, None)),
        ({1.0: 0.5, 2.0: 0.5}, (None, 1.0)),
        ({1.0: 0.9, 2.0: 2.0, 4.0: 3.0}, (2.0, 4.0)),
    ],
)
def test_a_server_is_saturated_where_it_falls_behind_from_there_on(
    completed: dict[float, float], found: tuple[float | None, float | None]
) -> None:
    assert saturation(completed) == found


def test_a_quantile_is_told_where_it_can_be_known() -> None:
    assert percentiles([]) == {}
    assert percentiles([None, 3.0]) == {"p50": Percentile(3.0)}
    assert set(percentiles(range(36))) == {"p50", "p90"}
    assert set(percentiles(range(368))) == {"p50", "p90", "p99"}


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=500))
def test_a_quantile_lies_within_its_interval(values: list[float]) -> None:
    for one in percentiles(values).values():
        assert one.low is None or (one.high is not None and one.low <= one.value <= one.high)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Request(1.0, (0.5,)), "moments that are not in order"),
        (lambda: Request(0.0, (0.5, 0.4)), "moments that are not in order"),
        (lambda: Request(math.nan), "moments that are not in order"),
        (lambda: Request(0.0, (1.0, 2.0), tokens=1), "with 2 outputs"),
        (lambda: served([]), "no request"),
        (lambda: served([WAITING]), "duration_s="),
        (lambda: goodput(ALL, ttft_s=0.0), "give a limit in seconds"),
        (lambda: saturation({}), "give completed rates by offered rate"),
    ],
)
def test_what_cannot_be_summed_up_is_refused(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)
