"""Splits pytest's command line into options and files, and rebuilds it: to accept a case, or without time limits."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Sequence

import pytest

from perflab.base.identity import file_of
from perflab.options import OPTIONS
from perflab.results.records import Verdict
from perflab.tables.failing import REASON_TO_FILL_IN
from perflab.units import parse_seconds

_SHORT_WITH_VALUE = frozenset("kmpcoWrn")
"""Letters of short options of pytest and pytest-xdist that take a value: the following characters are the value."""


def without_positionals(config: pytest.Config, words: Sequence[str]) -> list[str]:
    """Return the command's words without paths and node ids."""
    kept = list(words)
    for positional in reversed(config.option.file_or_dir):  # from the end: an option's value may be the same word
        if positional in kept:
            del kept[len(kept) - 1 - kept[::-1].index(positional)]
    return kept


def without(words: Sequence[str], options: Collection[str] = (), flags: Collection[str] = ()) -> list[str]:
    """Return the words without these ``options`` and their values, and without these ``flags``.

    Flags are removed also from words that combine several letters, such as ``-xvs``.
    """
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest]
        if word.startswith("--"):
            name, equals, _ = word.partition("=")
            if name in options:
                _skip_value(rest, equals)
            elif name not in flags:
                kept.append(word)
        elif word.startswith("-") and len(word) > 1:
            kept += _letters(word[1:], rest, options, flags)
        else:
            kept.append(word)
    return kept


def _letters(letters: str, rest: Iterator[str], options: Collection[str], flags: Collection[str]) -> list[str]:
    """Return a word of combined short options without the given options and flags; empty if no letter is left."""
    kept = "-"
    for place, letter in enumerate(letters):
        if letter in _SHORT_WITH_VALUE:
            value = letters[place + 1 :]
            if f"-{letter}" in options:
                _skip_value(rest, value)
            else:
                kept += letter + value
            break
        if f"-{letter}" not in flags:
            kept += letter
    return [kept] if len(kept) > 1 else []


def _skip_value(rest: Iterator[str], given_with_it: str) -> None:
    """Skip an option's value if the value is a separate word."""
    if not given_with_it:
        next(rest, None)


_OUTPUT = ("-r", "--tb", "--capture", "--show-capture", "--color", "--durations", "--durations-min", "--verbosity")
_OUTPUT_FLAGS = ("-q", "--quiet", "-v", "--verbose", "-s", "-l", "--showlocals", "--no-header", "--no-summary")
"""Flags that choose the output of a run; ``_OUTPUT`` holds the options with a value."""
_OF_THIS_RUN = (
    *("--perf-total-budget", "--perf-json", "--perf-check", "--perf-reason", "--perf-settle"),
    *("--perf-columns", "--perf-sort", "--perf-side-by-side", "--perf-prune-case"),
    *("-k", "-n", "--numprocesses", "--dist", "--maxprocesses", "--maxfail", "--basetemp", "--junit-xml", "--junitxml"),
    *_OUTPUT,
)
"""Options with a value that select, limit or distribute tests, or that show or write results. They do not affect what
is saved."""
_FLAGS_OF_THIS_RUN = (
    *("--perf-update", "--perf-update-new", "--perf-prune", "--perf-snapshots", "--perf-fail-improved"),
    *("-x", "--exitfirst", "--lf", "--last-failed", "--ff", "--failed-first", "--nf", "--new-first"),
    *("--sw", "--stepwise", "--sw-skip", "--stepwise-skip", "--pdb", "--trace"),
    *_OUTPUT_FLAGS,
)
_LIMITS = ("--perf-budget", "--perf-total-budget", "--basetemp")
_OF_THE_LAST_RUN = ("--lf", "--last-failed", "--sw", "--stepwise")


def accept_command(config: pytest.Config, case: str, verdict: Verdict, *, moves_anchor: bool = False) -> str:
    """Return the shell command that accepts a case: the session's command without options that select other tests.

    The command names the case relative to the user's directory. ``moves_anchor`` is for a case that is worse than its
    anchor though its stored numbers do not show that: unless the anchor moves, the case would be reported again. An
    anchor moves only if a reason is given, so the command then has a reason to fill in.
    """
    words = without_positionals(config, [os.fspath(argument) for argument in config.invocation_params.args])
    # A shorter time than the project's is enough for a look, but not for a baseline; a longer one is kept, since some
    # cases are skipped without it.
    given, own = config.getoption("perf_budget", None), config.getini("perf_budget")
    usual = own or next(option.default for option in OPTIONS if option.dest == "perf_budget")
    is_short = given is not None and parse_seconds(given) < parse_seconds(usual)
    kept = without(words, (*_OF_THIS_RUN, *["--perf-budget"] * is_short), _FLAGS_OF_THIS_RUN)
    file = file_of(case)
    here = os.path.relpath(config.rootpath / file, config.invocation_params.dir)
    flag = "--perf-update-new" if verdict in (Verdict.NEW, Verdict.INCOMPARABLE) else "--perf-update"
    command = shlex.join(["pytest", *kept, here + case[len(file) :], flag])
    return f"{command} {REASON_TO_FILL_IN}" if moves_anchor else command


def command_without_limits(config: pytest.Config) -> str:
    """Return the session's command for a shell, without time limits, output options and choices by the last run."""
    words = [os.fspath(argument) for argument in config.invocation_params.args]
    return shlex.join(["pytest", *without(words, (*_LIMITS, *_OUTPUT), (*_OF_THE_LAST_RUN, *_OUTPUT_FLAGS))])
