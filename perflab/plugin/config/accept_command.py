"""Rebuilds the session's command: for one case with a flag that accepts it, or with more time."""

from __future__ import annotations

import os
import shlex

import pytest

from perflab.plugin.config.command_line import without, without_positionals
from perflab.plugin.options import OPTIONS
from perflab.records import Verdict
from perflab.report.drift import REASON_TO_FILL_IN
from perflab.units import parse_seconds

_OUTPUT = ("-r", "--tb", "--capture", "--show-capture", "--color", "--durations", "--durations-min", "--verbosity")
_OUTPUT_FLAGS = ("-q", "--quiet", "-v", "--verbose", "-s", "-l", "--showlocals", "--no-header", "--no-summary")
"""What is printed of a run, and how."""
_OF_THIS_RUN = (
    *("--perf-total-budget", "--perf-json", "--perf-check", "--perf-reason", "--perf-settle"),
    *("--perf-columns", "--perf-sort", "--perf-side-by-side", "--perf-prune-case"),
    *("-k", "-n", "--numprocesses", "--dist", "--maxprocesses", "--maxfail", "--basetemp", "--junit-xml", "--junitxml"),
    *_OUTPUT,
)
"""What chose other tests, limits or spreads them, and shows or writes results: none of it is about what is saved."""
_FLAGS_OF_THIS_RUN = (
    *("--perf-update", "--perf-update-new", "--perf-prune", "--perf-snapshots", "--perf-fail-improved"),
    *("-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first"),
    *("--sw", "--stepwise", "--sw-skip", "--stepwise-skip", "--pdb", "--trace"),
    *_OUTPUT_FLAGS,
)
_LIMITS = ("--perf-budget", "--perf-total-budget", "--basetemp")
_OF_THE_LAST_RUN = ("--lf", "--last-failed", "--sw", "--stepwise")


def accept_command(config: pytest.Config, case: str, verdict: Verdict, *, moves_anchor: bool = False) -> str:
    """Words that a shell takes: without what chose other tests, and with the case named from where the user is.

    ``moves_anchor``: what is accepted is worse by what its stored numbers do not show, and an anchor that does not
    move would report it again. It moves for a reason, and not by saving alone.
    """
    words = without_positionals(config, [os.fspath(argument) for argument in config.invocation_params.args])
    options = (*_OF_THIS_RUN, "--perf-budget") if _is_short(config) else _OF_THIS_RUN
    kept = without(words, options, _FLAGS_OF_THIS_RUN)
    path, *rest = case.split("::", 1)
    here = os.path.relpath(config.rootpath / path, config.invocation_params.dir)
    flag = "--perf-update-new" if verdict in (Verdict.NEW, Verdict.INCOMPARABLE) else "--perf-update"
    command = shlex.join(["pytest", *kept, "::".join([here, *rest]), flag])
    return f"{command} {REASON_TO_FILL_IN}" if moves_anchor else command


def command_without_limits(config: pytest.Config) -> str:
    """Words that a shell takes: the session's command, without limits of its time, output and looks at the last run."""
    words = [os.fspath(argument) for argument in config.invocation_params.args]
    return shlex.join(["pytest", *without(words, (*_LIMITS, *_OUTPUT), (*_OF_THE_LAST_RUN, *_OUTPUT_FLAGS))])


def _is_short(config: pytest.Config) -> bool:
    """Whether the command gives a case less time than its project does: for a look, and too little for a baseline.

    More time stays: there are cases that are skipped without it.
    """
    given, own = config.getoption("perf_budget", None), config.getini("perf_budget")
    usual = own or next(option.default for option in OPTIONS if option.dest == "perf_budget")
    return given is not None and parse_seconds(given) < parse_seconds(usual)
