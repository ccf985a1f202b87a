"""Orders cases under a total budget: groups take turns.

A group is one test function. A case of each group comes before the second of any, so that a run whose time ends early
has measured something of everything. Levels that are shown side by side stay together: alone they say little.
Cases that are marked ``last``, such as some that compile for long, have their rounds when all others had theirs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain, zip_longest

import pytest

from perflab.errors import SettingError
from perflab.plugin.config.kinds import is_perf_case, tier_asked_by
from perflab.plugin.config.run_mode import RunMode, mode_of
from perflab.plugin.config.settings import Settings
from perflab.plugin.noting import NOTES, case_id
from perflab.plugin.stash import settings_of

Step = tuple[Hashable, Hashable]
"""The group of a case, and what it has in common with those that are measured together with it."""


def in_rounds(steps: Sequence[Step]) -> list[int]:
    """Places of the cases in the order of measuring: the first step of each group, then the second of each, and so on.

    Groups, the steps of a group and the cases of a step stay in the order in which they came.
    """
    groups: dict[Hashable, dict[Hashable, list[int]]] = {}
    for place, (group, step) in enumerate(steps):
        groups.setdefault(group, {}).setdefault(step, []).append(place)
    nothing: list[int] = []
    rounds = zip_longest(*(group.values() for group in groups.values()), fillvalue=nothing)
    return list(chain.from_iterable(chain.from_iterable(rounds)))


def take_turns(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Reorder the measured cases among the items; other tests keep their places.

    Nothing is reordered where nothing is measured, nor without ``--perf-total-budget``, since fixtures of a module or
    class are set up again each time that the round comes back to it; nor where nothing is measured one case after
    another (``--perf-predict``, ``--perf-against``). Kernels are compiled all at once, before the first test that asks:
    those tests come last.
    """
    notes = config.stash.get(NOTES, None)
    if notes is None:  # a process that measures for another one, in that one's order
        return
    places = [place for place, item in enumerate(items) if is_perf_case(item)]
    cases = [items[place] for place in places]
    try:
        settings, mode = settings_of(config), mode_of(config, items, cases)
    except SettingError:  # said when collecting has ended, and all are known that it concerns
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
        reporter.showfspath = False  # else each dot would stand on a line of its own, behind its file's name


def _step(item: pytest.Item, settings: Settings) -> Step:
    """A test's levels of the parameter that is shown side by side are one step; else each case is one."""
    group = case_id(item).partition("[")[0]
    parameter = _marked(item, "side_by_side", settings.side_by_side)
    callspec = getattr(item, "callspec", None)
    given: dict[str, object] = dict(callspec.params) if callspec is not None else {}
    if parameter not in given:
        return group, case_id(item)
    return group, tuple((name, str(value)) for name, value in given.items() if name != parameter)


def _marked(item: pytest.Item, argument: str, default: object) -> object:
    """An argument of the closest marker that has it; whether it can be used is checked later, with all others."""
    return next((mark.kwargs[argument] for mark in item.iter_markers("perf") if argument in mark.kwargs), default)
