"""Runs each perf case once, as a plain test, in a run that measures nothing.

This module replaces the tiers' own hooks. It reads no baseline, judges nothing, and lets cases run in parallel under
pytest-xdist. A case with an error of its own (NaN, nothing measured, perf called twice) fails also in such a run.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from perflab.base.errors import UsageError
from perflab.devices.kinds import resolve_device
from perflab.measure.calls.strays import calling
from perflab.measure.machine.devices import (
    as_out_of_memory,
    available_bytes,
    current_device,
    release_memory,
    synchronize,
)
from perflab.noting import UNTIMED, case_id
from perflab.running.case.perf import STATE, CaseState, NothingComparedError, Perf, Way, device_of
from perflab.running.case.ranked import leave_to_ranks, run_in_ranks, runs_in_others, too_few_gpus
from perflab.running.case.reference import refuse_wrong
from perflab.running.case.refusals import kernels_have_a_gpu, refuse_nan, refuse_unfinished
from perflab.running.case.statements import Claim, Needs
from perflab.running.config.kinds import RUNS_ONCE, measures_elsewhere, tier_asked_by, worker_number
from perflab.running.config.marker import for_case
from perflab.running.config.run_mode import RAN
from perflab.settings.settings import Settings
from perflab.tiers.job import Job

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


@dataclass
class Once:
    """The ``Way`` of a run that measures nothing: calls a case's callable once."""

    state: CaseState
    device: torch.device

    def of(self, workload: Workload) -> Any:
        """Run the workload once, and return its result.

        Raises:
            UsageError: the result holds NaN.
            WrongResultError: it is not that of the reference which the case has stated.
        """
        self.state.done = True
        with current_device(self.device), kernels_have_a_gpu(self.state.case):
            refuse_wrong(self.state, workload)
        result = self._run(workload)
        refuse_nan(self.state, result)
        return result

    def compare(self, base: Workload, candidate: Workload, budget_s: float, threshold: float) -> None:
        """Run the base once, without a comparison."""
        with calling(base):
            refuse_unfinished(self.state, self._run(base))

    def _run(self, workload: Workload) -> Any:
        with current_device(self.device), kernels_have_a_gpu(self.state.case):
            result = workload.run()
            synchronize(self.device)  # so that a kernel's error appears in this test
        return result

    def requires(self, claim: Claim) -> Way:
        """Skip the case if its memory is not free, or if set-up and one call take longer than the case's budget."""
        call_s = self.state.seconds_of_a_call(claim, self.device)
        needs = Needs(
            memory_bytes=claim.memory_bytes,
            free_bytes=available_bytes(self.device),
            call_s=(1 + claim.setup_calls) * (call_s or 0.0) + claim.setup_seconds,
            budget_s=self.state.settings.budget_s,
            budget_by=self.state.settings.budget_by,
            calls=1,
        )
        self.state.short_of, unmet = needs.short_of(), needs.unmet()
        if unmet is not None:
            pytest.skip(unmet)
        return self


class UntimedCases:
    """Hooks around the perf cases of this process."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._case_settings: dict[str, Settings] = {}

    def check(self, items: Sequence[pytest.Item]) -> None:
        """Detect errors that would otherwise appear late: bad markers, no device.

        Raises:
            PerflabError: the first problem found.
        """
        for item in items:
            settings = self._case_settings[case_id(item)] = for_case(self._settings, item)
            leave_to_ranks(item, settings)
        if not all(map(tier_asked_by, items)):
            resolve_device(self._settings.device)

    def perf_for(self, item: pytest.Item, device: torch.device) -> Perf:
        """Return the value of the ``perf`` fixture for a test."""
        state = item.stash[STATE]
        device = state.device = device_of(item, device)
        return Perf(state, device, Once(state, device))

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run the body of a case in ranks, in their processes."""
        state = pyfuncitem.stash.get(STATE, None)
        if state is None or not runs_in_others(state.settings):
            return None
        device = resolve_device(self._settings.device, worker_number(pyfuncitem.config))
        if (unmet := too_few_gpus(state.settings.world_size, device)) is not None:
            pytest.skip(unmet)
        run_in_ranks(pyfuncitem.config, state, Job(cases=[state.case], once=True), str(device))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Create the case's state; skip a case with a tier's own fixture, which would take long."""
        if case_id(item) not in self._case_settings:
            return
        if (own := tier_asked_by(item)) is not None:
            pytest.skip(f"not {own} in a run that does not measure: pytest -m perf, or --perf")
        item.stash[STATE] = CaseState(case_id(item), self._case_settings[case_id(item)])
        item.stash[RUNS_ONCE] = True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run the test's body. A case that exceeds the device's memory is skipped, as in a run that measures."""
        state = item.stash.get(STATE, None)
        if state is None:
            return (yield)
        try:
            outcome = yield
        except NothingComparedError:
            return None
        except Exception as error:
            if as_out_of_memory(error) is None:
                raise
        else:
            if not (state.done or getattr(item, "_excinfo", None) or measures_elsewhere(item)):
                raise UsageError(
                    f"{item.nodeid} is marked perf, but measures nothing",
                    "call perf(fn, *args) in it, or remove the marker",
                )
            return outcome
        if state.device is not None:
            release_memory(state.device)  # the error no longer exists, nor do the frames that it referred to
        pytest.skip("out of memory")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Mark the case's report as untimed; pytest-xdist transfers the mark to the process that counts the reports."""
        report = yield
        state = item.stash.get(STATE, None)
        if report.when == "call" and state is not None and state.done:
            setattr(report, UNTIMED, RAN)
        elif (
            report.when == "setup" and case_id(item) in self._case_settings and (own := tier_asked_by(item)) is not None
        ):
            setattr(report, UNTIMED, f"not {own}")
        return report
