"""The predicted tier under the protocol of ``tiers.py``: cases are traced on fake tensors for a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.tiers import Tier, override

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from perflab.plugin.config.settings import Given, Settings
    from perflab.plugin.session.saving import Saving
    from perflab.predicted.settings import Predicting
    from perflab.records import Environment, Judgement, Policy
    from perflab.report.contents import Case
    from perflab.report.lines import Line, Section
    from perflab.report.view import View
    from perflab.results import Document, Result
    from perflab.store.join import Part
    from perflab.store.stale import StoredFile
    from perflab.tiers import Run


class PredictedTier(Tier):
    """Cases traced on fake tensors for a GPU.

    The tier runs no cases by itself. A case may turn into a prediction when it states what it needs, so the code that
    runs measured cases calls the prediction.
    """

    folder = "predicted-"

    @override
    def commands(self) -> dict[str, Callable[[argparse.ArgumentParser], Run]]:
        from perflab.predicted.dry_run.command import commands

        return commands()

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
        from perflab.predicted.report.failure import explain_prediction

        return explain_prediction(result, accept)

    @override
    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        from perflab.predicted.report.section import lines

        return lines(document, results, width, view)

    @override
    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        from perflab.predicted.report.section import sections

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
        from perflab.predicted.run.saving import save

        save(saving)

    @override
    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        from perflab.predicted.store.stored import stored

        return stored(directory, environments)

    @override
    def join(self, paths: Sequence[Path]) -> Part:
        from perflab.predicted.store.stored import join

        return join(paths)


TIER = PredictedTier()
