"""Lines of plain Python in a profile: what is seen of a call, and what an explanation says of two."""

from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.base.data import changed
from perflab.profiles.difference import explain
from perflab.profiles.python_lines import lines_watched
from perflab.profiles.text import explanation_texts
from perflab.results.profile import CALLED_FIRST, Profile, ProfileRow
from tests.harness.test_profiles import profile
from tests.harness.traced import line_with

MS = 1e6


def tripled(values: list[int]) -> list[int]:
    return [3 * value for value in values]


def summed(values: list[int]) -> int:
    total = 0
    for value in values:
        total += value  # added up
    return total


def generated(values: list[int]) -> int:
    return sum(value for value in tripled(values) if value)


def outer() -> int:
    return summed([1, 2, 3]) + summed([4]) + generated([1])  # three calls


def test_a_watched_call_tells_how_often_each_line_runs_and_what_it_calls() -> None:
    with lines_watched() as run:
        outer()
    often = [run.named(number).line for number in run.lines if number > 0]
    assert often.count(line_with("# added up", __file__)) == 4
    calls = {(run.named(at).line if at else "", name): many for (at, name), many in run.calls.items()}
    here = line_with("# three calls", __file__)
    assert (calls["", "outer"], calls[here, "summed"], calls[here, "generated"]) == (1, 2, 1)
    assert {name for _, name in calls} == {"outer", "summed", "generated", "tripled"}  # no part of a function is one


def test_watching_leaves_the_tracer_that_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    seen = []
    monkeypatch.setattr(sys, "gettrace", lambda: own)
    monkeypatch.setattr(sys, "settrace", seen.append)
    own = lambda *_given: None  # noqa: E731
    with lines_watched():
        pass
    assert seen[-1] is own


def line(function: str, number: int, took_ms: float, often: float, code: str = "") -> ProfileRow:
    """A line of a function; its text is ``code``, or else that of its number."""
    text = code or f"{function}{number}"
    spread_ns = 0.01 * took_ms * MS
    where = f"net.py:{number}"
    return ProfileRow(
        category="python",
        operator=function,
        line=where,
        instances=often,
        time_ns=took_ms * MS,
        spread_ns=spread_ns,
        code=text,
    )


def call(function: str, number: int, of: str, often: float, code: str = "") -> ProfileRow:
    return changed(line(of, number, 0.0, often, code or f"{function}{number}"), within=function)


def plain(*rows: ProfileRow) -> Profile:
    first = ProfileRow(category="python", operator="run", within=CALLED_FIRST, instances=1)
    return changed(profile(first, *rows), has_plain=True, calls=8)


def said(base: Profile, head: Profile, change_ms: float) -> str:
    return explanation_texts(explain(base, head, "main", change_ms * MS), timed=True)[0]


def test_a_function_that_is_called_more_often_is_told_by_the_line_that_calls_it(snapshot: SnapshotAssertion) -> None:
    """And not by its own lines, nor by those of what it calls, which take all of the time."""
    inner = [line("inner", 20, 4.0, 100), call("outer", 10, "inner", 100), line("outer", 10, 0.5, 100)]
    base = plain(line("run", 1, 0.1, 1), call("run", 1, "outer", 1), *inner)
    twice = [changed(one, instances=2 * one.instances, time_ns=2 * one.time_ns) for one in inner]
    head = plain(line("run", 1, 0.1, 1), call("run", 1, "outer", 1), call("run", 2, "outer", 1), *twice)
    assert said(base, head, 4.5) == snapshot


def test_a_loop_that_runs_longer_is_told_by_its_first_line(snapshot: SnapshotAssertion) -> None:
    def looped(times: int) -> Profile:
        body = line("run", 3, 0.01 * times, times)
        return plain(line("run", 1, 0.1, 1), line("run", 2, 0.0, times + 1), body, line("run", 4, 0.1, 1))

    assert said(looped(100), looped(300), 2.0) == snapshot


def test_a_line_that_takes_longer_is_told_with_the_edit_before_it(snapshot: SnapshotAssertion) -> None:
    def looked_up(kind: str, took_ms: float, first: int) -> Profile:
        return plain(line("run", first, 0.1, 1, kind), line("run", first + 2, took_ms, 100, "if x in seen"))

    assert said(looked_up("seen = set()", 0.2, 1), looked_up("seen = []", 5.2, 31), 5.0) == snapshot


def test_an_edited_line_is_named_though_the_noise_of_its_function_hides_it(snapshot: SnapshotAssertion) -> None:
    def added(key: str, took_ms: float, rest_ms: float) -> Profile:
        return plain(line("add", 1, took_ms, 100, key), line("add", 2, rest_ms, 100, "self._add(entry)"))

    assert said(added("key", 4.0, 22.0), added("str(key)", 5.5, 21.8), 1.5) == snapshot


def test_lines_that_only_moved_are_no_change(snapshot: SnapshotAssertion) -> None:
    def moved(by: int, slow_ms: float) -> Profile:
        rows = [
            line("run", 1 + by, 1.0, 10, "a"),
            line("run", 2 + by, 2.0, 10, "b"),
            call("run", 2 + by, "dumps", 5, "b"),
        ]
        return plain(*rows, line("other", 50 + by, slow_ms, 3, "c"), call("run", 3 + by, "other", 3, "d"))

    assert said(moved(0, 1.0), moved(7, 4.0), 3.0) == snapshot


def test_what_does_not_run_equally_often_in_each_call_is_no_fact() -> None:
    base, head = (
        plain(line("run", 1, took_ms, 0), call("run", 1, "f", often)) for took_ms, often in ((1, 0), (1.2, 7))
    )
    assert not explain(base, head, "main", 3 * MS).parts


def test_a_profile_that_was_stored_without_lines_of_python_is_held_against_the_whole() -> None:
    old = changed(plain(ProfileRow(category="python", instances=1, time_ns=1 * MS)), has_plain=False)
    old = changed(old, rows=[row for row in old.rows if not row.operator])
    assert said(old, plain(line("run", 1, 4.0, 10)), 3.0) == "+3.00 ms more python"
