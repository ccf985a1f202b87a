"""The peak at sizes that nobody traced, and the largest size that fits: right on every curve, and with few calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.predicted.memory.account import account_of
from perflab.predicted.memory.sizes import MOST, TRUSTED_CALLS, Interpolated, Outline, largest, outline_of
from tests.harness.traced import exact, traced_as_is, work


def attended(size: int) -> Outline:
    """Of a call that has a square of its size for a while, and something long after it."""

    def call() -> torch.Tensor:
        scores = x @ x.t()
        weights = scores.softmax(-1)
        del scores
        mixed = weights @ x
        del weights
        return torch.cat([mixed] * 40)

    x = torch.zeros(size, 16)
    return outline_of(traced_as_is(work(call, x)))


def test_an_outline_has_the_peak_of_its_trace() -> None:
    x = torch.zeros(100, 16)
    trace = traced_as_is(work(lambda: (x + 1.0).exp().sum(), x))
    assert exact(trace).peak_bytes == 3 * 6400
    assert outline_of(trace).peak_bytes() == account_of(trace).peak_bytes == 3 * 6656  # in blocks of 512 bytes


@pytest.mark.parametrize("size", [1, 5, 64, 333, 1001])
def test_the_peak_of_any_size_is_reckoned_from_three(size: int) -> None:
    reckoned = Interpolated({known: attended(known) for known in (8, 24, 32)})
    assert reckoned.holds
    assert reckoned.peak_bytes(size) == attended(size).peak_bytes()


def test_the_worst_moment_may_be_another_at_another_size() -> None:
    reckoned = Interpolated({known: attended(known) for known in (8, 16, 24)})
    few, many = reckoned.peak_bytes(16), reckoned.peak_bytes(1600)
    assert few == 16 * 16 * 4 * (1 + 1 + 40)  # the input, what was mixed, and that forty times over
    assert many == 2 * 1600**2 * 4 + 1600 * 16 * 4  # the input and two squares


def test_what_is_linear_is_reckoned_from_two_and_what_is_not_is_not() -> None:
    line, bow = ({size: Outline((512, 512 * size**degree), (0, 1)) for size in (2, 4)} for degree in (1, 2))
    assert Interpolated(line).peak_bytes(1000) == 512 * 1001
    assert Interpolated(bow).peak_bytes(1000) != 512 * (1 + 1000**2)
    bow[6] = Outline((512, 512 * 36), (0, 1))
    assert Interpolated(bow).peak_bytes(1000) == 512 * (1 + 1000**2)


def test_calls_that_do_other_things_at_other_sizes_are_not_interpolated_and_no_size_is_negative() -> None:
    assert Interpolated({1: Outline((1, 2), (0, 1)), 2: Outline((1, 2), (0, 1))}).holds
    assert not Interpolated({1: Outline((1, 2), (0, 1)), 2: Outline((1, 2), (0, ~0, 1))}).holds
    assert not Interpolated({1: Outline((1, 2), (0, 1)), 2: Outline((1, 2, 3), (0, 1, 2))}).holds
    assert Interpolated({4: Outline((512, 5120), (0, 1)), 6: Outline((512, 15360), (0, 1))}).peak_bytes(1) == 512


MIB, GIB = 2**20, 2**30
Curve = Callable[[int], int]


class Counted:
    """A curve that counts who asks."""

    def __init__(self, curve: Curve) -> None:
        self.curve = curve
        self.asked: list[int] = []

    def __call__(self, size: int) -> int:
        self.asked.append(size)
        return self.curve(size)


def rounded_up(value: float, to: int) -> int:
    return math.ceil(value / to) * to


fixed_bytes = st.integers(0, 40 * GIB)
bytes_each = st.floats(1e3, 1e9)
bytes_each_squared = st.floats(1.0, 1e5)

lines = st.builds(lambda fixed, each: lambda n: int(fixed + each * n), fixed_bytes, bytes_each)
parabolas = st.builds(
    lambda fixed, each, squared: lambda n: int(fixed + each * n + squared * n * n),
    fixed_bytes,
    bytes_each,
    bytes_each_squared,
)
blocks = st.builds(
    lambda curve, to: lambda n: rounded_up(curve(n), to), lines | parabolas, st.sampled_from([512, 2 * MIB, 20 * MIB])
)
stairs = st.builds(
    lambda fixed, each, width: lambda n: int(fixed + each * width * (n // width)),
    fixed_bytes,
    bytes_each,
    st.sampled_from([2, 7, 64, 1000]),
)
kinks = st.builds(
    lambda fixed, each, squared: lambda n: int(fixed + max(each * n, squared * n * n)),
    fixed_bytes,
    bytes_each,
    bytes_each_squared,
)
flat_then_steep = st.builds(
    lambda fixed, base: lambda n: int(fixed + base ** min(n, 10_000)), fixed_bytes, st.just(1.01)
)
curves = lines | parabolas | blocks | stairs | kinks | flat_then_steep
rooms = st.integers(1 * GIB, 180 * GIB)


def check(answer: int | None, curve: Curve, room: int, step: int) -> None:
    """What the answer promises."""
    if answer is None:
        assert curve(step) > room
        return
    assert answer % step == 0
    assert step <= answer <= MOST
    assert curve(answer) <= room
    assert answer + step > MOST or curve(answer + step) > room


@settings(deadline=None, max_examples=300)
@given(
    curves,
    rooms,
    st.sampled_from([1, 3, 64, 128]),
    st.integers(1, 5000),
    st.lists(st.integers(1, 20_000), max_size=3),
)
def test_the_answer_fits_and_the_next_does_not_on_any_curve_from_any_start(
    curve: Curve, room: int, step: int, start: int, known_sizes: list[int]
) -> None:
    counted = Counted(curve)
    known = {size: curve(size) for size in known_sizes}
    check(largest(counted, room, start=start, step=step, known=known), curve, room, step)
    # Nothing is asked twice, nothing that is known, nothing past the end; and a bound on the worst.
    assert len(set(counted.asked)) == len(counted.asked)
    assert not set(counted.asked) & set(known)
    assert all(0 < size <= MOST and size % step == 0 for size in counted.asked)
    assert len(counted.asked) <= TRUSTED_CALLS + math.ceil(math.log2(MOST // step + 1))


@settings(deadline=None, max_examples=200)
@given(lines, rooms, st.integers(1, 64))
def test_of_a_line_with_two_known_points_four_calls_find_it_at_most(curve: Curve, room: int, start: int) -> None:
    counted = Counted(curve)
    answer = largest(counted, room, start=start, known={start: curve(start), 2 * start: curve(2 * start)})
    check(answer, curve, room, 1)
    assert len(counted.asked) <= 4


def sample_of(each: range, curve_of: Callable[[int], Curve]) -> list[int]:
    """How many calls it took, by curve, knowing one point."""
    calls = []
    for number in each:
        curve = curve_of(number)
        counted = Counted(curve)
        check(largest(counted, 79 * GIB, start=4, known={4: curve(4)}), curve, 79 * GIB, 1)
        calls.append(len(counted.asked))
    return calls


def test_few_calls_are_enough_for_curves_of_memory() -> None:
    """Training: weights and their states, activations by size; a parabola, as naive attention by context length."""
    spread = range(1, 200)
    lines_calls = sample_of(spread, lambda i: lambda n: rounded_up(i * 200 * MIB + 31_415_926 * n * (1 + i % 7), 512))
    parabola_calls = sample_of(
        spread, lambda i: lambda n: rounded_up(i * 200 * MIB + 1_000_003 * n + 77 * i * n * n, 512)
    )
    assert fmean(lines_calls) <= 3.5
    assert fmean(parabola_calls) <= 4.5
    assert max(lines_calls + parabola_calls) <= 7


def test_a_peak_that_jumps_after_a_plateau_is_bisected() -> None:
    counted = Counted(lambda n: 72 * GIB + (n > 6_000_000) * 10 * GIB)
    assert largest(counted, 79 * GIB, start=8) == 6_000_000
    assert len(counted.asked) <= TRUSTED_CALLS + math.ceil(math.log2(MOST))


def test_the_answer_is_none_or_most_at_the_ends() -> None:
    counted = Counted(lambda n: 90 * GIB + n)
    assert largest(counted, 79 * GIB, start=8) is None
    assert counted.asked[-1] == 1
    assert len(counted.asked) <= 4
    assert largest(lambda n: n, 127, start=128, step=128) is None
    counted = Counted(lambda n: GIB + n)
    assert largest(counted, 79 * GIB, start=8) == MOST
    assert max(counted.asked) == MOST
    assert largest(lambda n: 5, 79 * GIB, start=8, step=1000) == MOST // 1000 * 1000


def test_where_it_is_known_what_fits_nothing_is_asked() -> None:
    counted = Counted(lambda n: n)
    assert largest(counted, 5 * MOST, start=1, known={2 * MOST: 2 * MOST}) == MOST
    assert counted.asked == []
    counted = Counted(lambda n: n)
    # 383 fits, so 256 does; 385 does not, so 512 does not: only 384 is open.
    assert largest(counted, 384, start=1, step=128, known={383: 383, 385: 385}) == 384
    assert counted.asked == [384]
    counted = Counted(lambda n: n * GIB)
    assert largest(counted, 10 * GIB, start=1, known={10: 10 * GIB, 11: 11 * GIB}) == 10
    assert counted.asked == []


def test_a_peak_that_dips_ends_at_one_of_the_places_where_fitting_ends() -> None:
    def dips(n: int) -> int:
        return n * 100 + (5000 if n % 10 == 3 else 0)

    answer = largest(dips, 10_000, start=1)
    assert answer is not None
    assert dips(answer) <= 10_000 < dips(answer + 1)
