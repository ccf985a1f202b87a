"""Numbers with units: what a person writes is read as it was meant, and what is written can be read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perflab.units import (
    BYTES_PER,
    NS_PER,
    format_between,
    format_bytes,
    format_change,
    format_flops,
    format_interval,
    format_names,
    format_ns,
    format_percent,
    format_rate,
    format_signed,
    parse_duration_ns,
    parse_fraction,
    parse_seconds,
)


@pytest.mark.parametrize(
    ("text", "fraction"),
    [("5%", 0.05), ("0.05", 0.05), (" 2.5 % ", 0.025), ("0", 0.0), ("0%", 0.0), ("100%", 1.0), ("1e-3", 0.001)],
)
def test_a_share_is_read_with_and_without_a_percent_sign(text: str, fraction: float) -> None:
    assert parse_fraction(text) == pytest.approx(fraction)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2us", 2e3),
        ("2 µs", 2e3),  # U+00B5, micro sign
        ("2 μs", 2e3),  # U+03BC, Greek mu: what many keyboards and editors produce
        ("1.5 ms", 1.5e6),
        ("3s", 3e9),
        ("1min", 60e9),
        (".5s", 0.5e9),
        ("1e3ns", 1e3),
        ("0", 0.0),
        ("0ms", 0.0),
    ],
)
def test_a_duration_is_read_in_every_unit(text: str, ns: float) -> None:
    assert parse_duration_ns(text) == pytest.approx(ns)


@pytest.mark.parametrize(("text", "seconds"), [("20", 20.0), ("20s", 20.0), ("500ms", 0.5), ("2 min", 120.0)])
def test_seconds_are_read_bare_and_with_a_unit(text: str, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


MISREAD = {
    (parse_fraction, "a share such as 5% or 0.05"): (
        *("5", "1", "", "%", "5 percent", "-5%", "nan", "five", "5%%", "0.05 ms", "1,5%"),
    ),
    (parse_duration_ns, "a duration such as 2us, 1.5ms or 3s"): (
        *("2", "2 parsecs", "2MS", "-1ms", "", "ms", "2%", "1:30"),
    ),
    (parse_seconds, "a positive number of seconds such as 20 or 500ms"): (
        *("0", "0s", "-1", "1e999", "5%", "20 seconds", "", "soon"),
    ),
}


@pytest.mark.parametrize(
    ("parse", "wanted", "text"), [(*wanted, text) for wanted, texts in MISREAD.items() for text in texts]
)
def test_what_could_be_misread_is_refused_with_an_example(
    parse: Callable[[str], float], wanted: str, text: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{text!r} is not {wanted}")):
        parse(text)


WRITTEN: dict[Callable[[Any], str], list[tuple[float, str]]] = {
    format_ns: [
        (0, "0 s"),
        (9.994, "9.99 ns"),
        (9.996, "10.0 ns"),
        (99.94, "99.9 ns"),
        (999.4, "999 ns"),
        (999.5, "1.00 µs"),
        (1_300, "1.30 µs"),
        (812_400_000, "812 ms"),
        (999_600_000, "1.00 s"),
        (2_710_000_000, "2.71 s"),
        (119e9, "119 s"),
        (120e9, "2.00 min"),
        (3_600e9, "60.0 min"),
        (7_200e9, "2.00 h"),
    ],
    format_bytes: [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (int(2.6 * 2**30), "2.60 GiB"),
        (2**40, "1.00 TiB"),
        (2**50, "1024 TiB"),
    ],
    format_change: [
        (1.0, "0.0%"),
        (1.0004, "0.0%"),
        (0.9996, "0.0%"),
        (1.0006, "+0.1%"),
        (1.312, "+31.2%"),
        (0.5, "-50.0%"),
        (2.0, "+100.0%"),
        (9.99, "+899.0%"),
        (10.0, "x10.0"),
        (123.4, "x123"),
        (1e15, "x1.00e+15"),
    ],
    format_percent: [
        (0.05, "5%"),
        (0.025, "2.5%"),
        (0.0, "0%"),
        (1.5, "150%"),
        (0.00123, "0.123%"),
        (12.0, "1200%"),
        (1e9, "1.00e+11%"),
    ],
    format_flops: [(0, "0 FLOP"), (12, "12 FLOP"), (631_000, "631 kFLOP"), (79_338_829_934_592, "79.3 TFLOP")],
}
"""Three digits, with the unit or prefix that fits; a ratio as the change that it means; percent without zeros."""


@pytest.mark.parametrize(
    ("write", "number", "text"), [(write, *one) for write, ones in WRITTEN.items() for one in ones]
)
def test_a_number_is_written_as_people_read_it(write: Callable[[Any], str], number: float, text: str) -> None:
    assert write(number) == text


@given(st.floats(min_value=1.0, max_value=1e15))
def test_a_time_reads_back_as_itself_to_half_a_percent_and_takes_eight_characters_at_most(ns: float) -> None:
    number, unit = format_ns(ns).split()
    assert float(number) * {**NS_PER, "h": 3600e9}[unit] == pytest.approx(ns, rel=0.005)
    assert len(format_ns(ns)) <= 8


@given(st.floats(min_value=1e2, max_value=7e12))
def test_a_written_time_below_two_hours_is_a_duration_that_the_options_accept(ns: float) -> None:
    assert parse_duration_ns(format_ns(ns)) == pytest.approx(ns, rel=0.01)


@given(st.integers(min_value=1, max_value=2**60))
def test_bytes_read_back_as_themselves_to_half_a_percent(size: int) -> None:
    number, unit = format_bytes(size).split()
    assert float(number) * BYTES_PER[unit] == pytest.approx(size, rel=0.005)


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (1.241, 1.389, "+24.1%…+38.9%"),
        (0.01, 9.0, "-99.0%…+800.0%"),
        (140.0, 160.0, "x140…x160"),
        (1.2, math.inf, "+20.0% and more"),
    ],
)
def test_an_interval_is_written_by_its_ends(low: float, high: float, text: str) -> None:
    assert format_interval(low, high) == text


@pytest.mark.parametrize(
    ("per_second", "unit", "text"),
    [
        (631, "tokens", "631 tokens/s"),
        (1_234, "tokens", "1.23 k tokens/s"),
        (999.7, "tokens", "1.00 k tokens/s"),
        (1.23e12, "FLOP", "1.23 TFLOP/s"),
        (4.8e12, "B", "4.80 TB/s"),
        (0.5, "steps", "0.500 steps/s"),
        (1 / 300, "steps", "0.00333 steps/s"),
    ],
)
def test_a_throughput_has_an_si_prefix(per_second: float, unit: str, text: str) -> None:
    assert format_rate(per_second, unit) == text


@pytest.mark.parametrize(
    ("difference", "text"), [(64 * 2**20, "+64.0 MiB"), (-512, "-512 B"), (1, "+1 B"), (-(2**31), "-2.00 GiB")]
)
def test_a_difference_is_written_with_its_sign(difference: int, text: str) -> None:
    assert format_signed(difference, format_bytes) == text
    assert format_signed(difference * 1e6, format_ns)[0] == text[0]


def test_long_lists_of_names_end_with_how_many_more() -> None:
    assert format_names(["a", "b"]) == "a, b"
    assert format_names(list("abcdefg")) == "a, b, c, d, e and 2 more"
    assert format_names([]) == ""


def test_the_interval_of_a_ratio_stands_behind_it() -> None:
    assert format_between(0.954, 12.34) == "(0.95…12.3)"
