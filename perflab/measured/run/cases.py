"""Runs measured cases in pytest: checks before the first test, measures, judges, reports.

It hands each case its ``Perf``, judges the case when its body has ended, fails the test that got worse, and hangs the
result on the test's own report as plain data. A case that needs a second look waits for it: ``held_back``.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Generator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from perflab.data import Parameters, to_plain
from perflab.environment import current_environment
from perflab.errors import UsageError
from perflab.measure.devices import resolve_device
from perflab.measure.limits import as_out_of_memory
from perflab.measure.sampling import Progress
from perflab.measured.run.callgrind import check_callgrind
from perflab.measured.run.cuda_graphs import no_graph_for
from perflab.measured.run.device_turns import CaseTurns
from perflab.measured.run.held_reports import HeldBack
from perflab.measured.run.recheck import SecondLooks, needs_second_look
from perflab.measured.run.verdict import Judged, baselines_of, failure_of, judged
from perflab.measured.run.ways import Here, InTurns, Replicate, UnderCallgrind
from perflab.mode import identity
from perflab.plugin.case.device_lock import device_turn
from perflab.plugin.case.fresh_process import Job, JobResult, report_result
from perflab.plugin.case.hanging import expect, suspended
from perflab.plugin.case.perf import STATE, CaseState, NothingComparedError, Perf, Way, device_of
from perflab.plugin.case.progress import ProgressLine
from perflab.plugin.case.subtests import Phases, is_of_a_subtest
from perflab.plugin.case.total_budget import TotalBudget
from perflab.plugin.case.verdicts import unmeasured
from perflab.plugin.config.kinds import measures_elsewhere, tier_asked_by
from perflab.plugin.config.marker import for_case
from perflab.plugin.config.settings import Settings
from perflab.plugin.stash import CASES, PerfCases, worker_number
from perflab.predicted.run.fake_cases import PredictedCases
from perflab.predicted.run.predicting import Predicted, Predictions
from perflab.predicted.settings import predicts_by_itself
from perflab.records import Judgement, Verdict
from perflab.results import Result
from perflab.store.json_files import check_writable

if TYPE_CHECKING:
    import torch

    from perflab.compared.run.serving import Server

JUDGED = pytest.StashKey[Judged]()
PREDICTED = pytest.StashKey[Result]()


class Cases:
    """Hooks around the perf cases of this process."""

    def __init__(
        self, config: pytest.Config, settings: Settings, job: Job | None, server: Server | None = None
    ) -> None:
        self._config = config
        self._settings = settings
        self._job = job
        self._server = server
        self._baselines = baselines_of(config, settings)
        self._progress = ProgressLine(config)
        self._case_settings: dict[str, Settings] = {}
        self._budget = TotalBudget(settings.total_budget_s)
        self._looks = SecondLooks(config, settings.baselines, self._progress, self._budget, self._turn)
        self._held_back = HeldBack(config, self._looks, self._keep, self._attach)
        self._predictions = Predictions(config, settings, self._progress)
        self._by_itself = False
        self._turns = CaseTurns(self._device_to_take, self._turn)
        config.pluginmanager.register(Phases(), "perflab-phases")
        if job is None:
            config.pluginmanager.register(self._held_back, "perflab-held-back")
            config.pluginmanager.register(PredictedCases(settings, self._predictions, STATE), "perflab-predicted")
            config.pluginmanager.register(
                self._turns, "perflab-turns"
            )  # whoever started a fresh process has its device

    # --- before anything runs -------------------------------------------------------------------------------

    def check(self, items: list[pytest.Item]) -> None:
        """Find what would fail later, while nothing is lost: bad markers, no device, unusable baselines.

        Raises:
            PerflabError: the first problem found.
        """
        for item in items:
            self._case_settings[item.nodeid] = for_case(self._settings, item)
        self._budget.cases = len(items)
        self._budget.processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        device = resolve_device("cpu" if self._settings.predict else self._settings.device)
        if self._job is not None:
            return
        self._by_itself = predicts_by_itself(self._settings)
        if self._settings.update or self._settings.update_new:
            check_writable(self._settings.baselines)
        if self._settings.predict:
            self._predictions.check([item.nodeid for item in items])
            return  # nothing is measured
        if self._settings.instructions == "callgrind":
            check_callgrind(device)
        environment = current_environment(device, self._settings.machine)
        for item in items:
            settings = self._case_settings[item.nodeid]
            unmet = no_graph_for(item.nodeid, settings, device)
            if unmet is not None:
                item.add_marker(pytest.mark.skip(reason=unmet))
            self._baselines.of(identity(item.nodeid, settings.mode), environment)

    def perf_for(self, item: pytest.Item, device: torch.device | str) -> Perf:
        """The ``perf`` fixture's value for a test."""
        state = item.stash[STATE]
        item.addfinalizer(state.until_judged.close)  # also where a fixture said so, and the body never ran
        device = state.device = device_of(item, device)
        if not state.predicts:
            if self._job is None:
                self._turns.hold(device)  # a device fixture of the project's may give another
            state.environment = current_environment(device, self._settings.machine)
        way = self._way(state, device, self._progress.for_case(item))
        return Perf(state, device, way, partial(expect, self._config, state.settings))

    def _way(self, state: CaseState, device: torch.device, progress: Progress) -> Way:
        job, settings = self._job, self._settings
        if state.predicts:
            return Predicted(state, self._predictions, self._budget)
        if job is None:
            instead = self._predictions if self._by_itself else None
            saves = settings.update or settings.update_new
            return Here(state, device, progress, self._config, self._budget, instead=instead, saves=saves)
        if self._server is not None:
            return InTurns(state, device, progress, self._config, self._budget, self._server)
        if job.under_callgrind:
            return UnderCallgrind(state, device, progress, self._config)
        return Replicate(state, device, progress, self._config, job.budget_s)

    @contextlib.contextmanager
    def _turn(self, device: torch.device) -> Generator[None]:
        """Hold the device; waiting for it takes none of a case's patience: whoever has it has a limit of its own."""
        with contextlib.ExitStack() as stack:
            with suspended(self._config):
                stack.enter_context(device_turn(str(device), self._progress.show))
            yield

    def _device_to_take(self, item: pytest.Item) -> torch.device | None:
        """The device that a case will need, as far as is known before its fixtures are made."""
        if STATE not in item.stash or self._settings.predict:
            return None
        self._progress.begin(item.nodeid)
        return resolve_device(self._settings.device, worker_number(self._config))

    # --- around each test -----------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Give a perf case its state before anything else happens to it."""
        if item.get_closest_marker("perf") is not None and tier_asked_by(item) is None:
            self._begin(item)
        return (yield)

    def _begin(self, item: pytest.Item) -> None:
        if JUDGED in item.stash:  # the test is run again
            del item.stash[JUDGED]
        if PREDICTED in item.stash:
            del item.stash[PREDICTED]
        settings = self._case_settings.get(item.nodeid) or for_case(self._settings, item)
        item.stash[STATE] = CaseState(
            item.nodeid,
            settings,
            parameters=_parameters(item),
        )

    def skip_if_late(self, item: pytest.Item) -> None:
        """Skip a case that would begin when the run's time is long over.

        Time that is over by little is for the test to see: it may say what it would have cost (perf.requires). Where
        it does much before that, or never says, the run must come to its end all the same.
        """
        state, left_s = item.stash.get(STATE, None), self._budget.left_s()
        if state is not None and self._job is None and left_s is not None and left_s < -state.settings.budget_s:
            state.skip_for_time()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run the test's body, then judge what it measured. A test that fails by itself is not judged."""
        state = item.stash.get(STATE, None)
        if state is None:
            return (yield)
        with state.until_judged:
            try:
                outcome = yield
            except pytest.skip.Exception:
                if state.out_of_memory is None:
                    raise
                self._conclude(item, state)
                raise
            except NothingComparedError:
                outcome = None
            except Exception as error:
                state.out_of_memory = as_out_of_memory(error) if state.environment is not None else None
                if state.out_of_memory is None:
                    raise
            if state.out_of_memory is not None:  # outside of perf(): while the model was built, say
                self._conclude(item, state)
                pytest.skip("out of memory")
            if getattr(item, "_excinfo", None) or state.subtest_failures:
                return outcome  # a unittest.TestCase keeps its failure to itself until the report
            if state.outcome is not None:
                item.stash[PREDICTED] = self._predictions.judged(state)
                self._predictions.fail_if_worse(item.stash[PREDICTED], settings=state.settings)
            elif state.measurement is not None:
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
        """Hang the case's result on its report."""
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
        if report.when == "teardown":
            self._budget.case_done()
        self._attach(item, report)
        return report

    def _attach(self, item: pytest.Item, report: pytest.TestReport) -> None:
        result = _result_of(item, item.stash[STATE], report)
        if result is not None:
            report.perflab = to_plain(result)  # type: ignore[attr-defined]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        """In a fresh process: leave at once.

        What a PyTorch process holds is looked through three times more before it ends, by pytest and by the
        interpreter, a third of the processor time that a small replicate takes; the system takes it back anyway.
        Fixtures are torn down by now, and objects that are in no cycle still see their end.
        """
        if self._job is not None:
            gc.freeze()

    # --- judging --------------------------------------------------------------------------------------------

    def _conclude(self, item: pytest.Item, state: CaseState) -> None:
        """Judge the case; fail it if it got worse. In a fresh process: report the replicate, nothing else."""
        if self._job is not None:
            if self._server is not None:
                return  # it says itself how a case ended
            if state.measurement is not None or state.out_of_memory is not None:
                report_result(
                    self._job,
                    JobResult(case=state.case, measurement=state.measurement, out_of_memory=state.out_of_memory),
                )
            return
        one = judged(state, self._baselines)
        if needs_second_look(one):
            if self._held_back.hold(item, one):
                return
            with suspended(self._config):
                one = self._looks.at_once(one)
        self._keep(item, one)
        failure = failure_of(self._config, one)
        if failure is not None:
            pytest.fail(failure, pytrace=False)

    def _keep(self, item: pytest.Item, one: Judged) -> None:
        item.stash[JUDGED] = one


def _parameters(item: pytest.Item) -> Parameters:
    callspec = getattr(item, "callspec", None)
    given: dict[str, Any] = dict(callspec.params) if callspec is not None else {}
    return {name: value if _is_plain(value) else str(value) for name, value in given.items()}


def _is_plain(value: Any) -> bool:
    """Whether JSON can hold the value as it is: subclasses (NumPy's numbers) and infinities it cannot."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) in (str, int, bool, type(None))


def _result_of(item: pytest.Item, state: CaseState, report: pytest.TestReport) -> Result | None:
    """What the report says of the case; None while it says nothing final."""
    result = _said_of(item, state, report)
    if result is None:
        return None
    wanted = state.settings.side_by_side
    result = msgspec.structs.replace(
        result,
        parameters=state.parameters if result.record is None else {},
        side_by_side=wanted if wanted in state.parameters else None,
    )
    return state.settings.told_in(result)


def _said_of(item: pytest.Item, state: CaseState, report: pytest.TestReport) -> Result | None:
    if report.when == "teardown":
        return None
    if state.subtest_failures:
        failed = Judgement(verdict=Verdict.FAILED, reasons=[state.problem or "a subtest failed"])
        return Result(case=state.case, judgement=failed, failure="\n\n".join(state.subtest_failures))
    predicted = item.stash.get(PREDICTED, None)
    if predicted is not None and not (report.failed and predicted.judgement.verdict is Verdict.OK):
        return predicted
    one = item.stash.get(JUDGED, None)
    if one is not None and not (report.failed and one.judgement.verdict is Verdict.OK):
        return Result(case=state.case, outcome=one.record, judgement=one.judgement, policy=state.settings.policy)
    return unmeasured(state.case, state.problem, report, state.short_of)


def run(
    config: pytest.Config, settings: Settings, items: list[pytest.Item], job: Job | None, server: Server | None = None
) -> None:
    """Measure these cases in this process.

    Args:
        config: the session's configuration.
        settings: the run's.
        items: the cases.
        job: in a fresh process, what it is to do.
        server: in a side's process, who asks for its turns.

    Raises:
        PerflabError: the first thing found that would fail late.
    """
    cases = config.stash[CASES] = Cases(config, settings, job, server)
    config.pluginmanager.register(cases, "perflab-cases")
    config.pluginmanager.register(_Late(cases), "perflab-late")
    cases.check(items)


class _Late:
    """Skips a case that begins when the run's time is over.

    ``Cases`` cannot: its hook is a wrapper, and what is raised before a wrapper yields keeps others from what they undo
    in teardown.
    """

    def __init__(self, cases: PerfCases) -> None:
        self._cases = cases

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Skip it before anything is set up."""
        self._cases.skip_if_late(item)
