"""The compared tier (A/B), behind the protocol of ``tiers.py``: base and head interleaved, nothing stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.measured.tier import explain, lines, notes, sections
from perflab.store.join import Part

if TYPE_CHECKING:
    import pytest

    from perflab.plugin.config.settings import Settings
    from perflab.plugin.session.saving import Saving
    from perflab.records import Environment
    from perflab.results import Document, Result
    from perflab.store.stale import StoredFile

__all__ = ["FOLDER", "data", "explain", "join", "lines", "notes", "run", "save", "sections", "stored"]

FOLDER: str | None = None
"""How the folders of its baselines begin."""


def run(config: pytest.Config, settings: Settings, items: list[pytest.Item]) -> list[pytest.Item]:
    """Under ``--perf-against``, compare the cases that measure."""
    if settings.against is None or not items:
        return items
    from perflab.compared.run.cases import run

    return run(config, settings, items)


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
