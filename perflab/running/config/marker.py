"""Reads ``@pytest.mark.perf``, whose arguments replace the run's options for one case.

A test that is marked with several numbers of processes becomes a case of each.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from perflab.base.errors import SettingError
from perflab.options import MARKER_ARGUMENTS
from perflab.ranks.group import launched
from perflab.running.config.reading import settings_of
from perflab.settings.given import parse_choice, parse_leak_calls, parse_memory_limit, parse_timeout
from perflab.settings.settings import Settings
from perflab.units import parse_duration_ns, parse_fraction, parse_seconds


def _from_marker(parse: Callable[[str], float | None]) -> Callable[[Any], float | None]:
    """Return a reader of marker arguments that accepts texts and numbers: both ``"5%"`` and ``0.05``."""

    def read(value: Any) -> float | None:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError(f"{value!r} is neither a number nor a text")
        return parse(str(value))

    return read


def _marker_choice(*choices: str) -> Callable[[Any], str]:
    return lambda value: parse_choice(value if isinstance(value, str) else repr(value), choices)


def _marker_value(is_right: Callable[[Any], bool], said: str) -> Callable[[Any], Any]:
    """Return a reader that accepts a value if ``is_right``, unchanged, and else raises an error with ``said``."""

    def read(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(f"{value!r} is {said}")
        return value

    return read


def _marker_title(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{value!r} is not a title")
    return " ".join(value.split())


def _marker_columns(value: Any) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",")] if isinstance(value, str) else []
    if not names or not all(names):
        raise ValueError(f"{value!r} is not a comma-separated list of names")
    return tuple(dict.fromkeys(names))


def _marker_versus(value: Any) -> str:
    parameter, _, level = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not parameter.strip() or not level.strip():
        raise ValueError(f"{value!r} is not parameter=level")
    return f"{parameter.strip()}={level.strip()}"


_marker_bool = _marker_value(lambda value: isinstance(value, bool), "neither True nor False")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _marker_worlds(value: Any) -> tuple[int, ...]:
    sizes = value if isinstance(value, list | tuple) else [value]
    if not sizes or not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in sizes):
        raise ValueError(f"{value!r} is neither a number of processes (1 or more) nor a list of such numbers")
    return tuple(dict.fromkeys(sizes))


_NO_NAME = "not a parameter name"
_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "threshold": ("threshold", _from_marker(parse_fraction)),
    "memory_threshold": ("memory_threshold", _from_marker(parse_fraction)),
    "memory_limit": ("memory_limit_bytes", _from_marker(parse_memory_limit)),
    "leak_calls": ("leak_calls", _from_marker(parse_leak_calls)),
    "floor": ("floor_ns", _from_marker(parse_duration_ns)),
    "counts": ("counts", _marker_choice("on", "report", "off")),
    "cache": ("cache", _marker_choice("warm", "cold")),
    "cuda_graph": ("cuda_graph", _marker_bool),
    "budget": ("budget_s", _from_marker(parse_seconds)),
    "timeout": ("timeout_s", _from_marker(parse_timeout)),
    "warmup": ("warmup", _marker_value(_is_count, "not a number of warm-up calls (0 or more)")),
    "fresh_process": ("fresh_process", _marker_bool),
    "gpus": ("gpus", _marker_value(_is_count, "not a number of GPUs (0 or more)")),
    "nodes": ("nodes", _marker_value(lambda value: _is_count(value) and value, "not a number of nodes (1 or more)")),
    "world_size": ("world_sizes", _marker_worlds),
    "side_by_side": ("side_by_side", _marker_value(lambda value: isinstance(value, str) and value != "", _NO_NAME)),
    "study": ("study", _marker_title),
    "columns": ("columns", _marker_columns),
    "versus": ("versus", _marker_versus),
    "last": ("last", _marker_bool),
    "allow_nan": ("allow_nan", _marker_bool),
    "predict": ("is_predictable", _marker_bool),
    "profile": ("profile", _marker_bool),
}
"""The setting and the parser of each of ``MARKER_ARGUMENTS``."""


def for_case(settings: Settings, item: pytest.Item) -> Settings:
    """Return the settings of one case: its markers override the run's settings, the closest marker first.

    Raises:
        SettingError: a marker argument is unknown or unusable; the error names it and the test.
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
            field, parse = _READ[name]
            try:
                changes.setdefault(field, parse(given))
            except ValueError as error:
                raise SettingError(
                    f"{item.nodeid}: @pytest.mark.perf({name}=...): {error}", MARKER_ARGUMENTS[name]
                ) from error
            known = list(item.callspec.params) if hasattr(item, "callspec") else []
            if name in ("side_by_side", "versus") and given.partition("=")[0].strip() not in known:
                raise SettingError(
                    f"{item.nodeid}: @pytest.mark.perf({name}={given!r}): the test has no such parameter",
                    f"name one that it has: {', '.join(known)}"
                    if known
                    else "parametrize the test, or remove the argument",
                )
    for name in ("columns", "versus"):
        if name in changes and "study" not in changes:
            raise SettingError(
                f"{item.nodeid}: @pytest.mark.perf({name}=...) without a study",
                "name the study whose table it is for: study='...'",
            )
    if "budget_s" in changes:
        changes["budget_by"] = "the mark's budget"
    changes["graph_by_mark"] = changes.get("cuda_graph", False) and not settings.cuda_graph
    if (ours := launched()) is not None:
        changes["world_size"] = ours[1]
    elif "world_sizes" in changes:
        sizes = settings.world_sizes or changes["world_sizes"]
        given = getattr(item, "callspec", None)
        changes["world_size"] = given.params["world_size"] if given and "world_size" in given.params else sizes[0]
    chosen = replace(settings, **changes)
    if chosen.cuda_graph and chosen.warmup is not None:
        raise SettingError(
            f"{item.nodeid}: warmup={chosen.warmup} and a CUDA graph: what is captured has been called before, "
            "and is replayed",
            "leave one of them out; a cold start has no graph, @pytest.mark.perf(cuda_graph=False)",
        )
    return chosen


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


def spread(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test by ``world_size`` if it is to run with more than one number of processes."""
    marks = [mark for mark in metafunc.definition.iter_markers("perf") if "world_size" in mark.kwargs]
    try:
        ours = launched()
        asked = settings_of(metafunc.config).world_sizes if ours is None else (ours[1],)
        sizes = asked or _marker_worlds(marks[0].kwargs["world_size"])
    except (SettingError, ValueError):
        return  # the session is refused once all tests are collected
    several = any(isinstance(mark.kwargs["world_size"], list | tuple) for mark in marks)
    if several or len(sizes) > 1:
        if "world_size" not in metafunc.fixturenames:  # a case need not ask for the number
            metafunc.fixturenames.append("world_size")
        metafunc.parametrize("world_size", sizes, ids=[f"world{size}" for size in sizes])
