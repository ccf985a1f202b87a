"""The measured tier, by ``tiers/interface.py``: cases run here and are compared with stored numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.tiers.interface import Tier, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest

    from perflab.results.readings import Level, Numbers, WrittenBaselines, WrittenResult
    from perflab.results.records import Environment, Judgement, Policy
    from perflab.results.result import Document, Result
    from perflab.settings.settings import Settings
    from perflab.store.case_files import Part
    from perflab.store.stale import StoredFile
    from perflab.tables.contents import Case
    from perflab.tables.lines import Line, Section
    from perflab.tables.view import View
    from perflab.tiers.job import Job
    from perflab.tiers.saving import Saving


class MeasuredTier(Tier):
    """The tier whose cases run here and are compared with stored numbers."""

    folder = ""

    @override
    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        from perflab.measured.run.cases import run

        return run(config, settings, items, job)

    @override
    def explain(self, result: Result, accept: str | None) -> str:
        from perflab.measured.report.failure import explain

        return explain(result, accept)

    @override
    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        from perflab.measured.report.section import lines

        return lines(document, results, width, view)

    @override
    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        from perflab.measured.report.section import sections

        return sections(document, results, view)

    @override
    def notes(self, document: Document, results: Sequence[Result], width: int) -> list[str]:
        from perflab.measured.report.section import notes

        return notes(document, results, width)

    @override
    def describe(self, result: Result, case: Case) -> Case:
        from perflab.measured.report.contents import describe

        return describe(result, case)

    @override
    def judge_runs(self, before: Result, now: Result, policy: Policy) -> Judgement | None:
        from perflab.measured.baselines import judge_runs

        return judge_runs(before, now, policy)

    @override
    def data(self, document: Document, results: Sequence[Result]) -> dict[str, object]:
        from perflab.measured.report.section import data

        return data(document, results)

    @override
    def sets_beside(self, results: Sequence[Result], parameter: str) -> bool:
        from perflab.measured.report.side_by_side import side_by_side

        return bool(side_by_side(results, parameter))

    @override
    def own_columns(self, results: Sequence[Result]) -> list[str]:
        from perflab.measured.report.columns import own_columns

        return own_columns(results)

    @override
    def take_turns(self, saving: Saving) -> None:
        from perflab.measured.run.tables import take_turns

        take_turns(saving)

    @override
    def save(self, saving: Saving) -> None:
        from perflab.measured.run.saving import save

        save(saving)

    @override
    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        from perflab.measured.baselines import stored

        return stored(directory, environments)

    @override
    def numbers(self, result: WrittenResult) -> Numbers | None:
        from perflab.measured.history import numbers_of

        return numbers_of(result)

    @override
    def levels(self, file: WrittenBaselines) -> Iterator[Level]:
        from perflab.measured.history import levels_of

        return levels_of(file)

    @override
    def join(self, paths: Sequence[Path]) -> Part:
        from perflab.measured.baselines import join

        return join(paths)


TIER = MeasuredTier()
