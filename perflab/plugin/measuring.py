"""The measuring side: runs where tests run, one object a process, and only if a ``perf`` case is selected.

It hands each case its ``Perf``, judges the case when its body has ended, has suspects measured again in fresh
processes, fails the test that got worse, and hangs the result on the test's own report as plain data.
"""

from __future__ import annotations

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from filelock import FileLock, Timeout

from perflab.environment import current_environment
from perflab.errors import FreshProcessError, PerflabError, UsageError
from perflab.gate.judge import judge
from perflab.gate.store import BaselineStore
from perflab.measure.devices import available_bytes, release_memory
from perflab.measure.measurement import replicate_of
from perflab.plugin.accept import accept_command
from perflab.plugin.case import CaseState, Perf
from perflab.plugin.folder import file_name_for
from perflab.plugin.fresh import Job, measure_fresh, report_measurement
from perflab.plugin.progress import ProgressLine
from perflab.plugin.settings import Settings, for_case
from perflab.plugin.stash import EARLY_PROBLEM
from perflab.records import Entry, Judgement, Parameters, Record, Result, Verdict, to_plain
from perflab.report.failure import explain
from perflab.units import format_bytes

if TYPE_CHECKING:
    import torch

STATE = pytest.StashKey[CaseState]()
JUDGEMENT = pytest.StashKey[tuple[Record | None, Judgement]]()
FRESH_PROCESS_BYTES = 1 << 30
"""Room that a fresh process needs beside the case's own tensors: an interpreter and PyTorch."""


class Cases:
    """Hooks around the perf cases of this process."""

    def __init__(self, config: pytest.Config, settings: Settings, job: Job | None) -> None:
        self._config = config
        self._settings = settings
        self._job = job
        self._store = BaselineStore(settings.baselines)
        self._progress = ProgressLine(config)
        self._case_settings: dict[str, Settings] = {}
        self._began_s = time.monotonic()

    # --- before anything runs -------------------------------------------------------------------------------

    def check(self, items: list[pytest.Item]) -> None:
        """Find what would fail later, while nothing is lost: bad markers, no device, unusable baselines.

        Raises:
            PerflabError: the first problem found.
        """
        from perflab.measure.devices import resolve_device

        for item in items:
            self._case_settings[item.nodeid] = for_case(self._settings, item)
        device = resolve_device(self._settings.device)
        if self._job is not None:
            return
        if self._settings.update or self._settings.update_new:
            self._store.check_writable()
        environment = current_environment(device)
        for item in items:
            self._store.entry(item.nodeid, environment)

    def perf_for(self, item: pytest.Item, device: torch.device) -> Perf:
        """The ``perf`` fixture's value for a test."""
        import torch

        state = item.stash[STATE]
        if not isinstance(device, torch.device):
            raise UsageError(
                f"{item.nodeid}: the device fixture is overridden and gives {device!r}",
                "let it return a torch.device",
            )
        state.device = device
        state.environment = current_environment(device)
        return Perf(
            state,
            device,
            self._progress.for_case(item),
            take_turn=lambda: self._turn(device),
            measure_fresh=lambda: measure_fresh(self._config, [state.case])[state.case],
            seconds_left=self._seconds_left,
        )

    def _seconds_left(self) -> float | None:
        """What is left of the run's total budget; None without one."""
        total_s = self._settings.total_budget_s
        return None if total_s is None else total_s - (time.monotonic() - self._began_s)

    @contextlib.contextmanager
    def _turn(self, device: torch.device) -> Iterator[None]:
        """Hold the device: one measurement at a time, whichever worker or session of this user it is from."""
        if self._job is not None:
            yield  # whoever started this process holds it
            return
        owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "")
        lock = FileLock(Path(tempfile.gettempdir(), f"perflab-{owner}-{file_name_for(str(device))}.lock"))
        try:
            lock.acquire(timeout=2)
        except Timeout:
            self._progress.show("waiting for another measurement")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    # --- around each test -----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Give a perf case its state."""
        if item.get_closest_marker("perf") is None:
            return
        if EARLY_PROBLEM in self._config.stash:
            raise self._config.stash[EARLY_PROBLEM]
        settings = self._case_settings.get(item.nodeid) or for_case(self._settings, item)
        item.stash[STATE] = CaseState(
            item.nodeid, settings, parameters=_parameters(item), is_replicate=self._job is not None
        )

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
            if state.measurement is not None:
                self._conclude(item, state)
            elif not _measures_elsewhere(item):
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
        """Hang the case's result on its report; errors of ours are shown by their text alone."""
        report = yield
        state = item.stash.get(STATE, None)
        if call.excinfo is not None and isinstance(call.excinfo.value, PerflabError):
            report.longrepr = str(call.excinfo.value)
        if state is None or self._job is not None:
            return report
        result = _result_of(item, state, report)
        if result is not None:
            report.perflab = to_plain(result)  # type: ignore[attr-defined]
        return report

    # --- judging --------------------------------------------------------------------------------------------

    def _conclude(self, item: pytest.Item, state: CaseState) -> None:
        """Judge the case; fail it if it got worse. In a fresh process: report the replicate, nothing else."""
        if self._job is not None:
            if state.measurement is not None:
                report_measurement(self._job, state.case, state.measurement)
            return
        summary = replicate_of(state.measurement) if state.measurement is not None else None
        assert state.environment is not None
        settings = state.settings
        record = Record(
            case=state.case,
            environment=state.environment,
            parameters=state.parameters,
            work=state.work,
            measurement=state.measurement,
            summary=summary,
            out_of_memory=state.out_of_memory,
        )
        saving = settings.update or settings.update_new
        entry = self._store.entry(state.case, state.environment)
        judgement = judge(record, entry, settings.policy)
        if settings.check == "off" and judgement.verdict is not Verdict.OOM:
            judgement = msgspec.structs.replace(judgement, verdict=Verdict.UNCHECKED, suspect=False)
        elif judgement.suspect and not settings.update:
            record, judgement = self._look_again(state, record, entry)
        item.stash[JUDGEMENT] = (record, judgement)
        if _fails(judgement.verdict, settings, saving):
            accept = accept_command(self._config, state.case, judgement.verdict)
            result = Result(case=state.case, record=record, judgement=judgement)
            pytest.fail(explain(result, settings.memory_threshold, accept), pytrace=False)

    def _look_again(self, state: CaseState, record: Record, entry: Entry | None) -> tuple[Record, Judgement]:
        """Measure a suspect in fresh processes, and stop early at the first that clears it."""
        assert state.device is not None
        judgement = judge(record, entry, state.settings.policy)
        for number in range(1, state.settings.replicates + 1):
            self._progress.show(f"looks worse; fresh process {number} of {state.settings.replicates}")
            problem = _no_room(record, state.device)
            left_s = self._seconds_left()
            if left_s is not None and left_s <= 0:
                problem = "no time is left of --perf-total-budget"
            if problem is None:
                release_memory(state.device)
                try:
                    found = measure_fresh(self._config, [state.case])
                except FreshProcessError as error:
                    problem = error.problem
            if problem is not None:
                doubt = [*judgement.reasons, f"could not be measured again: {problem}"]
                return record, msgspec.structs.replace(
                    judgement, verdict=Verdict.INCONCLUSIVE, reasons=doubt, suspect=False
                )
            record = msgspec.structs.replace(record, fresh=[*record.fresh, replicate_of(found[state.case])])
            judgement = judge(record, entry, state.settings.policy)
            if _cleared(judgement, state.settings.threshold):
                break
        return record, judgement


