"""The command that accepts what a case measured: the one that was given, for this case, with a flag that saves."""

from __future__ import annotations

import os
import shlex

import pytest

from perflab.records import Verdict

_NOT_NEEDED = ("--perf-check", "--perf-update", "--perf-json", "--basetemp")


def accept_command(config: pytest.Config, case: str, verdict: Verdict) -> str:
    """The command that was given, for this one case, with the flag that saves it."""
    positional = set(getattr(config.option, "file_or_dir", ()))
    kept = [arg for arg in map(os.fspath, config.invocation_params.args) if arg not in positional]
    flag = "--perf-update-new" if verdict in (Verdict.NEW, Verdict.INCOMPARABLE) else "--perf-update"
    words = ["pytest", *(arg for arg in kept if not arg.startswith(_NOT_NEEDED)), case, flag]
    return shlex.join(words)
