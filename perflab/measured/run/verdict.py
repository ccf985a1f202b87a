"""The result of a measured case: its record and baseline, the first judgement, and the text of a failed test.

Also the parameters of a test, and the result as it is read from a test's report; and memory snapshots, of which
``--perf-snapshots`` records one more call of each case. The snapshot of a case that passes stays as ``*-measured``. The
snapshot of a case that fails, or was not judged, is stored beside it as ``*-measured-now``, and a failure ends with the
first lines of ``perflab memory`` for the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perflab.base.data import Parameters, changed
from perflab.base.errors import PerflabError
from perflab.base.identity import identity, without_mode
from perflab.internals.lookup import switched_off
from perflab.judging.judge import judge, unconfirmed
from perflab.judging.memory_texts import leak_text
from perflab.measure.calls.workload import Workload
from perflab.measure.memory.histories import record_call
from perflab.measured.baselines import Baselines
from perflab.measured.run.state import Learned
from perflab.measurement.measurement import replicate_of
from perflab.predicted.settings import Predicting, place_asked_for
from perflab.results.measured import Baseline, MeasuredCase
from perflab.results.measurement import Record
from perflab.results.records import Judgement, Verdict
from perflab.results.result import Result
from perflab.running.case import verdicts
from perflab.running.case.perf import CaseState
from perflab.running.case.verdicts import compared_with, unless_beyond, unless_unchecked, unmeasured
from perflab.running.config.folder import OWN_TIMES, file_name_for, own_place
from perflab.running.session.prune import Moved
from perflab.settings.settings import Settings
from perflab.snapshots.difference import compare
from perflab.snapshots.reading import choose_two, read_snapshots
from perflab.snapshots.report import first_changes
from perflab.units import format_count, format_names

if TYPE_CHECKING:
    import torch


_NOW = "-now"


def record_where_asked(
    state: CaseState, workload: Workload, device: torch.device, config: pytest.Config, *, runs_out: bool = False
) -> None:
    """Record one more call of a case that was measured or ran out of memory, if the run records snapshots."""
    if state.settings.part(Predicting).snapshots:
        folder = own_place(config.rootpath, "snapshots")
        name = f"{file_name_for(identity(state.case, state.settings.mode))}-measured"
        learned = state.part(Learned)
        try:
            learned.snapshot = record_call(workload, folder / (name + _NOW), device, runs_out=runs_out).path
        except Exception as error:
            off = switched_off(error)
            if off is None:
                raise
            if learned.measurement is not None:
                known = {**learned.measurement.off, "memory snapshot": off.problem}
                learned.measurement = changed(learned.measurement, off=known)


def with_snapshots(
    failure: str | None, snapshot: Path | None, root: Path, *, is_judged: bool, is_whole: bool = True
) -> str | None:
    """Return a failure's text with the changes from the last good snapshot to this one; None if the case passed.

    Args:
        failure: the text so far; None if the case passed.
        snapshot: the file of the snapshot of the case now; None if there is none.
        root: the folder to which shown paths are relative.
        is_judged: whether the case was compared with anything. Otherwise its snapshot replaces no other one.
        is_whole: whether the call completed. Otherwise no case is compared with its snapshot later.
    """
    if snapshot is None:
        return failure
    good = snapshot.with_name(snapshot.stem.removesuffix(_NOW) + snapshot.suffix)
    if failure is None:
        if is_whole and (is_judged or not good.exists()):
            snapshot.replace(good)
        return None
    now = snapshot.relative_to(root).as_posix()
    if not good.exists():
        return f"{failure}\nmemory: perflab memory {now}"
    try:
        before, after = choose_two(read_snapshots(good), read_snapshots(snapshot), None, (good, snapshot))
    except (PerflabError, OSError) as error:
        return f"{failure}\nmemory: {now}; no comparison with the last good snapshot: {error}"
    changes = first_changes(compare(before, after, (good.name, snapshot.name)))
    return "\n".join([failure, *changes, f"in full: perflab memory {good.relative_to(root).as_posix()} {now}"])


@dataclass(frozen=True)
class Judged:
    """A case of this session, its baseline, and its judgement so far."""

    state: CaseState
    record: MeasuredCase
    baseline: Baseline
    judgement: Judgement

    @property
    def case(self) -> str:
        """The case's node id."""
        return self.state.case

    @property
    def settings(self) -> Settings:
        """The case's own settings."""
        return self.state.settings

    @property
    def device(self) -> torch.device:
        """The device that measured the case."""
        assert self.state.device is not None
        return self.state.device

    @property
    def old_name(self) -> dict[str, str]:
        """The case's node id -> its node id at the baseline's commit; empty if they are equal."""
        was = self.baseline.moved_from
        return {self.case: without_mode(was)} if was is not None else {}

    @property
    def result(self) -> Result:
        """The case's result for the report."""
        return Result(case=self.case, outcome=self.record, judgement=self.judgement, policy=self.settings.policy)

    def anew(self, record: MeasuredCase) -> Judged:
        """Return the case with a more complete record, judged again."""
        return replace(self, record=record, judgement=_judgement(record, self.baseline, self.settings))

    def not_rechecked(self, reason: str) -> Judged:
        """Return the case with the final judgement of a suspect that cannot be re-measured."""

        def without_times() -> Judgement:
            return _judgement(self.record, changed(self.baseline, times=None), self.settings)

        return replace(self, judgement=unconfirmed(self.judgement, without_times, reason))


