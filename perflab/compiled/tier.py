"""The compiled tier, behind the protocol of ``tiers.py``: Triton kernels compiled ahead of time, nothing run."""

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

FOLDER: str | None = "triton-"
"""How the folders of its baselines begin."""


def run(config: pytest.Config, settings: Settings, items: list[pytest.Item]) -> list[pytest.Item]:
    """Compile and judge the tests that ask for ``compiled_kernel``."""
    from perflab.compiled.run.cases import run

    return run(config, settings, items)


def explain(result: Result, accept: str | None) -> str:
    """What the kernel takes, before and now, or why it does not compile."""
    from perflab.compiled.report import explain_kernel

    return explain_kernel(result, accept)


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """The tables as text."""
    from perflab.compiled.section import lines

    return lines(document, results, width, view)


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """The tables for a page."""
    from perflab.compiled.section import sections

    return sections(document, results, view)


def notes(document: Document, results: Sequence[Result], width: int) -> list[str]:
    """Nothing: its tables show all."""
    return []


def data(document: Document, results: Sequence[Result]) -> dict[str, object]:
    """Nothing yet."""
    return {}


def save(saving: Saving) -> None:
    """Save compiled kernels."""
    from perflab.compiled.run.saving import save

    save(saving)


def stored(directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
    """None: what is registered is not known from tests, so ``perflab kernels --update`` removes what is stale."""
    return iter(())


def join(paths: Sequence[Path]) -> Part:
    """Of each kernel, architecture and Triton what was recorded last."""
    from perflab.compiled.store import join

    return join(paths)
