"""Runs measured cases in pytest: checks before the first test, measures, judges, reports.

It gives each case its ``Perf``, judges the case when its body has ended, fails the test that got worse, and attaches
the result to the test's own report as plain data. The reports of a case that needs a re-check wait: ``recheck.py``.
A case that is predicted, because the run asks for it or because it does not fit here, is left to ``Predictions``.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from perflab.base.data import changed, to_plain
from perflab.base.errors import UsageError
from perflab.base.identity import identity
from perflab.devices.kinds import current_environment, resolve_device
from perflab.judging.counts import exactly_worse
from perflab.measure.machine.devices import as_out_of_memory
from perflab.measure.stopping import Progress
from perflab.measured.run.before import Before, CaseTurns, Phases, is_of_a_subtest
from perflab.measured.run.callgrind import check_callgrind
from perflab.measured.run.recheck import HeldReports, Recheck, needs_recheck
from perflab.measured.run.state import Learned, no_graph_for
from perflab.measured.run.verdict import Judged, baselines_of, failure_of, judged, parameters_of, result_of
from perflab.measured.run.ways import Callgrind, InRank, InStep, Local, Replicate, Served, Serves, job_of
from perflab.noting import case_id
from perflab.predicted.run.fake_cases import PredictedCases
from perflab.predicted.run.predicting import Predictions
from perflab.processes.channel import say
from perflab.ranks.group import together
from perflab.running.case import ranked
from perflab.running.case.hanging import expect, suspended
from perflab.running.case.locks import device_turn
from perflab.running.case.perf import STATE, CaseState, NothingComparedError, Perf, Way, device_of
from perflab.running.case.progress import ProgressLine
from perflab.running.case.tools import PERF_FOR
from perflab.running.config.kinds import measures_elsewhere, tier_asked_by, worker_number
from perflab.running.config.marker import for_case
from perflab.running.session.prune import Moved
from perflab.settings.settings import Settings, TotalBudget
from perflab.store.json_files import check_writable
from perflab.tiers.job import Job, JobResult, Stated
from perflab.turns.evidence import kept_s

if TYPE_CHECKING:
    import torch


_LAUNCHED = "ranks that torchrun has started are not measured again: run it without torchrun"
"""Why a suspect is not re-measured."""


class Cases:
    """The pytest hooks around the perf cases of this process."""

    def __init__(
        self, config: pytest.Config, settings: Settings, job: Job | None, server: Serves | None = None
    ) -> None:
        self._config = config
        self._settings = settings
        self._job = job
        self._server = server
        self._baselines = baselines_of(config, settings)
        self._moved = Moved(config, settings, "measured")
        self._progress = ProgressLine(config)
        self._case_settings: dict[str, Settings] = {}
        self._ids: set[str] = set()
        """Node ids of the cases, as pytest reports them while they run."""
        self._budget = TotalBudget(settings.total_budget_s)
        self._recheck = Recheck(config, settings.baselines, self._progress, self._budget, self._turn)
        self._held_reports = HeldReports(config, self._recheck, self._keep, self._attach)
        self._predictions = Predictions(config, settings, self._progress)
        self._turns = CaseTurns(self._device_to_take, self._turn)
        config.pluginmanager.register(Phases(), "perflab-phases")
        if job is None:
            config.pluginmanager.register(self._held_reports, "perflab-held-reports")
            config.pluginmanager.register(PredictedCases(settings, self._predictions), "perflab-predicted")
            config.pluginmanager.register(self._turns, "perflab-turns")  # a fresh process uses its parent's device
            config.pluginmanager.register(Before(self._budget), "perflab-before")

    # --- before anything runs -------------------------------------------------------------------------------

    def check(self, items: list[pytest.Item]) -> None:
        """Find errors before anything runs: bad markers, no device, unusable baselines.

        Raises:
            PerflabError: the first problem found.
        """
        for item in items:
            settings = for_case(self._settings, item)
            ranked.leave_to_ranks(item, settings)
            self._case_settings[case_id(item)] = settings
        self._ids = {item.nodeid for item in items}
        # Rows of tables are measured once more when all tests have ended.
        in_tables = sum(one.versus is not None or one.side_by_side is not None for one in self._case_settings.values())
        self._budget.cases = len(items) + in_tables
        self._budget.processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        predicts = self._settings.predict
        device = resolve_device("cpu" if predicts and not self._settings.dry_run else self._settings.device)
        if self._job is not None:
            return
        if self._settings.update or self._settings.update_new:
            check_writable(self._settings.baselines)
        if predicts:
            self._predictions.check([case_id(item) for item in items])
            return  # nothing is measured
        if self._settings.instructions == "callgrind":
            check_callgrind(device)
        environment = current_environment(device, self._settings.machine)
        for item in items:
            settings = self._case_settings[case_id(item)]
            unmet = no_graph_for(case_id(item), settings, device)
            if unmet is not None:
                item.add_marker(pytest.mark.skip(reason=unmet))
            self._baselines.of(identity(case_id(item), settings.mode), environment)

    def perf_for(self, item: pytest.Item, device: torch.device) -> Perf:
        """Return the value of the ``perf`` fixture for a test."""
        state = item.stash[STATE]
        device = state.device = device_of(item, device)
        if not state.predicts:
            if self._job is None:
                self._turns.hold(device)  # the project's device fixture may give another device
            state.part(Learned).environment = current_environment(device, self._settings.machine)
        way = self._way(state, device, self._progress.for_case(item))
        return Perf(state, device, way, partial(expect, self._config, state.settings))

    def _way(self, state: CaseState, device: torch.device, progress: Progress) -> Way:
        job = self._job
        if together().world_size > 1 and (job is None or job.cases is None):
            return InStep(state, device, progress, self._config)
        if state.predicts:
            return self._predictions.way(state, self._budget)
        if job is None:
            return Local(state, device, progress, self._config, self._budget, self._predictions)
        if self._server is not None:
            return Served(state, device, progress, self._config, self._budget, self._server)
        if job.place is not None:
            return InRank(state, device, progress, self._config, job)
        if job.under_callgrind:
            return Callgrind(state, device, progress, self._config)
        return Replicate(state, device, progress, self._config, job)

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> bool | None:
        """Run the body of a case in ranks, in their processes."""
        state = pyfuncitem.stash.get(STATE, None)
        if state is None or not ranked.runs_in_others(state.settings):
            return None
        settings = state.settings
        device = state.device = resolve_device(settings.device, worker_number(self._config))
        if (unmet := ranked.too_few_gpus(settings.world_size, device)) is not None:
            pytest.skip(unmet)
        if self._server is not None:
            self._server.pass_on(state, device)
            return True
        left_s = self._budget.measuring_s()
        if left_s is not None and left_s <= 0:
            state.skip_for_time()
        self._progress.for_case(pyfuncitem)(f"in {settings.world_size} ranks")
        found = ranked.run_in_ranks(self._config, state, job_of(self._config, state, self._budget), str(device), left_s)
        learned = state.part(Learned)
        learned.measurement, learned.out_of_memory = found.measurement, found.out_of_memory
        learned.environment = found.stated.environment if found.stated is not None else None
        return True

    @contextlib.contextmanager
    def _turn(self, device: torch.device) -> Generator[None]:
        """Hold the device. Waiting for it does not count towards a case's timeout: its holder has its own limit."""
        with contextlib.ExitStack() as stack:
            with suspended(self._config):
                stack.enter_context(device_turn(str(device), self._progress.waiting, self._budget.is_over))
            yield

    def _device_to_take(self, item: pytest.Item) -> torch.device | None:
        """Return the device that a case will probably need, before its fixtures are made; None if none."""
        if STATE not in item.stash or self._settings.predict:
            return None
        self._progress.begin(case_id(item))
        return resolve_device(self._settings.device, worker_number(self._config))

    # --- around each test -----------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Give a perf case its state before anything else happens to it."""
        if item.get_closest_marker("perf") is not None and tier_asked_by(item) is None:
            settings = self._case_settings.get(case_id(item)) or for_case(self._settings, item)
            state = item.stash[STATE] = CaseState(case_id(item), settings, parameters=parameters_of(item))
            state.part(Learned)  # creates this part: the compiler's state is read now
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run the test's body, then judge its measurement. A test that fails by itself is not judged."""
        state = item.stash.get(STATE, None)
        if state is None:
            return (yield)
        learned = state.part(Learned)
        try:
            outcome = yield
        except pytest.skip.Exception:
            if learned.out_of_memory is None:
                raise
            self._conclude(item, state)
            raise
        except NothingComparedError:
            outcome = None
        except Exception as error:
            learned.out_of_memory = as_out_of_memory(error) if learned.environment is not None else None
            if learned.out_of_memory is None:
                raise
        if learned.out_of_memory is not None:  # outside of perf(), for example while the model was built
            self._conclude(item, state)
            pytest.skip("out of memory")
        if getattr(item, "_excinfo", None) or state.subtest_failures:
            return outcome  # a unittest.TestCase keeps its failure to itself until the report
        if learned.measurement is not None:
            self._conclude(item, state)
        elif not (state.done or measures_elsewhere(item)):
            state.problem = "no work"
            raise UsageError(
                f"{item.nodeid} is marked perf, but measured nothing",
                "call perf(fn, *args) in it, or remove the marker",
            )
        return outcome

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach the case's result to its report."""
        report = yield
        state = item.stash.get(STATE, None)
        if state is None:
            return report
        if is_of_a_subtest(item):
            if not report.failed:
                return report  # the test goes on
            state.subtest_failures.append(str(report.longrepr))
        if self._job is not None:
            return report
        self._attach(item, report)
        return report

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Count a finished case, also one that ran in a fork, which makes its own reports."""
        if nodeid in self._ids:
            self._budget.case_done()

    def _attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        result = result_of(item.stash[STATE], report)
        if result is not None:
            report.perflab = to_plain(result)  # type: ignore[attr-defined]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """Make a fresh process exit quickly, by exempting its objects from garbage collection.

        pytest and the interpreter would collect the objects of a PyTorch process three times more before it ends. That
        takes a third of the processor time of a small replicate, and the system frees the memory anyway. Fixtures are
        torn down by now, and objects that are in no cycle are still finalised.
        """
        if self._job is not None:
            gc.freeze()

    # --- judging --------------------------------------------------------------------------------------------

    def _conclude(self, item: pytest.Item, state: CaseState) -> None:
        """Judge the case, and fail it if it got worse. A fresh process only reports the replicate."""
        if self._job is not None:
            if self._server is not None:
                return  # the server reports how a case ended
            learned = state.part(Learned)
            if learned.measurement is not None or learned.out_of_memory is not None:
                found = JobResult(case=state.case, measurement=learned.measurement, out_of_memory=learned.out_of_memory)
                if self._job.place is None:
                    say(found)
                else:  # said once the body has ended: it may still fail
                    item.stash[ranked.FOUND] = changed(
                        found,
                        stated=Stated(
                            environment=state.part(Learned).environment,
                            work=state.work,
                            quotes=state.quotes,
                            facts=state.facts,
                            matmul_flops_per_second=state.matmul_flops_per_second,
                            matmul_precision=state.matmul_precision,
                        ),
                    )
            return
        one = judged(state, self._baselines, self._moved)
        if together().world_size > 1:
            one = one.not_rechecked(_LAUNCHED) if needs_recheck(one) else one
        elif needs_recheck(one) or self._recheck.evidence.wanted(one):
            if self._held_reports.hold(item, one):
                if exactly_worse(one.judgement) and self._recheck.evidence.wanted(one):
                    self._budget.causes_s += kept_s([one.judgement])
                return
            with suspended(self._config):
                one = self._recheck.at_once(one)
        else:
            one = self._recheck.evidence.or_why_not(one)
        self._keep(item, one)
        failure = failure_of(self._config, one)
        if failure is not None:
            item.stash[ranked.FAILED_BY_VERDICT] = True
            pytest.fail(failure, pytrace=False)

    def _keep(self, item: pytest.Item, one: Judged) -> None:
        item.stash[STATE].result = one.result


def run(
    config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None, server: Serves | None = None
) -> list[pytest.Item]:
    """Measure these cases in this process; return the remaining ones: none.

    ``server`` asks for the turns of a process that is one side of an interleaved run.

    Raises:
        PerflabError: the first thing found that would fail late.
    """
    if items or server is not None:
        cases = Cases(config, settings, job, server)
        config.stash[PERF_FOR] = cases.perf_for
        config.pluginmanager.register(cases, "perflab-cases")
        cases.check(items)
    return []
