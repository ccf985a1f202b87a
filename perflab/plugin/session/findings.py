"""Calls a project's hook ``pytest_perf_findings``; an error in the hook loses no results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from perflab.data import speakable
from perflab.results import Result, by_study

HOOK = "pytest_perf_findings"


def findings_of(config: pytest.Config, results: Sequence[Result], note: Callable[[str], None]) -> dict[str, list[str]]:
    """Return the lines of findings by study; studies without findings are left out.

    Args:
        config: the configuration in which the hook's implementations are registered.
        results: the run's results, in the order of collection.
        note: called with a message for each study whose hook failed.
    """
    found: dict[str, list[str]] = {}
    for study, cases in by_study(results).items():
        try:
            lines = _lines(config.hook.pytest_perf_findings(study=study, results=cases))
        except (Exception, pytest.fail.Exception, pytest.skip.Exception) as error:
            note(f"{HOOK}: no findings of study {study!r}: {type(error).__name__}: {error}")
            continue
        if lines:
            found[study] = lines
    return found


def _lines(said: object) -> list[str]:
    """Return the lines of all implementations of the hook, one after another.

    Raises:
        TypeError: an implementation returned something other than a list of texts, or None.
    """
    lines: list[str] = []
    for one in said if isinstance(said, list) else [said]:
        if not isinstance(one, list | tuple) or not all(isinstance(line, str) for line in one):
            raise TypeError(f"an implementation returned {one!r}; wanted a list of str, or None")
        lines += [speakable(str(line)) for line in one]
    return lines
