"""Distinguishes perf cases from other tests, and cases that use a tier's own fixture from cases that a run times."""

from __future__ import annotations

import pytest

from perflab.base.errors import SettingError
from perflab.options import TIER_OF
from perflab.running.config.stash import RUNS_AS_BEFORE


def is_perf_case(item: pytest.Item) -> bool:
    """Whether a test is marked ``perf``."""
    return item.get_closest_marker("perf") is not None


def tier_asked_by(item: pytest.Item) -> str | None:
    """Return the tier whose own fixture a test uses, so that the test is not timed; None if it uses no such fixture.

    Raises:
        SettingError: the test also uses the ``perf`` fixture.
    """
    fixtures = getattr(item, "fixturenames", ())
    own = next((name for name in TIER_OF if name in fixtures), None)
    if own is not None and "perf" in fixtures:
        raise SettingError(
            f"{item.nodeid} asks for both perf and {own}",
            "split it into two tests, one for each fixture",
        )
    return TIER_OF[own] if own is not None else None


def measures_elsewhere(item: pytest.Item) -> bool:
    """Whether a marked test is measured by pytest-benchmark: by its fixtures, or because it could not be adopted."""
    names = getattr(item, "fixturenames", ())
    return ("perf" not in names and "benchmark" in names) or item.stash.get(RUNS_AS_BEFORE, False)
