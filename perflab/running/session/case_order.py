"""Orders cases under a total budget: groups take turns.

A group is one test function. One case of each group comes before the second case of any group, so that a run whose time
ends early has measured a part of every group. Levels that are shown side by side stay together, since a single level
cannot be compared. Cases that are marked ``last``, such as cases with a long compilation, come after all others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain, zip_longest

import pytest

from perflab.base.errors import SettingError
from perflab.base.identity import test_of
from perflab.noting import NOTES, case_id
from perflab.running.config.kinds import is_perf_case, tier_asked_by
from perflab.running.config.reading import settings_of
from perflab.running.config.run_mode import RunMode, mode_of
from perflab.settings.settings import Settings

Step = tuple[Hashable, Hashable]
"""The group of a case, and the key that it shares with the cases that are measured together with it."""


def in_rounds(steps: Sequence[Step]) -> list[int]:
    """Return the indices of the cases in the order of measuring: the first step of each group, then the second, etc.

    Groups, the steps of a group and the cases of a step keep their order.
    """
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for place, (group, step) in enumerate(steps):
        groups.setdefault(group, {}).setdefault(step, []).append(place)
    nothing: list[int] = []
    rounds = zip_longest(*(group.values() for group in groups.values()), fillvalue=nothing)
    return list(chain.from_iterable(chain.from_iterable(rounds)))


def take_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reorder the measured cases among the items; other tests keep their places.

    Nothing is reordered in a run that does not measure. Nothing is reordered without ``--perf-total-budget``, since
    each round sets up the fixtures of a module or class again. Nothing is reordered either if cases are not measured
    one after another (``--perf-predict``, ``--perf-against``). Kernels are compiled all at once, before the first test
    that uses one, so these tests come last.
    """
    notes = config.stash.get(NOTES, None)
    if notes is None:  # a process that measures for another process, in the order of its job
        return
    places = [place for place, item in enumerate(items) if is_perf_case(item)]
    cases = [items[place] for place in places]
    try:
        settings, mode = settings_of(config), mode_of(config, items, cases)
    except SettingError:  # reported when collecting has ended, and all affected tests are known
        return
    if (
        settings.total_budget_s is None
        or settings.predict
        or settings.against is not None
        or mode is not RunMode.MEASURE
    ):
        return
    notes.shown = [case_id(item) for item in cases]
    measured = [item for item in cases if tier_asked_by(item) is None]
    ordered = []
    for last in (False, True):
        turn = [item for item in measured if (_marked(item, "last", False) is True) is last]
        ordered += [turn[place] for place in in_rounds([_step(item, settings) for item in turn])]
    ordered += [item for item in cases if tier_asked_by(item) is not None]
    for place, item in zip(places, ordered, strict=True):
        items[place] = item
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if ordered != cases and reporter is not None and config.option.verbose == 0:
        reporter.showfspath = False  # else each dot would be on its own line, after its file's name


def _step(item: pytest.Item, settings: Settings) -> Step:
    """Return the step of a case: one step for all levels of the parameter shown side by side, else one a case."""
    group = test_of(case_id(item))
    parameter = _marked(item, "side_by_side", settings.side_by_side)
    callspec = getattr(item, "callspec", None)
    given: dict[str, object] = dict(callspec.params) if callspec is not None else {}
    if parameter not in given:
        return group, case_id(item)
    return group, tuple((name, str(value)) for name, value in given.items() if name != parameter)


def _marked(item: pytest.Item, argument: str, default: object) -> object:
    """Return an argument of the closest marker that has the argument; it is validated later, with all others."""
    return next((mark.kwargs[argument] for mark in item.iter_markers("perf") if argument in mark.kwargs), default)
