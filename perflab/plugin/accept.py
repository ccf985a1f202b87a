"""The command that accepts what a case measured: the one that was given, for this case, with a flag that saves."""

from __future__ import annotations

import argparse
import os
import shlex

import pytest

from perflab.records import Verdict

_NOT_NEEDED = ("--perf-check", "--perf-json", "--perf-total-budget", "--basetemp", "-k", "--junit-xml", "--junitxml")
_NOT_NEEDED_FLAGS = ("--perf-update", "--perf-update-new", "-x", "--lf", "--ff", "--sw")


def accept_command(config: pytest.Config, case: str, verdict: Verdict) -> str:
    """Words that a shell takes: without what chose other tests, and with the case named from where the user is."""
    words = [os.fspath(argument) for argument in config.invocation_params.args]
    for positional in reversed(config.option.file_or_dir):  # from the end: an option's value may read the same
        if positional in words:
            del words[len(words) - 1 - words[::-1].index(positional)]
    drop = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for option in _NOT_NEEDED:
        drop.add_argument(option, action="append")
    for option in _NOT_NEEDED_FLAGS:
        drop.add_argument(option, action="store_true")
    _, kept = drop.parse_known_args(words)
    path, *rest = case.split("::", 1)
    here = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    flag = "--perf-update-new" if verdict in (Verdict.NEW, Verdict.INCOMPARABLE) else "--perf-update"
    return shlex.join(["pytest", *kept, "::".join([here, *rest]), flag])
