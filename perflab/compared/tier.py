"""The compared tier (A/B), an implementation of ``tiers/interface.py``: base and head interleaved, nothing stored."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perflab.tiers.interface import Tier, override

if TYPE_CHECKING:
    import pytest

    from perflab.settings.settings import Settings
    from perflab.tiers.job import Job


class ComparedTier(Tier):
    """The compared tier: base and head interleaved (A/B), nothing stored.

    Its record derives from the measured tier's record, so the measured tier shows it.
    """

    @override
    def begin(self, job: Job) -> None:
        """Make a side's process find an installed version's modules before any others."""
        if job.serve is not None:
            from perflab.compared.serving import begin

            begin(job.serve)

    @override
    def run(
        self, config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None
    ) -> list[pytest.Item]:
        """Compare all cases that measure, under ``--perf-against``; in a side's process, measure them on request."""
        if job is not None and job.serve is not None:
            from perflab.compared.serving import run_side

            return run_side(config, settings, items, job)
        if job is not None or settings.against is None or not items:
            return items
        from perflab.compared.cases import run

        return run(config, settings, items)


TIER = ComparedTier()
