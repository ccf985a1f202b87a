"""The ways to measure a case's callable, one ``Way`` each: local, replicate, served, callgrind.

A way takes the case's one measurement and leaves it in the case's state, or skips the case.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol

import pytest

from perflab.base.data import changed
from perflab.base.errors import (
    CaptureError,
    ClockError,
    FreshProcessError,
    ReplacedError,
    ResultsError,
    UsageError,
    WrongResultError,
)
from perflab.base.identity import DEFAULT, identity
from perflab.judging.counts import CALLGRIND
from perflab.measure.calls.strays import BetweenSamples, calling
from perflab.measure.calls.workload import Workload
from perflab.measure.counts.counter import CallCounter
from perflab.measure.machine.devices import as_out_of_memory, available_bytes, current_device, release_memory
from perflab.measure.stopping import Plan, Progress
from perflab.measured.run.callgrind import count_under_callgrind, run_counted
from perflab.measured.run.state import Learned, no_graph_for, no_time, no_work
from perflab.measured.run.verdict import record_where_asked
from perflab.measurement.callables import Comparison, Limits, in_turns
from perflab.measurement.measurement import NO_WORK, Measured, is_as_fast_as_none, measure
from perflab.measurement.passes import with_what_was_alive
from perflab.profiles.take import ProfilePlan
from perflab.ranks.group import together
from perflab.results.measurement import Measurement, per_call_ns
from perflab.running.case.fresh_process import measure_fresh
from perflab.running.case.perf import CaseState, Way
from perflab.running.case.ranked import ranks_on_a_device
from perflab.running.case.reference import WRONG, refuse_wrong
from perflab.running.case.refusals import only_compiled_kernels, refuse_nan, refuse_unfinished
from perflab.running.case.statements import Claim, Needs
from perflab.running.config.folder import file_name_for, own_folder
from perflab.settings.settings import TotalBudget
from perflab.tiers.job import Job

if TYPE_CHECKING:
    import torch

    from perflab.predicted.run.predicting import Predictions

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


@dataclass
class Measuring:
    """The base class of all ways: take the case's one measurement in this process."""

    state: CaseState
    device: torch.device
    progress: Progress
    config: pytest.Config
    is_first: ClassVar[bool] = True
    """Whether the case is measured here for the first time, or in a rank of it. False in a process that measures it
    again, which does not compare results with the reference, compare callables, or look for leaks."""

    def requires(self, claim: Claim) -> Way:
        """Ignore the claim: the process that asked for this measurement has checked it."""
        return self

    def of(self, workload: Workload) -> Any:
        """Take the case's one measurement, and return what the callable returned.

        Raises:
            UsageError: the callable does no work, or returned NaN; no graph can hold it; or its clock is not
                trustworthy.
        """
        # Where the first call is what is measured, no other comes before it.
        is_cold = self.state.settings.warmup == 0
        with only_compiled_kernels(self.state.case):
            self._skip_without_graph()
            if not is_cold:
                self._refuse_wrong(workload)
            release_memory(self.device)
            result = self._measured(workload)
            self._refuse_wrong(workload, again=not is_cold)  # what counts its calls does not know this one
            return result

    def _refuse_wrong(self, workload: Workload, *, again: bool = False) -> None:
        """Refuse a result that is not the reference's, and forget what was measured of it."""
        if not self.is_first or self.state.reference is None:
            return
        self.progress("the reference")
        try:
            with current_device(self.device):
                refuse_wrong(self.state, workload, again=again)
        except ResultsError as error:
            self._learned.measurement = None
            raise self._not_measured(error) from error

    def compare(self, base: Workload, candidate: Workload, budget_s: float, threshold: float) -> Comparison | None:
        """Compare two callables interleaved in this process, in step with other ranks, after one call of each.

        None where another process asked for the case's measurement alone.

        Raises:
            UsageError: a call returned unfinished work; no graph can hold it; or its clock is not trustworthy.
        """
        if not self.is_first:
            return None
        self._skip_without_graph()
        state, settings, share_s = self.state, self.state.settings, self._share_s()
        budget_ns = 1e9 * (budget_s if share_s is None else min(budget_s, share_s))
        limits = Limits(budget_ns, threshold, settings.floor_ns, settings.mode)
        with only_compiled_kernels(state.case):
            for workload in (base, candidate):
                with calling(workload), current_device(self.device):
                    refuse_unfinished(state, workload.run())
            release_memory(self.device)
            try:
                return in_turns(base, candidate, self.device, limits, self.progress)
            except (CaptureError, ClockError) as error:
                raise self._not_measured(error) from error

    def _skip_without_graph(self) -> None:
        """Skip a case that asks for a CUDA graph on a device without one: a device fixture may give another device."""
        unmet = no_graph_for(self.state.case, self.state.settings, self.device)
        if unmet is not None:
            pytest.skip(unmet)

    def _measured(self, workload: Workload) -> Any:
        state = self.state
        try:
            measured = self._measure(workload)
            if measured is not None:
                refuse_nan(state, measured.result)
        except (CaptureError, ClockError, ResultsError) as error:
            raise self._not_measured(error) from error
        except StopIteration as error:
            state.problem = "no work"
            raise UsageError(
                f"{state.case}: the measured callable takes from an iterator that is exhausted (StopIteration)",
                "give each call an iterator of its own: perf(fn, setup=lambda: (iter(items),))",
            ) from error
        except Exception as error:
            if not self._ran_out(error):
                raise
            measured = None
        if measured is None:
            self._look_at_failure(workload)
            self._skip_out_of_memory()
        if not workload.phases and self._does_nothing(measured.measurement, workload):
            raise no_work(state)
        if min(measured.measurement.samples_ns) <= 0:
            raise no_time(state)
        ran_on = list(self._learned.ran_on)
        self._learned.measurement = changed(self._counted_apart(measured.measurement), ran_on=ran_on)
        state.done = True
        return measured.result

    def _does_nothing(self, measurement: Measurement, workload: Workload) -> bool:
        """Whether a call does no more than an empty one, beside which it is timed, since cores change their speed."""
        fastest = min(per_call_ns(measurement.samples_ns, measurement.repetitions))
        if measurement.memory is not None and measurement.memory.growth_bytes:
            return False
        if measurement.empty_call_ns is not None:
            return fastest <= NO_WORK * measurement.empty_call_ns
        return is_as_fast_as_none(workload, fastest, measurement.repetitions, self.device)

    def _measure(self, workload: Workload) -> Measured | None:
        """Return the measurement; None if a fresh process ran out of memory."""
        settings = self.state.settings
        return measure(
            workload,
            self.device,
            self._plan(),
            BetweenSamples(self.progress, self._learned.ran_on),
            label=self.state.case,
            counter=self._counter(),
            mode=settings.mode,
            profile=self._profile(),
            # A leak is looked for in the process that measures the case first.
            leak_calls=settings.leak_calls if self.is_first or settings.fresh_process else 0,
        )

    def _counted_apart(self, measurement: Measurement) -> Measurement:
        """Return the measurement with the count of a separate callgrind process, or with the reason why it has none.

        A measurement from a fresh process has the count or the reason already.
        """
        settings = self.state.settings
        tried = CALLGRIND in measurement.counts or measurement.not_counted is not None
        if settings.counts == "off" or settings.instructions != "callgrind" or tried:
            return measurement
        self.progress("instructions, under callgrind")
        try:
            found = count_under_callgrind(self.config, self.state.case, str(self.device))
        except FreshProcessError as error:  # time and memory have been measured, and are judged
            return changed(measurement, not_counted=f"{error.problem}; {error.remedy}")
        return changed(measurement, counts={**measurement.counts, CALLGRIND: found})

    def _profile(self) -> ProfilePlan | None:
        """Return the plan of profiling a call; None to take no profile."""
        return None

    def _plan(self) -> Plan:
        """Return the plan of how long to measure."""
        return self.state.settings.plan_within(self._share_s())

    def _share_s(self) -> float | None:
        """Return the case's share of the run's time in seconds; None if only the case's own budget applies."""
        return None

    @property
    def _learned(self) -> Learned:
        return self.state.part(Learned)

    def _ran_out(self, error: Exception) -> bool:
        """Return whether the error is an out-of-memory error, and note its details."""
        self._learned.out_of_memory = as_out_of_memory(error)
        return self._learned.out_of_memory is not None

    def _look_at_failure(self, workload: Workload) -> None:
        """Do nothing: the process that asked for this measurement has no use for details of a failure."""

    def _skip_out_of_memory(self) -> NoReturn:
        self.state.done = True
        release_memory(self.device)  # the error and its frames are released by now
        pytest.skip("out of memory")

    def _not_measured(self, error: CaptureError | ClockError | ResultsError) -> UsageError:
        said = (
            (CaptureError, "no CUDA graph"),
            (WrongResultError, WRONG),
            (ResultsError, "results differ"),
            (ReplacedError, "PyTorch was replaced"),
            (ClockError, "the clocks disagree"),
        )
        self.state.problem = next(text for kind, text in said if isinstance(error, kind))
        return UsageError(f"{self.state.case}: {error.problem}", error.remedy)

    def _counter(self) -> CallCounter | None:
        settings = self.state.settings
        if settings.counts == "off":
            return None
        return CallCounter(self.device, self._learned.compiler, instructions=settings.instructions == "auto")


