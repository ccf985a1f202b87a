"""What the plugin keeps on pytest's configuration: settings, cases, and who this process is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable
    from pathlib import Path

    import torch

    from perflab.measure.memory_snapshot import MemorySnapshot
    from perflab.plugin.case.perf import Perf
    from perflab.plugin.config.settings import Settings


class Faking(Protocol):
    """What fixtures give while tensors are fake."""

    def device(self) -> torch.device:
        """The device that stands for the one that is not here."""

    def record_memory(self, path: Path) -> contextlib.AbstractContextManager[MemorySnapshot]:
        """The ``memory_snapshot`` of a block, in this file."""


_SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
PERF_FOR: pytest.StashKey[Callable[[pytest.Item, torch.device], Perf]] = pytest.StashKey()
"""Gives the ``perf`` fixture's value, once a perf case is selected."""

RUNS_ONCE: pytest.StashKey[bool] = pytest.StashKey()
"""On a test: it is a perf case of a run that times nothing."""

RUNS_AS_BEFORE: pytest.StashKey[bool] = pytest.StashKey()
"""On a test: it was adopted, uses what perflab lacks, and ran with the fixture that it was written for."""

FAKING: pytest.StashKey[Faking | None] = pytest.StashKey()
"""While tensors are fake, since nothing is to run: who made them so."""


def settings_of(config: pytest.Config) -> Settings:
    """The run's settings. They are read and checked when they are first asked for.

    Raises:
        SettingError: a value that cannot be used, naming the option or ini key that holds it.
    """
    if _SETTINGS not in config.stash:
        from perflab.plugin.config.settings import read_settings

        config.stash[_SETTINGS] = read_settings(config)
    return config.stash[_SETTINGS]


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a worker process of pytest-xdist."""
    return hasattr(config, "workerinput")


def worker_number(config: pytest.Config) -> int:
    """0 for ``gw0`` and where there are no workers, 1 for ``gw1`` and so on."""
    worker = getattr(config, "workerinput", None)
    digits = str(worker["workerid"]).removeprefix("gw") if worker is not None else "0"
    return int(digits) if digits.isdecimal() else 0
