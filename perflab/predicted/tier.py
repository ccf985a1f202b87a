"""The predicted tier, behind the protocol of ``tiers.py``: cases traced on fake tensors for a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from perflab.plugin.config.settings import Settings
    from perflab.plugin.session.saving import Saving
    from perflab.records import Environment
    from perflab.report.lines import Line
    from perflab.report.section import Section
    from perflab.report.view import View
    from perflab.results import Document, Result
    from perflab.store.join import Part
    from perflab.store.stale import StoredFile

FOLDER: str | None = "predicted-"
"""How the folders of its baselines begin."""


def run(config: pytest.Config, settings: Settings, items: list[pytest.Item]) -> list[pytest.Item]:
    """None by itself: a case may turn into a prediction when it says what it needs, so measured cases ask for it."""
    return items


def explain(result: Result, accept: str | None) -> str:
    """Before and now, what grew, and whether it still fits."""
    from perflab.predicted.report.failure import explain_prediction

    return explain_prediction(result, accept)


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """The tables as text."""
    from perflab.predicted.report.section import lines

    return lines(document, results, width, view)


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """The tables for a page."""
    from perflab.predicted.report.section import sections

    return sections(document, results, view)


def notes(document: Document, results: Sequence[Result], width: int) -> list[str]:
    """Nothing: its tables show all."""
    return []


def data(document: Document, results: Sequence[Result]) -> dict[str, object]:
    """Nothing yet."""
    return {}


def save(saving: Saving) -> None:
    """Save predictions."""
    from perflab.predicted.run.saving import save

    save(saving)


def stored(directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
    """All files: predictions belong to no machine."""
    from perflab.predicted.store.stored import stored

    return stored(directory)


def join(paths: Sequence[Path]) -> Part:
    """Of each case and GPU what was recorded last."""
    from perflab.predicted.store.stored import join

    return join(paths)
