"""How long a prediction may trace, on a clock that moves only when it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perflab.measure.clocks import clock
from perflab.predicted.trace.watch import SHOW_EVERY, CalledOff, TracingTime

from .virtual_clock import VirtualClock

SECOND_NS = 10**9


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    virtual = VirtualClock()
    monkeypatch.setattr(clock, "read_ns", virtual.read_ns)
    monkeypatch.setattr(clock, "read_processor_ns", virtual.read_ns)
    return virtual


def allowed(
    show: Callable[[str], None], budget_s: float = 10, *, by_marker: bool = False, left_s: float | None = None
) -> TracingTime:
    return TracingTime(show, budget_s, by_marker=by_marker, left_s=left_s)


def operators(watch: TracingTime, time: VirtualClock, seconds: int, each_ms: int = 10) -> None:
    """Operators that take so long all in all."""
    for _ in range(seconds * 1000 // each_ms):
        watch.operator()
        time.advance(each_ms * 10**6)


def silent(_: str) -> None:
    """Nobody looks."""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "took longer than --perf-budget=10 s; 1,000 operators so far (more: --perf-budget=60)"),
        (
            {"budget_s": 2.5, "by_marker": True},
            "took longer than @pytest.mark.perf(budget=2.5); 250 operators so far (more: budget=15)",
        ),
        (
            {"left_s": 4},
            "took longer than the run had left (--perf-total-budget); 400 operators so far",
        ),
        ({"left_s": 40}, "took longer than --perf-budget=10 s; 1,000 operators so far (more: --perf-budget=60)"),
    ],
)
def test_past_the_shorter_time_it_is_called_off_with_the_operators_so_far(
    time: VirtualClock, given: dict[str, Any], said: str
) -> None:
    watch = allowed(silent, **given)
    with pytest.raises(CalledOff) as end:
        operators(watch, time, 11)
    assert str(end.value) == said
    with pytest.raises(CalledOff):  # also for code that caught the first one
        watch.operator()


def test_time_counts_from_the_start_and_operators_are_shown_now_and_then(time: VirtualClock) -> None:
    shown: list[str] = []
    operators(allowed(shown.append), time, 9)
    assert len(shown) == 900 // SHOW_EVERY
    assert shown[0] == f"{SHOW_EVERY} operators, 1 s of 10 s"
    assert shown[-1] == "900 operators, 9 s of 10 s"


def test_a_part_has_a_budget_and_a_count_of_its_own_and_takes_none_of_the_one_outside(time: VirtualClock) -> None:
    shown: list[str] = []
    watch = allowed(shown.append)
    operators(watch, time, 6)
    with pytest.raises(CalledOff, match="1,000 operators so far"), watch.part("every layer"):
        operators(watch, time, 11)
    assert shown[-1] == "every layer: 1,000 operators, 10 s of 10 s"
    operators(watch, time, 3)
    assert shown[-1] == "900 operators, 9 s of 10 s"
    with pytest.raises(CalledOff, match="1,000 operators so far"):
        operators(watch, time, 2)


def test_what_the_run_has_left_is_for_all_parts_together(time: VirtualClock) -> None:
    watch = allowed(silent, left_s=12)
    operators(watch, time, 9)
    with pytest.raises(CalledOff, match=r"the run had left .*; 300 operators so far"), watch.part("other sizes"):
        operators(watch, time, 13)
    assert time.now_ns == 12 * SECOND_NS
    with pytest.raises(CalledOff, match=r"the run had left .*; 900 operators so far"):
        watch.operator()
