"""Decides after collection whether a run measures its perf cases, runs each once, or skips them; refuses bad requests.

Errors that end a session before its tests are shown by ``refusing``.

Every process of pytest-xdist collects the same tests under the same options, so all of them decide alike. This module
loads no code that measures.
"""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import pytest

from perflab.base.errors import PerflabError, SettingError, UsageError
from perflab.options import OPTIONS
from perflab.running.config.kinds import is_worker


class RunMode(StrEnum):
    """The treatment of a run's perf cases."""

    MEASURE = "measure"
    ONCE = "once"
    """Run each perf case once, untimed."""
    SKIP = "skip"


RAN = "ran"
"""The status of a case that ran without being measured. A case with a tier's own fixture has ``not`` and the tier's
name instead."""

_MEASURING = ("perf", "perf_only", "perf_update", "perf_update_new", "perf_against", "perf_predict", "perf_dry_run")
"""Options that require that cases are measured or predicted."""
_NOT_MEASURING = {"perf_skip": RunMode.SKIP, "perf_disable": RunMode.ONCE}


def refuse_contradictions(config: pytest.Config) -> None:
    """Refuse options that contradict each other, before anything is collected.

    Raises:
        SettingError: two such options on the command line, or two such ini keys.
    """
    stops = [dest for dest in _NOT_MEASURING if _is_given(config, dest)]
    given = [_option(dest) for dest in (*stops, *(dest for dest in _MEASURING if _is_given(config, dest)))]
    if not stops:
        given = [f"ini key {dest}" for dest in _NOT_MEASURING if _is_set(config, dest)]
    if len(given) > 1:
        raise SettingError(f"{given[0]} and {given[1]} contradict each other", "leave one of them out")


def mode_of(config: pytest.Config, items: Sequence[pytest.Item], cases: Sequence[pytest.Item]) -> RunMode:
    """Return the treatment of the ``cases`` among the selected ``items``.

    Without an explicit request, cases are measured if only cases are selected, and run once if other tests are too.

    Raises:
        SettingError: an ini key that is neither true nor false.
    """
    return mode_asked_for(config) or (RunMode.MEASURE if len(cases) == len(items) else RunMode.ONCE)


def mode_asked_for(config: pytest.Config) -> RunMode | None:
    """Return the treatment of perf cases that options, then ini keys, then ``-m perf`` request.

    None if there is no request, so that the treatment depends on the selected tests.

    Raises:
        SettingError: an ini key that is neither true nor false.
    """
    for is_asked, measuring in ((_is_given, _MEASURING), (_is_set, ("perf", "perf_only", "perf_predict"))):
        for dest, mode in (_NOT_MEASURING | dict.fromkeys(measuring, RunMode.MEASURE)).items():
            if is_asked(config, dest):
                return mode
    if any(option.measures and _is_given(config, option.dest) for option in OPTIONS):
        return RunMode.MEASURE
    # ``perf and not slow`` selects the marker, ``not perf`` does not.
    words = re.findall(r"\w+", config.getoption("markexpr", default=""))
    return (
        RunMode.MEASURE
        if any(word == "perf" and before != "not" for before, word in zip(["", *words], words, strict=False))
        else None
    )


def refuse_an_empty_choice(config: pytest.Config, found: int) -> None:
    """Refuse a run that explicitly asks for perf cases but deselects all of them, since nothing would be measured.

    Args:
        config: the session's configuration.
        found: the number of perf cases before any were deselected.

    Raises:
        UsageError: ``--perf`` or ``--perf-only`` is given, cases were found, and none of them is selected.
    """
    asked = next((dest for dest in ("perf_only", "perf") if _is_given(config, dest)), None)
    if asked is None or not found:
        return
    expression = config.getoption("markexpr", default="")
    remedy = f"add -m perf; now {expression!r} selects the tests" if expression else "select some: -m perf"
    raise UsageError(f"{_option(asked)}: no perf case is selected (collected: {found})", remedy)


def skip_the_unwanted(
    config: pytest.Config, mode: RunMode, items: Sequence[pytest.Item], cases: Sequence[pytest.Item]
) -> None:
    """Mark the tests that ``--perf-skip`` or ``--perf-only`` leaves out as skipped; pytest's summary shows why."""
    if mode is RunMode.SKIP:
        unwanted, reason = list(cases), "a perf case (--perf-skip)"
    elif mode is RunMode.MEASURE and only_cases(config):
        chosen = set(cases)
        unwanted, reason = [item for item in items if item not in chosen], "not a perf case (--perf-only)"
    else:
        return
    for item in unwanted:
        item.add_marker(pytest.mark.skip(reason=reason))


def only_cases(config: pytest.Config) -> bool:
    """Whether tests that are not perf cases are to be skipped."""
    return _is_given(config, "perf_only") or _is_set(config, "perf_only")


def untimed_line(config: pytest.Config, untimed: Mapping[str, str]) -> str:
    """Return the line about unmeasured cases: ``perf: 3 cases ran once, untimed (measure them: pytest -m perf)``.

    ``untimed`` holds the status of each case that was not measured, in any process.
    """
    from perflab.tiers.interface import tier

    found = Counter(untimed.values())
    ran = found.pop(RAN, 0)
    said = [f"{ran} case{'s' * (ran != 1)} ran once, untimed"] if ran else []
    for what, count in found.items():
        unit = tier(what.removeprefix("not ")).unit
        said.append(f"{count} {unit}{'s were' if count != 1 else ' was'} {what}")
    how = "measure them: pytest -m perf"
    if _is_given(config, "perf_disable"):
        how = f"--perf-disable; {how}, without it"
    elif _is_set(config, "perf_disable"):
        how = "ini key perf_disable; measure them: pytest --perf -m perf"
    return f"perf: {'; '.join(said)} ({how})"


def _is_given(config: pytest.Config, dest: str) -> bool:
    """Whether an option is on the command line, or in ``addopts``, which pytest adds to the command line."""
    return config.getoption(dest, default=None) is not None


def _is_set(config: pytest.Config, dest: str) -> bool:
    """Whether an ini key holds true."""
    text = config.getini(dest)
    if text is None:
        return False
    from perflab.settings.given import parse_flag

    try:
        return parse_flag(str(text))
    except ValueError as error:
        raise SettingError(f"ini key {dest}: {error}", "see `pytest --help`, under perflab") from error


def _option(dest: str) -> str:
    return next(option.name for option in OPTIONS if option.dest == dest)


@contextlib.contextmanager
def refusing(config: pytest.Config) -> Iterator[None]:
    """End the session with an error of the block.

    In a worker of pytest-xdist each test fails with the error instead, since ending a worker would lose other tests.

    Raises:
        pytest.UsageError: the error's text; never in a worker.
    """
    try:
        yield
    except PerflabError as error:
        if not is_worker(config):
            raise pytest.UsageError(str(error)) from None
        config.pluginmanager.register(_Refusal(error), "perflab-refusal")


class _Refusal:
    """A plugin that fails every test of this process before its set-up."""

    def __init__(self, error: PerflabError) -> None:
        self._error = error

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Raise the error that refused the session."""
        raise self._error
