"""The compared tier (A/B), behind the protocol of ``tiers.py``: base and head interleaved, nothing stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.store.join import Part

if TYPE_CHECKING:
    import pytest

    from perflab.plugin.config.settings import Settings
    from perflab.plugin.session.saving import Saving
    from perflab.records import Environment
    from perflab.report.lines import Line
    from perflab.report.section import Section
    from perflab.report.view import View
    from perflab.results import Document, Result
    from perflab.store.stale import StoredFile

FOLDER: str | None = None
"""How the folders of its baselines begin."""


def run(config: pytest.Config, settings: Settings, items: list[pytest.Item]) -> list[pytest.Item]:
    """Under ``--perf-against``, compare the cases that measure."""
    if settings.against is None or not items:
        return items
    from perflab.compared.run.cases import run

    return run(config, settings, items)


def explain(result: Result, accept: str | None) -> str:
    """Base and head, by how much they differ, where, and how sure that is."""
    from perflab.measured.report.failure import explain
    from perflab.records import Policy

    return explain(result, (result.policy or Policy()).memory_threshold, accept)


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """The tables as text."""
    from perflab.measured.report.section import lines

    return lines(document, results, width, view)


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """The tables for a page."""
    from perflab.measured.report.section import sections

    return sections(document, results, view)


def notes(document: Document, results: Sequence[Result], width: int) -> list[str]:
    """As of measured cases, whose tables show them."""
    from perflab.measured.report.section import notes

    return notes(document, results, width)


def data(document: Document, results: Sequence[Result]) -> dict[str, object]:
    """Nothing yet."""
    return {}


def save(saving: Saving) -> None:
    """Nothing is stored."""


def stored(directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
    """None."""
    return iter(())


def join(paths: Sequence[Path]) -> Part:
    """None."""
    return Part(0, lambda output: set())
