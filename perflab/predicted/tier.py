"""The predicted tier under the protocol of ``tiers/interface.py``: cases are traced on fake tensors for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.tiers.interface import Tier, override

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from perflab.predicted.settings import Predicting
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
    from perflab.tiers.interface import Run
    from perflab.tiers.saving import Saving


class PredictedTier(Tier):
    """Cases traced on fake tensors for a GPU.

    The tier runs no cases by itself. A case may turn into a prediction when it states what it needs, so the code that
    runs measured cases calls the prediction.
    """

    folder = "predicted-"

    @override
    def commands(self) -> dict[str, Callable[[argparse.ArgumentParser], Run]]:
        from perflab.predicted.dry_run.command import dry_run_command

        return {"dry-run": dry_run_command}

    @override
    def settings(self, given: Given) -> Predicting:
        from perflab.predicted.settings import read

        return read(given)

    @override
    def announce(self, settings: Settings, cases: int) -> list[str]:
        from perflab.predicted.settings import announce

        return announce(settings, cases)

    @override
    def explain(self, result: Result, accept: str | None) -> str:
        from perflab.predicted.report.detail import explain_prediction

        return explain_prediction(result, accept)

    @override
    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        from perflab.predicted.report.contents import lines

        return lines(document, results, width, view)

    @override
    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        from perflab.predicted.report.contents import sections

        return sections(document, results, view)

    @override
    def describe(self, result: Result, case: Case) -> Case:
        from perflab.predicted.report.contents import describe

        return describe(result, case)

    @override
    def judge_runs(self, before: Result, now: Result, policy: Policy) -> Judgement | None:
        from perflab.predicted.judge.judge import judge_runs

        return judge_runs(before, now, policy)

    @override
    def save(self, saving: Saving) -> None:
        from perflab.predicted.store import save

        save(saving)

    @override
    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        from perflab.predicted.store import stored

        return stored(directory, environments)

    @override
    def numbers(self, result: WrittenResult) -> Numbers | None:
        from perflab.predicted.history import numbers_of

        return numbers_of(result)

    @override
    def levels(self, file: WrittenBaselines) -> Iterator[Level]:
        from perflab.predicted.history import levels_of

        return levels_of(file)

    @override
    def join(self, paths: Sequence[Path]) -> Part:
        from perflab.predicted.store import join

        return join(paths)


TIER = PredictedTier()
