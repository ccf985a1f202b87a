"""The command that accepts what a case measured: the one that was given, for this case, with a flag that saves."""

from __future__ import annotations

import argparse
import os
import shlex

import pytest

from perflab.plugin.words import without_positionals
from perflab.records import Verdict
from perflab.report.drift import REASON_TO_FILL_IN

_NOT_NEEDED = (
    "--perf-check",
    "--perf-json",
    "--perf-total-budget",
    "--perf-reason",
    "--basetemp",
    "-k",
    "--junit-xml",
    "--junitxml",
)
_NOT_NEEDED_FLAGS = ("--perf-update", "--perf-update-new", "--perf-prune", "-x", "--lf", "--ff", "--sw")


def accept_command(config: pytest.Config, case: str, verdict: Verdict, *, moves_anchor: bool = False) -> str:
    """Words that a shell takes: without what chose other tests, and with the case named from where the user is.

    ``moves_anchor``: what is accepted is worse by what its stored numbers do not show, and an anchor that does not
    move would report it again. It moves for a reason, and not by saving alone.
    """
    words = without_positionals(config, [os.fspath(argument) for argument in config.invocation_params.args])
    drop = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in _NOT_NEEDED:
        drop.add_argument(option, action="append")
    for option in _NOT_NEEDED_FLAGS:
        drop.add_argument(option, action="store_true")
    _, kept = drop.parse_known_args(words)
    path, *rest = case.split("::", 1)
    here = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    flag = "--perf-update-new" if verdict in (Verdict.NEW, Verdict.INCOMPARABLE) else "--perf-update"
    command = shlex.join(["pytest", *kept, "::".join([here, *rest]), flag])
    return f"{command} {REASON_TO_FILL_IN}" if moves_anchor else command
