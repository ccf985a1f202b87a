"""The plugin's data on pytest's configuration and tests: cases, and the role of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    import contextlib
    from pathlib import Path

    import torch

    from perflab.measure.memory.memory_snapshot import MemorySnapshot


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
    """Whether this is a worker process of pytest-xdist."""
    return hasattr(config, "workerinput")


def worker_number(config: pytest.Config) -> int:
    """Return the number of this pytest-xdist worker: 0 for ``gw0`` and without workers, 1 for ``gw1`` and so on."""
    worker = getattr(config, "workerinput", None)
    digits = str(worker["workerid"]).removeprefix("gw") if worker is not None else "0"
    return int(digits) if digits.isdecimal() else 0
