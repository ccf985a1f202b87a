"""What a pytest session that runs dry has besides: tests in forks, and tests that read values skipped."""

from __future__ import annotations

import pytest

from perflab.errors import UsageError
from perflab.plugin.config.early_errors import refusing
from perflab.predicted.dry_run.forked import Forked
from perflab.predicted.dry_run.start import OPTION, VARIABLE
from perflab.predicted.dry_run.values import VALUES, ValuesRead


def begin(config: pytest.Config) -> None:
    """Register both.

    Raises:
        pytest.UsageError: this process is none, though the environment says so.
    """
    import nocuda

    with refusing(config):
        if not nocuda.is_active():
            raise UsageError(
                f"{VARIABLE} is set, and this process is no dry run",
                f"leave it to {OPTION} and `perflab dry-run -- COMMAND` to set it",
            )
    config.pluginmanager.register(ValuesRead(), VALUES)
    config.pluginmanager.register(Forked(config), "perflab-forked")
