"""The measured tier, behind the protocol of ``tiers.py``: cases that run here, compared with stored numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.tiers import Tier

if TYPE_CHECKING:
    import pytest

    from perflab.plugin.case.fresh_process import Job
    from perflab.plugin.config.settings import Settings
    from perflab.plugin.session.saving import Saving
    from perflab.records import Environment
    from perflab.report.lines import Line
    from perflab.report.section import Section
    from perflab.report.view import View
    from perflab.results import Document, Result
    from perflab.store.join import Part
    from perflab.store.stale import StoredFile


class Measured(Tier):
    """Takes all cases that no other tier has taken."""

    folder = ""

    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        """Measure the cases that are left: each asks for the ``perf`` fixture, or measures by itself."""
        if items:
            from perflab.measured.run.cases import run

            run(config, settings, items, job)
        return []

    def explain(self, result: Result, accept: str | None) -> str:
        """Before and now, by how much, where, and how sure that is."""
        from perflab.measured.report.failure import explain
        from perflab.records import Policy

        return explain(result, (result.policy or Policy()).memory_threshold, accept)

    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        """The tables as text."""
        from perflab.measured.report.section import lines

        return lines(document, results, width, view)

    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        """The tables for a page."""
        from perflab.measured.report.section import sections

        return sections(document, results, view)

    def notes(self, document: Document, results: Sequence[Result], width: int) -> list[str]:
        """What was not compared, and what noise hides."""
        from perflab.measured.report.section import notes

        return notes(document, results, width)

    def data(self, document: Document, results: Sequence[Result]) -> dict[str, object]:
        """The tables of studies."""
        from perflab.measured.report.section import data

        return data(document, results)

    def sets_beside(self, results: Sequence[Result], parameter: str) -> bool:
        """Whether a case has several levels of it."""
        from perflab.measured.report.side_by_side import side_by_side

        return bool(side_by_side(results, parameter))

    def save(self, saving: Saving) -> None:
        """Save exact quantities and times, or keep times for this machine alone."""
        from perflab.measured.run.saving import save

        save(saving)

    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        """The files of these environments: others' cases may well exist."""
        from perflab.measured.store.stored import stored

        return stored(directory, environments)

    def join(self, paths: Sequence[Path]) -> Part:
        """Of each case and environment what was recorded last."""
        from perflab.measured.store.stored import join

        return join(paths)


TIER = Measured()
