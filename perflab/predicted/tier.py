"""The predicted tier, behind the protocol of ``tiers.py``: cases traced on fake tensors for a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.tiers import Tier

if TYPE_CHECKING:
    from perflab.plugin.config.settings import Given, Settings
    from perflab.plugin.session.saving import Saving
    from perflab.records import Environment
    from perflab.report.lines import Line
    from perflab.report.section import Section
    from perflab.report.view import View
    from perflab.results import Document, Result
    from perflab.store.join import Part
    from perflab.store.stale import StoredFile


class Predicted(Tier):
    """Runs none by itself: a case may turn into a prediction when it says what it needs, so measuring asks for it."""

    folder = "predicted-"

    def settings(self, given: Given) -> object:
        """The GPU, and whether timelines are written."""
        from perflab.predicted.settings import read

        return read(given)

    def announce(self, settings: Settings, cases: int) -> list[str]:
        """For which GPU cases are predicted, all of them or what is too much for this machine."""
        from perflab.predicted.settings import announce

        return announce(settings, cases)

    def explain(self, result: Result, accept: str | None) -> str:
        """Before and now, what grew, and whether it still fits."""
        from perflab.predicted.report.failure import explain_prediction

        return explain_prediction(result, accept)

    def lines(self, document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
        """The tables as text."""
        from perflab.predicted.report.section import lines

        return lines(document, results, width, view)

    def sections(self, document: Document, results: Sequence[Result], view: View) -> list[Section]:
        """The tables for a page."""
        from perflab.predicted.report.section import sections

        return sections(document, results, view)

    def save(self, saving: Saving) -> None:
        """Save predictions."""
        from perflab.predicted.run.saving import save

        save(saving)

    def stored(self, directory: Path, environments: Sequence[Environment]) -> Iterator[StoredFile]:
        """All files: predictions belong to no machine."""
        from perflab.predicted.store.stored import stored

        return stored(directory)

    def join(self, paths: Sequence[Path]) -> Part:
        """Of each case and GPU what was recorded last."""
        from perflab.predicted.store.stored import join

        return join(paths)


TIER = Predicted()
