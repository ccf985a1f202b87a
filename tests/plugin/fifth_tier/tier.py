"""The traced tier: counts the operators that a test's body calls, and compares the counts with their baseline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.tiers.interface import Tier, override

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pytest
    from perflab.traced.cases import Tracing

    from perflab.results.readings import Level, Numbers, WrittenBaselines, WrittenResult
    from perflab.results.records import Environment, Judgement, Policy
    from perflab.results.result import Document, Result
    from perflab.settings.given import Given
    from perflab.settings.settings import Settings
    from perflab.store.case_files import Part
    from perflab.store.stale import StoredFile
    from perflab.tables.contents import Case
    from perflab.tables.lines import Line, Section
    from perflab.tables.view import View
    from perflab.tiers.job import Job
    from perflab.tiers.saving import Saving


class TracedTier(Tier):
    """The traced tier: operators that a test's body calls."""

    folder = "traced-"

    @override
    def settings(self, given: Given) -> Tracing:
        from perflab.traced.cases import read

        return read(given)

    @override
    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        from perflab.traced.cases import run

        return run(config, settings, items)

    @override
    def explain(self, result: Result, accept: str | None) -> str:
        from perflab.traced.shown import explain

        return explain(result, accept)

    @override
    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        from perflab.traced.shown import lines

        return lines(results)

    @override
    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        from perflab.traced.shown import sections

        return sections(results)

    @override
    def describe(self, result: Result, case: Case) -> Case:
        from perflab.traced.shown import describe

        return describe(result, case)

    @override
    def judge_runs(self, before: Result, now: Result, policy: Policy) -> Judgement | None:
        from perflab.traced.cases import judge_runs

        return judge_runs(before, now)

    @override
    def numbers(self, result: WrittenResult) -> Numbers | None:
        from perflab.traced.stored import numbers_of

        return numbers_of(result)

    @override
    def levels(self, file: WrittenBaselines) -> Iterator[Level]:
        from perflab.traced.stored import levels_of

        return levels_of(file)

    @override
    def save(self, saving: Saving) -> None:
        from perflab.traced.stored import save

        save(saving)

    @override
    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        from perflab.traced.stored import stored

        return stored(directory)

    @override
    def join(self, paths: Sequence[Path]) -> Part:
        from perflab.traced.stored import join

        return join(paths)


TIER = TracedTier()
