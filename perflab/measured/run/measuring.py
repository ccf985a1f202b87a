"""How a case's callable is measured: here, in a fresh process or in turns; or predicted, where that is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from perflab.compared.callables import Comparison, Limits, in_turns
from perflab.errors import CaptureError, ClockError, UsageError
from perflab.measure.counts import CallCounter
from perflab.measure.devices import available_bytes, current_device, release_memory
from perflab.measure.forks import calling
from perflab.measure.limits import as_out_of_memory
from perflab.measure.measurement import Measured, measure, stopwatch_for
from perflab.measure.sampling import Progress
from perflab.measure.workload import Workload
from perflab.measured.records import Measurement, per_call_ns
from perflab.measured.run.between_samples import BetweenSamples
from perflab.measured.run.callgrind import COUNT, run_counted
from perflab.measured.run.cuda_graphs import no_graph_for
from perflab.plugin.case.fresh_process import JobResult
from perflab.plugin.case.perf import CaseState
from perflab.plugin.case.raw_launches import only_compiled_kernels
from perflab.plugin.case.requirements import Claim, Needs
from perflab.plugin.case.returned import refuse_nan, refuse_unfinished

if TYPE_CHECKING:
    import torch

    from perflab.predicted.run.predicting import CasePrediction

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

NO_WORK = 1.25
"""A callable no slower than this many empty calls does nothing that could be measured."""


class Measuring:
    """Measures a case's callable, or predicts it."""

    def __init__(
        self,
        state: CaseState,
        device: torch.device,
        progress: Progress,
        measure_fresh: Callable[[float | None], JobResult],
        seconds_left: Callable[[], float | None],
        share_s: Callable[[], float | None],
        count_under_callgrind: Callable[[], int],
        prediction: CasePrediction,
        serve: Callable[[Workload, CallCounter | None], Any] | None = None,
        sides: Callable[[], int] = lambda: 1,
    ) -> None:
        self._state = state
        self._device = device
        self._progress = progress
        self._measure_fresh = measure_fresh
        self._seconds_left = seconds_left
        self._share_s = share_s
        self._serve = serve
        self._sides = sides
        self._count_under_callgrind = count_under_callgrind
        self._prediction = prediction

    def requires(self, claim: Claim) -> None:
        """Skip the case, or predict it, if it does not fit."""
        if self._prediction.active:
            self._prediction.refuse_set_up(claim.setup_calls, claim.setup_seconds)
            return  # it needs nothing of this machine
        if self._state.is_replicate and self._serve is None:
            return  # the session that asked for a replicate has decided
        needs = Needs(
            memory_bytes=claim.memory_bytes * self._sides() if claim.memory_bytes is not None else None,
            free_bytes=available_bytes(self._device),
            call_s=self._state.seconds_of_a_call(claim, self._device),
            setup_calls=claim.setup_calls,
            setup_s=claim.setup_seconds,
            budget_s=self._state.settings.budget_s,
            budget_by=self._state.settings.budget_by,
            left_s=self._seconds_left(),
            total_s=self._state.settings.total_budget_s,
        )
        if needs.is_only_late:
            self._state.skip_for_time()
        self._state.short_of, unmet = needs.short_of(), needs.unmet()
        if unmet is not None and not self._prediction.instead(needs, unmet):
            pytest.skip(unmet)

    def of(self, workload: Workload) -> Any:
        """Take the case's one measurement, and return what the callable returned.

        Raises:
            UsageError: the callable does no work, or returned NaN; no graph can hold it; or its clock is not to be
                believed.
        """
        left_s = self._left_s()
        if self._prediction.active:
            return self._prediction.of(workload, left_s)
        with only_compiled_kernels(self._state.case):
            return self._measured(workload)

    def compare(
        self, base: Workload, candidate: Workload, budget_s: float | None, threshold: float | None
    ) -> Comparison | None:
        """Compare two callables in turns, each called once before; None for a prediction, and where another process
        asked for this measurement.

        Raises:
            UsageError: a call returned unfinished work; no graph can hold it; or its clock is not to be believed.
        """
        state = self._state
        if self._prediction.active or state.is_replicate:
            return None
        self._left_s()
        self._skip_without_graph()
        settings, share_s = state.settings, self._share_s()
        wanted_s = settings.budget_s if budget_s is None else budget_s
        limits = Limits(
            budget_ns=1e9 * (wanted_s if share_s is None else min(wanted_s, share_s)),
            threshold=settings.threshold if threshold is None else threshold,
            floor_ns=settings.floor_ns,
            mode=settings.mode,
        )
        with only_compiled_kernels(state.case):
            for workload in (base, candidate):
                with calling(workload), current_device(self._device):
                    refuse_unfinished(state, workload.run())
            release_memory(self._device)
            try:
                return in_turns(base, candidate, self._device, limits, self._progress)
            except (CaptureError, ClockError) as error:
                raise self._not_measured(error) from error

    def _left_s(self) -> float | None:
        """What the run has left of its total budget; skips the case if that is nothing."""
        left_s = self._seconds_left()
        if not self._state.is_replicate and left_s is not None and left_s <= 0:
            self._state.skip_for_time()
        return left_s

    def _skip_without_graph(self) -> None:
        """Skip a case that asks for a CUDA graph elsewhere: a project's device fixture may give another device."""
        unmet = no_graph_for(self._state.case, self._state.settings, self._device)
        if unmet is not None:
            pytest.skip(unmet)

    def _measured(self, workload: Workload) -> Any:
        state = self._state
        self._skip_without_graph()
        if state.under_callgrind:
            return run_counted(workload)
        release_memory(self._device)
        if self._serve is not None:
            return self._measure_in_turns(workload, self._serve)
        measured = self._measured_or_out_of_memory(workload)
        if measured is None:
            release_memory(self._device)  # the error, and the frames it held, are gone by now
            pytest.skip("out of memory")
        if not workload.phases and _does_nothing(measured.measurement, self._device):
            state.problem = "no work"
            raise UsageError(
                f"{state.case}: the measured callable does no work, it is as fast as an empty one",
                "measure a callable that does something: perf(fn, *args), not perf(lambda: None)",
            )
        if min(measured.measurement.samples_ns) <= 0:
            raise UsageError(
                f"{state.case}: the clock did not move while it was measured", "measure more work in a call"
            )
        measurement = msgspec.structs.replace(measured.measurement, ran_on=list(state.ran_on))
        state.measurement = self._with_callgrind(measurement)
        return measured.result

    def _measure_in_turns(self, workload: Workload, serve: Callable[[Workload, CallCounter | None], Any]) -> Any:
        try:
            result = serve(workload, self._counter())
            self._state.served = True
            refuse_nan(self._state, result)
        except (CaptureError, ClockError) as error:
            raise self._not_measured(error) from error
        except Exception as error:
            self._state.out_of_memory = as_out_of_memory(error)
            if self._state.out_of_memory is None:
                raise
        else:
            return result
        release_memory(self._device)  # the error, and the frames it held, are gone by now
        pytest.skip("out of memory")

    def _measured_or_out_of_memory(self, workload: Workload) -> Measured | None:
        state = self._state
        try:
            if state.settings.fresh_process and not state.is_replicate:
                self._progress("in a fresh process")
                found = self._measure_fresh(self._share_s())
                state.out_of_memory = found.out_of_memory
                measured = None if found.measurement is None else Measured(found.measurement, workload.run())
            else:
                measured = measure(
                    workload,
                    self._device,
                    state.settings.plan_within(self._share_s()),
                    BetweenSamples(self._progress, state.ran_on),
                    label=state.case,
                    counter=self._counter(),
                    mode=state.settings.mode,
                )
            if measured is not None:
                refuse_nan(state, measured.result)
            return measured
        except (CaptureError, ClockError) as error:
            raise self._not_measured(error) from error
        except Exception as error:
            state.out_of_memory = as_out_of_memory(error)
            if state.out_of_memory is None:
                raise
            return None

    def _not_measured(self, error: CaptureError | ClockError) -> UsageError:
        self._state.problem = "no CUDA graph" if isinstance(error, CaptureError) else "the clocks disagree"
        return UsageError(f"{self._state.case}: {error.problem}", error.remedy)

    def _with_callgrind(self, measurement: Measurement) -> Measurement:
        settings = self._state.settings
        if settings.counts == "off" or settings.instructions != "callgrind" or COUNT in measurement.counts:
            return measurement
        self._progress("instructions, under callgrind")
        return msgspec.structs.replace(measurement, counts={**measurement.counts, COUNT: self._count_under_callgrind()})

    def _counter(self) -> CallCounter | None:
        settings = self._state.settings
        if settings.counts == "off":
            return None
        return CallCounter(self._device, self._state.compiler, instructions=settings.instructions == "auto")


def _does_nothing(measurement: Measurement, device: torch.device) -> bool:
    fastest = min(per_call_ns(measurement.samples_ns, measurement.repetitions))
    if measurement.memory is not None and measurement.memory.growth_bytes:
        return False
    if measurement.empty_call_ns is not None:
        return fastest <= NO_WORK * measurement.empty_call_ns
    if measurement.repetitions == 1:
        return False
    stopwatch = stopwatch_for(device)
    empty = Workload(lambda: None, (), {})
    readings = [stopwatch.time(empty, measurement.repetitions).total_ns for _ in range(3)]
    return fastest <= NO_WORK * min(readings) / measurement.repetitions