@dataclass
class Replicate(Measuring):
    """Measures in this process, a fresh one, within the time that its parent has left."""

    job: Job
    is_first = False

    def _profile(self) -> ProfilePlan | None:
        job = self.job
        if self.state.case not in job.profiled:
            return None
        budget_ns = self.state.settings.evidence_ns if job.profile_ns is None else job.profile_ns
        return ProfilePlan(budget_ns, Path(job.profile_files) if job.profile_files is not None else None)

    def _share_s(self) -> float | None:
        return self.job.budget_s


class InStep(Measuring):
    """Measures in this process in step with the other ranks of its case, whoever has started them."""

    is_first = True

    def requires(self, claim: Claim) -> Way:
        """Skip the case in all ranks if it does not fit in one of them."""
        sharing = ranks_on_a_device(self.state.settings.world_size, self.device)
        needs = needs_of(claim, self.state, self.device, None, sides=sharing)
        _skip_in_step(needs)
        return self

    def _counted_apart(self, measurement: Measurement) -> Measurement:
        """Return the measurement as it is: a process under callgrind would be no rank."""
        return measurement


class InRank(InStep, Replicate):
    """Measures in a rank that perflab has started."""


@dataclass
class Local(Measuring):
    """Measures in the session's own process, if there is room and time, or in a fresh one if the case asks for that."""

    budget: TotalBudget
    predictions: Predictions
    """Predicts a case that does not fit, in a run that predicts by itself."""

    def requires(self, claim: Claim) -> Way:
        """Skip the case, or switch it to a prediction, if it does not fit."""
        needs = needs_of(claim, self.state, self.device, self.budget.measuring_s())
        if needs.is_only_late:
            self.state.skip_for_time()
        self.state.short_of, unmet = needs.short_of(), needs.unmet()
        if unmet is None:
            return self
        if not (needs.can_be_predicted and self.state.settings.is_predictable and self.predictions.by_itself):
            pytest.skip(unmet)
        return self.predictions.from_here_on(self.state, unmet, self.budget)

    def of(self, workload: Workload) -> Any:
        """Take the case's measurement, or skip the case if the run's time is over."""
        self._skip_if_late()
        hold_to_account = self._accounting(workload)
        result = super().of(workload)
        hold_to_account()
        record_where_asked(self.state, workload, self.device, self.config)
        return result

    def _accounting(self, workload: Workload) -> Callable[[], None]:
        """Return what runs the workload, as it is now, in processes of its own once it is measured; if the run asks.

        Raises:
            UsageError: raised by what is returned: the results or the time are other ones there.
        """
        settings = self.state.settings
        if not settings.adversarial or settings.mode != DEFAULT:
            return lambda: None
        from perflab.untrusted.in_pytest import Packed, hold_to_account

        packed = Packed(workload, self.state.reference)

        def account() -> None:
            measurement = self._learned.measurement
            if measurement is None:
                return
            call_ns = median(per_call_ns(measurement.samples_ns, measurement.repetitions))
            try:
                self.state.facts["adversarial"] = hold_to_account(
                    packed, workload, self.device, call_ns, self.progress, allow_nan=settings.allow_nan
                )
            except (ClockError, ResultsError) as error:
                self._learned.measurement = None
                raise self._not_measured(error) from error

        return account

    def compare(self, base: Workload, candidate: Workload, budget_s: float, threshold: float) -> Comparison | None:
        """Compare two callables interleaved, or skip the case if the run's time is over."""
        self._skip_if_late()
        return super().compare(base, candidate, budget_s, threshold)

    def _profile(self) -> ProfilePlan | None:
        return profile_plan(self.config, self.state, self.budget)

    def _skip_if_late(self) -> None:
        left_s = self.budget.measuring_s()
        if left_s is not None and left_s <= 0:
            self.state.skip_for_time()

    def _measure(self, workload: Workload) -> Measured | None:
        case = self.state.case
        if not self.state.settings.fresh_process:
            return super()._measure(workload)
        self.progress("in a fresh process")
        found = measure_fresh(self.config, job_of(self.config, self.state, self.budget), str(self.device))[case]
        self._learned.out_of_memory = found.out_of_memory
        return None if found.measurement is None else Measured(found.measurement, workload.run())

    def _look_at_failure(self, workload: Workload) -> None:
        found, state = self._learned.out_of_memory, self.state
        if found is None or state.settings.fresh_process:
            return
        if state.settings.evidence == "on":
            self.progress("what was alive")
            release_memory(self.device)
            found = with_what_was_alive(found, workload, self.device)
            remedies = state.exploration.remedies if state.exploration is not None else {}
            self._learned.out_of_memory = changed(found, remedies=list(remedies))
        release_memory(self.device)
        record_where_asked(state, workload, self.device, self.config, runs_out=True)

    def _plan(self) -> Plan:
        settings = self.state.settings
        # Where times are neither compared nor kept, nobody needs them better.
        are_shown_alone = settings.check == "exact" and not (settings.update or settings.update_new)
        return replace(super()._plan(), brief=are_shown_alone)

    def _share_s(self) -> float | None:
        return share_of(self.state, self.budget)


