"""The largest size that fits, on curves like those of memory: right on every one, and with few calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean

from hypothesis import given, settings
from hypothesis import strategies as st

from perflab.predicted.memory.sizes import MOST, TRUSTED_CALLS, largest

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


def test_not_even_one_step_fits() -> None:
    counted = Counted(lambda n: 90 * GIB + n)
    assert largest(counted, 79 * GIB, start=8) is None
    assert counted.asked[-1] == 1
    assert len(counted.asked) <= 4
    assert largest(lambda n: n, 127, start=128, step=128) is None


def test_most_is_the_answer_where_even_that_fits() -> None:
    counted = Counted(lambda n: GIB + n)
    assert largest(counted, 79 * GIB, start=8) == MOST
    assert max(counted.asked) == MOST
    assert largest(lambda n: 5, 79 * GIB, start=8, step=1000) == MOST // 1000 * 1000


def test_where_more_than_most_is_known_to_fit_nothing_is_asked() -> None:
    counted = Counted(lambda n: n)
    assert largest(counted, 5 * MOST, start=1, known={2 * MOST: 2 * MOST}) == MOST
    assert counted.asked == []


def test_known_sizes_that_are_no_multiples_count_too() -> None:
    counted = Counted(lambda n: n)
    # 383 fits, so 256 does; 385 does not, so 512 does not: only 384 is open.
    assert largest(counted, 384, start=1, step=128, known={383: 383, 385: 385}) == 384
    assert counted.asked == [384]


def test_where_known_sizes_settle_it_nothing_is_asked() -> None:
    counted = Counted(lambda n: n * GIB)
    assert largest(counted, 10 * GIB, start=1, known={10: 10 * GIB, 11: 11 * GIB}) == 10
    assert counted.asked == []


def test_a_peak_that_dips_ends_at_one_of_the_places_where_fitting_ends() -> None:
    def dips(n: int) -> int:
        return n * 100 + (5000 if n % 10 == 3 else 0)

    answer = largest(dips, 10_000, start=1)
    assert answer is not None
    assert dips(answer) <= 10_000 < dips(answer + 1)
