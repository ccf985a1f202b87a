"""Distinguishes kinds of tests and of processes (perf cases, workers), and holds the plugin's data on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from perflab.base.errors import SettingError
from perflab.noting import SAVES_NOTHING
from perflab.options import TIER_OF

if TYPE_CHECKING:
    import contextlib
    from pathlib import Path

    import torch

    from perflab.measure.memory.histories import MemorySnapshot


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
            f"{item.nodeid} asks for both perf and {own}", "split it into two tests, one for each fixture"
        )
    return TIER_OF[own] if own is not None else None


def measures_elsewhere(item: pytest.Item) -> bool:
    """Whether a marked test is measured by pytest-benchmark: by its fixtures, or because it could not be adopted."""
    names = getattr(item, "fixturenames", ())
    return ("perf" not in names and "benchmark" in names) or item.stash.get(RUNS_AS_BEFORE, False)


def reason_of_skip(report: pytest.TestReport) -> str:
    """Return why a test was skipped, from its report."""
    told = report.longrepr
    return (told[2] if isinstance(told, tuple) else str(told)).removeprefix("Skipped: ")


class Faking(Protocol):
    """The source of the fixtures' values while tensors are fake."""

    def device(self) -> torch.device:
        """Return the device that represents the absent GPU."""

    def record_memory(self, path: Path) -> contextlib.AbstractContextManager[MemorySnapshot]:
        """Record the ``memory_snapshot`` of a block to this file."""


RUNS_ONCE: pytest.StashKey[bool] = pytest.StashKey()
"""Set to True on a test that is a perf case of a run that times nothing."""

RUNS_AS_BEFORE: pytest.StashKey[bool] = pytest.StashKey()
"""Set to True on an adopted test that uses a feature which perflab lacks, and so ran with its original fixture."""

FAKING: pytest.StashKey[Faking | None] = pytest.StashKey()
"""The object that made tensors fake, while they are fake because nothing is to run; else None or absent."""


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a worker process of pytest-xdist, or a job that leaves its results to a session as well."""
    return hasattr(config, "workerinput") or config.stash.get(SAVES_NOTHING, False)


def worker_number(config: pytest.Config) -> int:
    """Return the number of this pytest-xdist worker: 0 for ``gw0`` and without workers, 1 for ``gw1`` and so on."""
    worker = getattr(config, "workerinput", None)
    digits = str(worker["workerid"]).removeprefix("gw") if worker is not None else "0"
    return int(digits) if digits.isdecimal() else 0
