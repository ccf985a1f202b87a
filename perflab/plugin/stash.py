"""Keys under which the plugin keeps its few objects on pytest's configuration, and who this process is."""

from __future__ import annotations

import pytest

from perflab.errors import PerflabError
from perflab.plugin.settings import Settings

SETTINGS = pytest.StashKey[Settings]()
CASES = pytest.StashKey[object]()
"""The ``Cases`` object, once a perf case is selected; typed loosely, since loading it loads the measuring rooms."""

FAKING = pytest.StashKey[bool]()
"""Whether tensors are fake at the moment, since a case is being predicted."""

AGAINST = "perflab-against"
"""Name under which the comparison with another version is registered as a plugin."""

COMPILED = "perflab-compiled"
"""Name under which the compiled cases are registered as a plugin."""

EARLY_PROBLEM = pytest.StashKey[PerflabError]()
"""In a worker: what would have ended the session before anything ran, to be raised by each case instead."""


def is_worker(config: pytest.Config) -> bool:
    """Whether this is a worker process of pytest-xdist."""
    return hasattr(config, "workerinput")


def worker_number(config: pytest.Config) -> int:
    """0 for ``gw0`` and where there are no workers, 1 for ``gw1`` and so on."""
    worker = getattr(config, "workerinput", None)
    digits = str(worker["workerid"]).removeprefix("gw") if worker is not None else "0"
    return int(digits) if digits.isdecimal() else 0
