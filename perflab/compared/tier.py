"""The compared tier (A/B), behind the protocol of ``tiers.py``: base and head interleaved, nothing stored.

Its record derives from the measured tier's, which shows and explains it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.tiers import Tier

if TYPE_CHECKING:
    import pytest

    from perflab.plugin.case.fresh_process import Job
    from perflab.plugin.config.settings import Given, Settings


class Compared(Tier):
    """Takes all cases that measure, under ``--perf-against``."""

    def settings(self, given: Given) -> object:
        """The change that counts."""
        from perflab.compared.settings import read

        return read(given)

    def begin(self, job: Job) -> None:
        """In a side's process: end with the session; have an installed version's modules found before others are."""
        if job.serve is not None:
            from perflab.compared.run.serving import begin

            begin(job.serve)

    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        """Compare them; in a side's process, measure when asked."""
        if job is not None and job.serve is not None:
            from perflab.compared.run.serving import run_side

            run_side(config, settings, items, job)
            return []
        if job is not None or settings.against is None or not items:
            return items
        from perflab.compared.run.cases import run

        return run(config, settings, items)


TIER = Compared()