class Serves(Protocol):
    """A process's connection to the session that asks for its turns."""

    sides: int
    """The number of processes that take turns."""

    def measure(self, state: CaseState, workload: Workload, device: torch.device, counter: CallCounter | None) -> Any:
        """Measure the case in turns, as the session asks; return what the workload returned."""

    def pass_on(self, state: CaseState, device: torch.device) -> None:
        """Let the ranks of a case, in processes of their own, answer the session's questions."""


@dataclass
class Served(Measuring):
    """Measures when the session asks for it, interleaved with another process that holds as much memory."""

    budget: TotalBudget
    server: Serves
    is_first = False

    def requires(self, claim: Claim) -> Way:
        """Skip the case if not all sides fit at once."""
        needs = needs_of(claim, self.state, self.device, self.budget.left_s(), sides=self.server.sides)
        self.state.short_of = needs.short_of()
        _skip_in_step(needs)
        return self

    def _measured(self, workload: Workload) -> Any:
        if self.state.settings.fresh_process:
            pytest.skip("a cold start cannot be taken in turns")
        try:
            result = self.server.measure(self.state, workload, self.device, self._counter())
            self.state.done = True
            refuse_nan(self.state, result)
        except (CaptureError, ClockError) as error:
            raise self._not_measured(error) from error
        except Exception as error:
            if not self._ran_out(error):
                raise
        else:
            return result
        self._skip_out_of_memory()


