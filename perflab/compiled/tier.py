"""The compiled tier, behind the protocol of ``tiers.py``: Triton kernels compiled ahead of time, nothing run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.tiers import Run, Tier

if TYPE_CHECKING:
    import argparse

    import pytest

    from perflab.plugin.case.fresh_process import Job
    from perflab.plugin.config.settings import Given, Settings
    from perflab.plugin.session.saving import Saving
    from perflab.report.lines import Line
    from perflab.report.section import Section
    from perflab.report.view import View
    from perflab.results import Document, Result
    from perflab.store.join import Part


class Compiled(Tier):
    """Takes the tests that ask for ``compiled_kernel``.

    It has no stale files: what is registered is not known from tests, so ``perflab kernels --update`` removes them.
    """

    folder = "triton-"
    unit = "kernel"

    def commands(self) -> dict[str, Callable[[argparse.ArgumentParser], Run]]:
        """``perflab kernels``."""
        from perflab.compiled.command import kernels_command

        return {"kernels": kernels_command}

    def settings(self, given: Given) -> object:
        """Which kernels, and for which architectures."""
        from perflab.compiled.settings import read

        return read(given)

    def spread(self, metafunc: pytest.Metafunc) -> None:
        """A case for every registered kernel and architecture."""
        from perflab.compiled.run.cases import spread

        spread(metafunc)

    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        """Compile and judge them."""
        from perflab.compiled.run.cases import run

        return run(config, settings, items)

    def explain(self, result: Result, accept: str | None) -> str:
        """What the kernel takes, before and now, or why it does not compile."""
        from perflab.compiled.report import explain_kernel

        return explain_kernel(result, accept)

    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        """The tables as text."""
        from perflab.compiled.section import lines

        return lines(document, results, width, view)

    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        """The tables for a page."""
        from perflab.compiled.section import sections

        return sections(document, results, view)

    def save(self, saving: Saving) -> None:
        """Save compiled kernels."""
        from perflab.compiled.run.saving import save

        save(saving)

    def join(self, paths: Sequence[Path]) -> Part:
        """Of each kernel, architecture and Triton what was recorded last."""
        from perflab.compiled.store import join

        return join(paths)


TIER = Compiled()