def baselines_of(config: pytest.Config, settings: Settings) -> Baselines:
    """Return the stored numbers of this project's measured cases, committed or not."""
    return Baselines(settings.baselines, config.rootpath / OWN_TIMES)


def judged(state: CaseState, baselines: Baselines, moved: Moved) -> Judged:
    """Judge a case that has measured, or ran out of memory, against its baseline."""
    settings, learned = state.settings, state.part(Learned)
    assert learned.environment is not None
    record = MeasuredCase(
        case=state.case,
        device=str(state.device),
        environment=learned.environment,
        parameters=state.parameters,
        work=state.work,
        matmul_flops_per_second=state.matmul_flops_per_second,
        matmul_precision=state.matmul_precision,
        quotes=state.quotes,
        facts=state.facts,
        measurement=learned.measurement,
        summary=replicate_of(learned.measurement) if learned.measurement is not None else None,
        out_of_memory=learned.out_of_memory,
    )
    name = identity(state.case, settings.mode)
    baseline = baselines.of(name, learned.environment)
    if baseline.exact is None and (baseline.times is None or baseline.times_are_own):
        was = moved.of(name, learned.environment)
        baseline = changed(baselines.of(was, learned.environment), moved_from=was) if was is not None else baseline
    if settings.check == "exact" or record.lacks_cores:
        baseline = changed(baseline, times=None)
    judgement = _judgement(record, baseline, settings)
    judgement = unless_unchecked(judgement, settings)
    return Judged(state, record, baseline, judgement)


def _judgement(record: Record, baseline: Baseline, settings: Settings) -> Judgement:
    """Return the judge's judgement, with the settings applied.

    A case that leaves work to threads cannot count as faster, so its improvement becomes inconclusive.
    """
    judgement = compared_with(judge(record, baseline, settings.policy), baseline.moved_from)
    memory = record.summary.memory if record.summary is not None else None
    leak = record.measurement.leak if record.measurement is not None else None
    said = [leak_text(leak)] if leak is not None else []
    judgement = unless_beyond(judgement, settings, memory.peak_bytes if memory is not None else None, said)
    if settings.check == "exact":
        judgement = changed(judgement, no_times=None)  # a verdict on times was not asked for
    elif record.lacks_cores and judgement.no_times is not None:
        ranks = f"{record.num_ranks} ranks on {format_count(record.environment.cores, 'core')}"
        judgement = changed(judgement, no_times=f"{ranks} wait for each other")
    ran_on = record.measurement.ran_on if record.measurement is not None else []
    if judgement.verdict is not Verdict.IMPROVED or not ran_on:
        return judgement
    reason = f"work runs on in {format_names(ran_on)} after the call, so its time cannot show that the code is faster"
    return changed(judgement, verdict=Verdict.INCONCLUSIVE, reasons=[*judgement.reasons, reason], unsettled=[])


def failure_of(config: pytest.Config, one: Judged) -> str | None:
    """Return the text with which a case's test fails; None if it passes.

    The case's memory snapshot is stored according to the verdict.
    """
    settings, judgement = one.settings, one.judgement
    drifted = any(drift.decides for drift in judgement.drift.values())
    by_turns = one.record.paired is not None and "latency" in judgement.worse
    missing = judgement.time_not_judged is not None or any(missed.can_be_saved for missed in judgement.not_compared)
    saves = Verdict.NEW if missing and judgement.verdict is Verdict.OK else None
    failure = verdicts.failure_of(
        config, settings.told_in(one.result), settings, saves=saves, moves_anchor=drifted or by_turns
    )
    is_judged = settings.update or judgement.verdict not in (Verdict.UNCHECKED, Verdict.INCOMPARABLE)
    return with_snapshots(
        failure,
        one.state.part(Learned).snapshot,
        config.rootpath,
        is_judged=is_judged,
        is_whole=judgement.verdict is not Verdict.OOM and not one.record.out_of_memory,
    )


def parameters_of(item: pytest.Item) -> Parameters:
    """Return a test's parameters; values that JSON cannot hold unchanged become text.

    It cannot hold subclasses (NumPy's numbers) and infinities.
    """

    def is_plain(value: Any) -> bool:
        return math.isfinite(value) if type(value) is float else type(value) in (str, int, bool, type(None))

    callspec = getattr(item, "callspec", None)
    given: dict[str, Any] = dict(callspec.params) if callspec is not None else {}
    return {name: value if is_plain(value) else str(value) for name, value in given.items()}


def result_of(state: CaseState, report: pytest.TestReport) -> Result | None:
    """Return the case's result from a test report; None if the report is not final."""
    if report.when == "teardown":
        return None
    result = state.result
    if state.subtest_failures:
        failed = Judgement(verdict=Verdict.FAILED, reasons=[state.problem or "a subtest failed"])
        result = Result(case=state.case, judgement=failed, failure="\n\n".join(state.subtest_failures))
    elif result is None or (report.failed and result.judgement.verdict is Verdict.OK):
        result = unmeasured(state.case, state.problem, report, state.short_of)
    if result is None:
        return None
    wanted = state.settings.side_by_side
    result = changed(
        result,
        parameters=state.parameters if result.record is None else {},
        side_by_side=wanted if wanted in state.parameters else None,
        place=place_asked_for(state.settings) if result.outcome is None else None,
    )
    return state.settings.told_in(result)
