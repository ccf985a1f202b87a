"""The compiled tier, by ``tiers/interface.py``: Triton kernels compiled ahead of time, nothing run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.running.config.kinds import tier_asked_by
from perflab.tiers.interface import Tier, override

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import pytest

    from perflab.compiled.settings import Compiling
    from perflab.results.readings import Level, Numbers, WrittenBaselines, WrittenResult
    from perflab.results.records import Judgement, Policy
    from perflab.results.result import Document, Result
    from perflab.settings.given import Given
    from perflab.settings.settings import Settings
    from perflab.store.case_files import Part
    from perflab.tables.contents import Case
    from perflab.tables.lines import Line, Section
    from perflab.tables.view import View
    from perflab.tiers.interface import Run
    from perflab.tiers.job import Job
    from perflab.tiers.saving import Saving


class CompiledTier(Tier):
    """The compiled tier: Triton kernels compiled ahead of time, nothing run.

    The tier reports no stale files, because tests do not tell which kernels are registered. ``perflab kernels
    --update`` removes the baselines of kernels that are no longer registered.
    """

    folder = "triton-"
    unit = "kernel"

    @override
    def commands(self) -> dict[str, Callable[[argparse.ArgumentParser], Run]]:
        from perflab.compiled.command import kernels_command, machine_code_command

        return {"kernels": kernels_command, "machine-code": machine_code_command}

    @override
    def settings(self, given: Given) -> Compiling:
        from perflab.compiled.settings import read

        return read(given)

    @override
    def spread(self, metafunc: pytest.Metafunc) -> None:
        from perflab.compiled.run.cases import spread

        spread(metafunc)

    @override
    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        own = [item for item in items if tier_asked_by(item) == "compiled"]
        if own:
            from perflab.compiled.run.cases import run

            run(config, settings, own)
        return [item for item in items if item not in own]

    @override
    def explain(self, result: Result, accept: str | None) -> str:
        from perflab.compiled.report import explain_kernel

        return explain_kernel(result, accept)

    @override
    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        from perflab.compiled.report import lines

        return lines(document, results, width, view)

    @override
    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        from perflab.compiled.report import sections

        return sections(document, results, view)

    @override
    def describe(self, result: Result, case: Case) -> Case:
        from perflab.compiled.report import describe

        return describe(result, case)

    @override
    def judge_runs(self, before: Result, now: Result, policy: Policy) -> Judgement | None:
        from perflab.compiled.judge import judge_runs

        return judge_runs(before, now, policy)

    @override
    def save(self, saving: Saving) -> None:
        from perflab.compiled.run.kernels import save

        save(saving)

    @override
    def numbers(self, result: WrittenResult) -> Numbers | None:
        from perflab.compiled.history import numbers_of

        return numbers_of(result)

    @override
    def levels(self, file: WrittenBaselines) -> Iterator[Level]:
        from perflab.compiled.history import levels_of

        return levels_of(file)

    @override
    def join(self, paths: Sequence[Path]) -> Part:
        from perflab.compiled.store import join

        return join(paths)


TIER = CompiledTier()
