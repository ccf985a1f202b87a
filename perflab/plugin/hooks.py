"""Hooks that a conftest or a plugin may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perflab.results.result import Result


def pytest_perf_findings(study: str, results: list[Result]) -> list[str] | None:
    """Return the findings of a study as lines, which are printed below the study's table.

    Called once for each study that has results, in the process in which results arrive (under pytest-xdist the
    controller), when the run is over or was interrupted. The lines of all implementations are printed. An
    implementation that has no findings for a study returns None.

    Args:
        study: the study's title, as given by the marker.
        results: the results of the study's cases, in the order of collection, including skipped and failed cases.
    """
