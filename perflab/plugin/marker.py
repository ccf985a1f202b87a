"""The marker's arguments: ``@pytest.mark.perf`` sets for its case what options set for the run, and more."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perflab.errors import SettingError
from perflab.plugin.settings import Settings, parse_choice
from perflab.units import parse_duration_ns, parse_fraction, parse_seconds


def _from_marker(parse: Callable[[str], float]) -> Callable[[Any], float]:
    """Accept both ``"5%"`` and ``0.05``."""

    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"{value!r} is neither a number nor a text")
        return parse(str(value))

    return read


def _marker_counts(value: Any) -> str:
    return parse_choice(value if isinstance(value, str) else repr(value), ("on", "report", "off"))


def _marker_warmup(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a number of warm-up calls (0 or more)")
    return value


def _marker_name(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no parameter's name")
    return value


def _marker_title(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is no title")
    return " ".join(value.split())


def _marker_columns(value: Any) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else []
    if not names or not all(names):
        raise ValueError(f"{value!r} is no list of names with commas between them")
    return tuple(dict.fromkeys(names))


def _marker_versus(value: Any) -> str:
    parameter, _, level = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not parameter.strip() or not level.strip():
        raise ValueError(f"{value!r} is no parameter=level")
    return f"{parameter.strip()}={level.strip()}"


def _marker_bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither True nor False")
    return value


MARKER_ARGUMENTS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "threshold": ("threshold", _from_marker(parse_fraction), "slowdown that counts, such as '10%' or 0.1"),
    "memory_threshold": (
        "memory_threshold",
        _from_marker(parse_fraction),
        "growth of peak memory that counts, such as '1%'",
    ),
    "floor": (
        "floor_ns",
        _from_marker(parse_duration_ns),
        "differences below this never count, such as '2us'",
    ),
    "counts": ("counts", _marker_counts, "'on', 'report' or 'off': whether counts are gated, shown, or not taken"),
    "budget": (
        "budget_s",
        _from_marker(parse_seconds),
        "time for the case, in seconds, such as 5 or '500ms'",
    ),
    "warmup": ("warmup", _marker_warmup, "exactly so many warm-up calls, instead of until readings agree"),
    "fresh_process": (
        "fresh_process",
        _marker_bool,
        "True: measure in a new process, where nothing is warm; here the callable runs once, for its result",
    ),
    "side_by_side": ("side_by_side", _marker_name, "the parameter whose levels are shown against each other"),
    "study": ("study", _marker_title, "a title; cases of one title share a table"),
    "columns": ("columns", _marker_columns, "what that table shows, such as 'median, tokens/s, peak, loss'"),
    "versus": ("versus", _marker_versus, "what it holds cases against: a parameter and its base, such as 'impl=naive'"),
    "allow_nan": ("allow_nan", _marker_bool, "True: a result that holds NaN is no failure"),
}
"""Arguments of ``@pytest.mark.perf``: the setting, how it is read, what it means."""


def for_case(settings: Settings, item: pytest.Item) -> Settings:
    """The settings of one case: markers override, the closest first.

    Raises:
        SettingError: an unknown or unusable marker argument, named together with the test.
    """
    changes: dict[str, Any] = {}
    for mark in item.iter_markers("perf"):
        if mark.args:
            raise SettingError(
                f"{item.nodeid}: @pytest.mark.perf takes no positional arguments, got {mark.args[0]!r}",
                f"name it: {', '.join(f'{name}=' for name in MARKER_ARGUMENTS)}",
            )
        for name, given in mark.kwargs.items():
            if name not in MARKER_ARGUMENTS:
                close = difflib.get_close_matches(name, MARKER_ARGUMENTS, n=1)
                hint = f"did you mean {close[0]!r}? " if close else ""
                raise SettingError(
                    f"{item.nodeid}: @pytest.mark.perf has no argument {name!r}",
                    f"{hint}known are {', '.join(MARKER_ARGUMENTS)}",
                )
            field, parse, meaning = MARKER_ARGUMENTS[name]
            try:
                changes.setdefault(field, parse(given))
            except ValueError as error:
                raise SettingError(f"{item.nodeid}: @pytest.mark.perf({name}=...): {error}", meaning) from error
            if name in ("side_by_side", "versus"):
                _check_parameter(item, name, given)
    for name in ("columns", "versus"):
        if name in changes and "study" not in changes:
            raise SettingError(
                f"{item.nodeid}: @pytest.mark.perf({name}=...) without a study",
                "name the study whose table it is for: study='...'",
            )
    return replace(settings, **changes)


def _check_parameter(item: pytest.Item, argument: str, given: str) -> None:
    known = list(item.callspec.params) if hasattr(item, "callspec") else []
    if given.partition("=")[0].strip() not in known:
        raise SettingError(
            f"{item.nodeid}: @pytest.mark.perf({argument}={given!r}): the test has no such parameter",
            f"name one that it has: {', '.join(known)}" if known else "mark parametrized tests with it",
        )


def check_correctness_marker(item: pytest.Item) -> None:
    """Refuse arguments of ``@pytest.mark.correctness``, which takes none.

    Raises:
        SettingError: an argument was given.
    """
    for mark in item.iter_markers("correctness"):
        if mark.args or mark.kwargs:
            given = next(iter(mark.kwargs), None) or repr(mark.args[0])
            raise SettingError(
                f"{item.nodeid}: @pytest.mark.correctness takes no arguments, got {given}",
                "remove it; budgets are derived from the reference",
            )
