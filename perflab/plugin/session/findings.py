"""Calls a project's hook ``pytest_perf_findings``; an error in it loses no results."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from perflab.data import speakable
from perflab.results import Result, by_study

HOOK = "pytest_perf_findings"


def findings_of(config: pytest.Config, results: Sequence[Result], note: Callable[[str], None]) -> dict[str, list[str]]:
    """The lines of each study; a study of which nobody says anything is left out.

    Args:
        config: where the hook's implementations are registered.
        results: the run's, in the order in which they were collected.
        note: told of each study whose findings could not be had, and why.
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
    """What all implementations said, one after another."""
    lines: list[str] = []
    for one in said if isinstance(said, list) else [said]:
        if not isinstance(one, list | tuple) or not all(isinstance(line, str) for line in one):
            raise TypeError(f"an implementation returned {one!r}; wanted a list of str, or None")
        lines += [speakable(str(line)) for line in one]
    return lines
