"""The compared tier (A/B), behind the protocol of ``tiers.py``: base and head interleaved, nothing stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.tiers import Tier, override

if TYPE_CHECKING:
    import pytest

    from perflab.plugin.case.fresh_process import Job
    from perflab.plugin.config.settings import Settings


class ComparedTier(Tier):
    """Base and head interleaved (A/B), nothing stored; its record derives from the measured tier's, which shows it."""

    @override
    def begin(self, job: Job) -> None:
        """In a side's process: have an installed version's modules found before others are."""
        if job.serve is not None:
            from perflab.compared.run.serving import begin

            begin(job.serve)

    @override
    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        """Compare all cases that measure, under ``--perf-against``; in a side's process, measure when asked."""
        if job is not None and job.serve is not None:
            from perflab.compared.run.serving import run_side

            return run_side(config, settings, items, job)
        if job is not None or settings.against is None or not items:
            return items
        from perflab.compared.run.cases import run

        return run(config, settings, items)


TIER = ComparedTier()
