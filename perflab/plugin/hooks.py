"""Hooks that a conftest or a plugin may implement."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perflab.results import Result


def pytest_perf_findings(study: str, results: list[Result]) -> list[str] | None:
    """Say what a study's results come to, in lines that stand below its table.

    Called once for each study that has results, where these meet (under pytest-xdist in the controller), when the run
    is over or was interrupted. Who has nothing to say of a study returns None; the lines of all stand there.

    Args:
        study: its title, as the marker has it.
        results: of its cases, in the order in which they were collected; those that were skipped or failed too.
    """
