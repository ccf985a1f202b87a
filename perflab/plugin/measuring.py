"""The measuring side: runs where tests run, one object a process, and only if a ``perf`` case is selected.

It hands each case its ``Perf``, judges the case when its body has ended, has suspects measured again in fresh
processes, fails the test that got worse, and hangs the result on the test's own report as plain data.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from perflab.environment import current_environment
from perflab.errors import UsageError
from perflab.gate.judge import judge
from perflab.gate.store import BaselineStore
from perflab.measure.limits import as_out_of_memory
from perflab.measure.measurement import replicate_of
from perflab.plugin.accept import accept_command
from perflab.plugin.callgrind import check_callgrind, count_under_callgrind
from perflab.plugin.case import STATE, CaseState, Perf
from perflab.plugin.fresh import Job, measure_fresh, report_measurement
from perflab.plugin.kinds import is_compiled_case, measures_elsewhere
from perflab.plugin.marker import for_case
from perflab.plugin.predicted_cases import PredictedCases
from perflab.plugin.predicting import CasePrediction, Predictions
from perflab.plugin.progress import ProgressLine
from perflab.plugin.settings import Settings
from perflab.plugin.settling import Settling, may_settle
from perflab.plugin.suspects import Suspects
from perflab.plugin.total_budget import TotalBudget
from perflab.plugin.turn import device_turn
from perflab.plugin.verdicts import fails, unmeasured
from perflab.records import Judgement, Parameters, Record, Result, Verdict, to_plain
from perflab.report.failure import explain

if TYPE_CHECKING:
    import torch

    from perflab.plugin.serving import Server

JUDGEMENT = pytest.StashKey[tuple[Record | None, Judgement]]()
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
        self._store = BaselineStore(settings.baselines)
        self._progress = ProgressLine(config)
        self._case_settings: dict[str, Settings] = {}
        self._budget = TotalBudget(settings.total_budget_s, settings.budget_s)
        self._suspects = Suspects(config, self._progress, self._budget)
        self._settling = Settling(config, self._store, self._progress, self._budget)
        self._predictions = Predictions(config, settings, self._progress)
        self._by_itself = False
        if job is None:
            config.pluginmanager.register(PredictedCases(settings, self._predictions, STATE), "perflab-predicted")

    # --- before anything runs -------------------------------------------------------------------------------

    def check(self, items: list[pytest.Item]) -> None:
        """Find what would fail later, while nothing is lost: bad markers, no device, unusable baselines.

        Raises:
            PerflabError: the first problem found.
        """
        from perflab.measure.devices import resolve_device

        for item in items:
            self._case_settings[item.nodeid] = for_case(self._settings, item)
        self._budget.cases = len(items)
        self._budget.processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        device = resolve_device("cpu" if self._settings.predict else self._settings.device)
        if self._job is not None:
            return
        # A CPU that was asked for by name is what is to be measured.
        self._by_itself = device.type == "cpu" and self._settings.device == "auto"
        if self._settings.predict or self._by_itself:
            self._predictions.check([item.nodeid for item in items])
        if self._settings.update or self._settings.update_new:
            self._store.check_writable()
        if self._settings.predict:
            return  # nothing is measured
        if self._settings.instructions == "callgrind":
            check_callgrind(device)
        environment = current_environment(device)
        for item in items:
            self._store.entry(item.nodeid, environment)

    def perf_for(self, item: pytest.Item, device: torch.device | str) -> Perf:
        """The ``perf`` fixture's value for a test."""
        import torch

        state = item.stash[STATE]
        item.addfinalizer(state.turn.close)  # also where perf() was called by a fixture, and raised
        if isinstance(device, str):  # how many projects' own device fixtures give it
            device = torch.device(device)
        if not isinstance(device, torch.device):
            raise UsageError(
                f"{item.nodeid}: the device fixture is overridden and gives {device!r}",
                "let it return a torch.device, or its name",
            )
        state.device = device
        if not state.predicts:
            state.environment = current_environment(device)
        server = self._server
        return Perf(
            state,
            device,
            self._progress.for_case(item),
            take_turn=lambda: self._turn(device),
            measure_fresh=lambda: measure_fresh(self._config, [state.case], str(device))[state.case],
            seconds_left=self._budget.left_s,
            count_under_callgrind=lambda: count_under_callgrind(self._config, state.case, str(device)),
            prediction=CasePrediction(state, self._predictions, by_itself=self._by_itself),
            serve=None
            if server is None
            else lambda workload, counter: server.measure(state, workload, device, counter),
            sides=lambda: 1 if server is None else server.sides,
        )

    def _turn(self, device: torch.device) -> contextlib.AbstractContextManager[object]:
        """Hold the device. In a fresh process whoever started it holds it."""
        return contextlib.nullcontext() if self._job is not None else device_turn(str(device), self._progress.show)

    # --- around each test -----------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None]:
        """Give a perf case its state before anything else happens to it."""
        if item.get_closest_marker("perf") is not None and not is_compiled_case(item):
            self._begin(item)
        return (yield)

    def _begin(self, item: pytest.Item) -> None:
        if JUDGEMENT in item.stash:  # the test is run again
            del item.stash[JUDGEMENT]
        if PREDICTED in item.stash:
            del item.stash[PREDICTED]
        settings = self._case_settings.get(item.nodeid) or for_case(self._settings, item)
        item.stash[STATE] = CaseState(
            item.nodeid,
            settings,
            parameters=_parameters(item),
            is_replicate=self._job is not None,
            under_callgrind=self._job is not None and self._job.under_callgrind,
        )

    def skip_if_late(self, item: pytest.Item) -> None:
        """Skip a case that would begin when the run's time is long over.

        Time that is over by little is for the test to see: it may say what it would have cost (perf.requires). Where
        it does much before that, or never says, the run must come to its end all the same.
        """
        state, left_s = item.stash.get(STATE, None), self._budget.left_s()
        if state is not None and self._job is None and left_s is not None and left_s < -state.settings.budget_s:
            pytest.skip(state.settings.time_is_over)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Run the test's body, then judge what it measured. A test that fails by itself is not judged."""
        state = item.stash.get(STATE, None)
        if state is None:
            return (yield)
        with state.turn:
            try:
                outcome = yield
            except pytest.skip.Exception:
                if state.out_of_memory is None:
                    raise
                self._conclude(item, state)
                raise
            except Exception as error:
                state.out_of_memory = as_out_of_memory(error) if state.environment is not None else None
                if state.out_of_memory is None:
                    raise
            if state.out_of_memory is not None:  # outside of perf(): while the model was built, say
                self._conclude(item, state)
                pytest.skip("out of memory")
            if getattr(item, "_excinfo", None):
                return outcome  # a unittest.TestCase keeps its failure to itself until the report
            if state.predicted is not None:
                item.stash[PREDICTED] = self._predictions.judged(state)
                self._predictions.fail_if_worse(item.stash[PREDICTED], settings=state.settings)
            elif state.measurement is not None:
                self._conclude(item, state)
            elif not (state.served or state.under_callgrind or measures_elsewhere(item)):
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
        if state is None or self._job is not None:
            return report
        if report.when == "teardown":
            self._budget.case_done()
        result = _result_of(item, state, report)
        if result is not None:
            report.perflab = to_plain(result)  # type: ignore[attr-defined]
        return report

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
                report_measurement(self._job, state.case, state.measurement, state.out_of_memory)
            return
        summary = replicate_of(state.measurement) if state.measurement is not None else None
        assert state.environment is not None
        settings = state.settings
        record = Record(
            case=state.case,
            device=str(state.device),
            environment=state.environment,
            parameters=state.parameters,
            work=state.work,
            matmul_flops_per_second=state.matmul_flops_per_second,
            matmul_precision=state.matmul_precision,
            quotes=state.quotes,
            facts=state.facts,
            measurement=state.measurement,
            summary=summary,
            out_of_memory=state.out_of_memory,
        )
        saving = settings.update or settings.update_new
        entry = self._store.entry(state.case, state.environment)
        judgement = judge(record, entry, settings.policy)
        if settings.check == "off" and judgement.verdict not in (Verdict.OOM, Verdict.NEW, Verdict.INCOMPARABLE):
            judgement = msgspec.structs.replace(judgement, verdict=Verdict.UNCHECKED, suspect=False)
        elif not settings.update:
            if judgement.suspect:
                record, judgement = self._suspects.look_again(state, record, entry)
            if entry is not None and may_settle(judgement, settings):
                record, judgement = self._settling.settle(state, record, entry, judgement)
        item.stash[JUDGEMENT] = (record, judgement)
        if fails(judgement.verdict, settings, saving=saving):
            drifted = any(drift.decides for drift in judgement.drift.values())
            by_turns = record.paired is not None and "latency" in judgement.worse
            accept = accept_command(self._config, state.case, judgement.verdict, moves_anchor=drifted or by_turns)
            result = Result(case=state.case, record=record, judgement=judgement)
            pytest.fail(explain(result, settings.memory_threshold, accept), pytrace=False)


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
    return state.settings.in_study(result)


def _said_of(item: pytest.Item, state: CaseState, report: pytest.TestReport) -> Result | None:
    if report.when == "teardown":
        return None
    predicted = item.stash.get(PREDICTED, None)
    if predicted is not None and not (report.failed and predicted.judgement.verdict is Verdict.OK):
        return predicted
    concluded = item.stash.get(JUDGEMENT, None)
    if concluded is not None and not (report.failed and concluded[1].verdict is Verdict.OK):
        return Result(case=state.case, record=concluded[0], judgement=concluded[1], policy=state.settings.policy)
    return unmeasured(state.case, state.problem, report)
