"""What a pytest session that runs dry has besides: tests in forks, and tests that read values skipped."""

from __future__ import annotations

import pytest

from perflab.predicted.dry_run.forked import Forked
from perflab.predicted.dry_run.values import VALUES, ValuesRead


def begin(config: pytest.Config) -> None:
    """Register both."""
    config.pluginmanager.register(ValuesRead(), VALUES)
    config.pluginmanager.register(Forked(config), "perflab-forked")