def _cleared(judgement: Judgement, threshold: float) -> bool:
    """Whether no more fresh processes are needed: not worse, and not just below the threshold by one lucky process."""
    if judgement.verdict not in (Verdict.OK, Verdict.IMPROVED):
        return False
    return judgement.latency is None or judgement.latency.ratio <= 1.0 + threshold / 2


def _no_room(record: Record, device: torch.device) -> str | None:
    """Why a second process with the same tensors would not fit beside this one."""
    memory = record.measurement.memory if record.measurement is not None else None
    free = available_bytes(device)
    if memory is None or free is None:
        return None
    needed = memory.peak_bytes + FRESH_PROCESS_BYTES
    return None if needed <= free else f"it needs {format_bytes(needed)}, and {format_bytes(free)} are free"


def _fails(verdict: Verdict, settings: Settings, saving: bool) -> bool:
    """Whether a verdict fails the test. What is being accepted does not."""
    if settings.check == "off" or settings.update:
        return False
    if verdict is Verdict.REGRESSED:
        return True
    unjudged = verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.INCONCLUSIVE, Verdict.OOM)
    if saving and verdict in (Verdict.NEW, Verdict.INCOMPARABLE, Verdict.OOM):
        return False
    return settings.check == "strict" and unjudged


def _measures_elsewhere(item: pytest.Item) -> bool:
    """Whether a marked test leaves the measuring to pytest-benchmark, or is no perf case by its fixtures."""
    names = getattr(item, "fixturenames", ())
    return "perf" not in names and "benchmark" in names


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
    if report.when == "teardown":
        return None
    if report.skipped and state.out_of_memory is None:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        judgement = Judgement(verdict=Verdict.SKIPPED, reasons=[reason.removeprefix("Skipped: ")])
        return Result(case=state.case, record=None, judgement=judgement)
    concluded = item.stash.get(JUDGEMENT, None)
    if concluded is not None:
        return Result(case=state.case, record=concluded[0], judgement=concluded[1])
    if report.failed:
        what = state.problem or ("set-up failed" if report.when == "setup" else "the test failed")
        return Result(case=state.case, record=None, judgement=Judgement(verdict=Verdict.FAILED, reasons=[what]))
    return None