class Callgrind(Measuring):
    """Calls the callable a few times on a simulated processor, which counts the last call's instructions."""

    is_first = False

    def _measured(self, workload: Workload) -> Any:
        self.state.done = True
        return run_counted(workload)


def profile_plan(config: pytest.Config, state: CaseState, budget: TotalBudget) -> ProfilePlan | None:
    """Return how the run profiles a case, and where its files go; None: it does not."""
    if state.settings.profile_ns is None:
        return None
    folder = config.rootpath / ".perflab"
    with contextlib.suppress(OSError):  # the profile then reports that its files cannot be written
        folder = own_folder(config.rootpath)
    left_s = budget.measuring_s()
    budget_ns = min(state.settings.profile_ns, float("inf") if left_s is None else max(0.0, left_s) * 1e9)
    return ProfilePlan(budget_ns, folder / "profiles" / file_name_for(identity(state.case, state.settings.mode)))


def share_of(state: CaseState, budget: TotalBudget) -> float | None:
    """Return the case's share of the run's time in seconds; None: it has its whole budget, as in a run that saves."""
    return None if state.settings.update or state.settings.update_new else budget.case_share_s()


def job_of(config: pytest.Config, state: CaseState, budget: TotalBudget) -> Job:
    """Return the job of processes that measure a case in place of this one, as this one would."""
    job, plan = Job(cases=[state.case], budget_s=share_of(state, budget)), profile_plan(config, state, budget)
    if plan is None:
        return job
    return changed(job, profiled=[state.case], profile_ns=plan.budget_ns, profile_files=str(plan.files))


def needs_of(claim: Claim, state: CaseState, device: torch.device, left_s: float | None, *, sides: int = 1) -> Needs:
    """Return a case's declared needs and the available resources.

    ``left_s``: seconds left of the run; None if unlimited. ``sides``: number of processes that share the memory.
    """
    return Needs(
        memory_bytes=claim.memory_bytes * sides if claim.memory_bytes is not None else None,
        free_bytes=available_bytes(device),
        call_s=state.seconds_of_a_call(claim, device),
        setup_calls=claim.setup_calls,
        setup_s=claim.setup_seconds,
        budget_s=state.settings.budget_s,
        budget_by=state.settings.budget_by,
        left_s=left_s,
        total_s=state.settings.total_budget_s,
    )


def _skip_in_step(needs: Needs) -> None:
    """Skip the case in all ranks if its needs are not met in one of them."""
    for unmet in together().gathered(needs.unmet()):
        if unmet is not None:
            pytest.skip(unmet)
