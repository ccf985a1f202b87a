"""Tells perf cases from other tests, and cases that compile from cases that measure."""

from __future__ import annotations

import pytest

from perflab.errors import SettingError

COMPILED_FIXTURE = "compiled_kernel"


def is_perf_case(item: pytest.Item) -> bool:
    """Whether a test is marked ``perf``."""
    return item.get_closest_marker("perf") is not None


def is_compiled_case(item: pytest.Item) -> bool:
    """Whether a test asks for a compiled kernel.

    Raises:
        SettingError: it asks for a measurement too.
    """
    fixtures = getattr(item, "fixturenames", ())
    if COMPILED_FIXTURE in fixtures and "perf" in fixtures:
        raise SettingError(
            f"{item.nodeid} asks for both perf and {COMPILED_FIXTURE}",
            "measure in one test, and gate what compiles in another",
        )
    return COMPILED_FIXTURE in fixtures


def measures_elsewhere(item: pytest.Item) -> bool:
    """Whether a marked test leaves the measuring to pytest-benchmark, and is no perf case by its fixtures."""
    names = getattr(item, "fixturenames", ())
    return "perf" not in names and "benchmark" in names
