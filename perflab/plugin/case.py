"""The ``perf`` fixture: a case takes its one measurement through it. What becomes of it is ``measuring.py``'s."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from perflab.errors import UsageError
from perflab.measure.compiling import CompilerState, compiler_state
from perflab.measure.counts import CallCounter
from perflab.measure.devices import as_dtype, available_bytes, release_memory
from perflab.measure.limits import as_out_of_memory, matmul_flops_per_second
from perflab.measure.measurement import Measured, measure, stopwatch_for
from perflab.measure.sampling import Progress
from perflab.measure.workload import Step, Workload
from perflab.plugin.callgrind import COUNT, run_counted
from perflab.plugin.facts import checked_facts
from perflab.plugin.fresh import JobResult
from perflab.plugin.needs import Needs
from perflab.plugin.settings import Settings
from perflab.predictions import PredictedCase
from perflab.records import Environment, Measurement, OutOfMemory, Parameters, Quote, per_call_ns

if TYPE_CHECKING:
    import torch

    from perflab.plugin.exploring import Exploration
    from perflab.plugin.predicting import CasePrediction

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

NO_WORK = 1.25
"""A callable no slower than this many empty calls does nothing that could be measured."""


@dataclass
class CaseState:
    """What a running case has learned so far. Lives from the item's set-up to its last report."""

    case: str
    settings: Settings
    environment: Environment | None = None
    device: torch.device | None = None
    measurement: Measurement | None = None
    out_of_memory: OutOfMemory | None = None
    work: dict[str, float] = field(default_factory=dict)
    parameters: Parameters = field(default_factory=dict)
    matmul_flops_per_second: float | None = None
    matmul_precision: str | None = None
    quotes: list[Quote] = field(default_factory=list)
    facts: Parameters = field(default_factory=dict)
    problem: str | None = None
    """Why there is nothing to judge, said in the verdict column."""
    is_replicate: bool = False
    served: bool = False
    """Whether the case was measured in turns with another process, which keeps the numbers."""
    under_callgrind: bool = False
    """Whether this process only counts the instructions of a call."""
    compiler: CompilerState = field(default_factory=compiler_state)
    """What torch.compile had done before the case was set up."""
    predicts: bool = False
    """Whether the case is predicted, so that its tensors are fake."""
    instead_of: str | None = None
    """What it would have been skipped for, where nobody asked for a prediction."""
    exploration: Exploration | None = None
    """How it is made for other sizes."""
    predicted: PredictedCase | None = None
    """What the case needs on a GPU that is not here, where it was predicted."""
    turn: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Holds the device while the case measures and is judged."""

    @property
    def has_measured(self) -> bool:
        """Whether the case has had its one measurement, or prediction, whatever came of it."""
        return self.served or any((self.measurement, self.out_of_memory, self.predicted))


STATE = pytest.StashKey[CaseState]()


class Perf:
    """Measures a callable. Ask for it as the ``perf`` fixture; see there for examples."""

    def __init__(
        self,
        state: CaseState,
        device: torch.device,
        progress: Progress,
        take_turn: Callable[[], contextlib.AbstractContextManager[object]],
        measure_fresh: Callable[[], JobResult],
        seconds_left: Callable[[], float | None],
        count_under_callgrind: Callable[[], int],
        prediction: CasePrediction,
        serve: Callable[[Workload, CallCounter | None], Any] | None = None,
        sides: Callable[[], int] = lambda: 1,
    ) -> None:
        self._state = state
        self._device = device
        self._progress = progress
        self._take_turn = take_turn
        self._measure_fresh = measure_fresh
        self._seconds_left = seconds_left
        self._serve = serve
        self._sides = sides
        self._count_under_callgrind = count_under_callgrind
        self._prediction = prediction

    @property
    def device(self) -> torch.device:
        """The device that the case is measured on."""
        return self._device

    def __call__(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Measure ``fn(*args, **kwargs)`` and return its result.

        Raises:
            UsageError: ``fn`` cannot be called, does no work, or the case has measured before.
        """
        if not callable(fn):
            raise UsageError(
                f"perf() got {type(fn).__name__!r}, which cannot be called",
                "pass the function itself and its arguments: perf(model, x), not perf(model(x))",
            )
        return self._measure(Workload(fn, args, kwargs))

    def step(
        self,
        *,
        forward: Callable[[], Any],
        backward: Callable[[Any], Any] | None = None,
        optimizer: Callable[[], Any] | None = None,
        micro_batches: int = 1,
    ) -> Any:
        """Measure a training step, each phase and the whole, and return what the last ``forward`` returned.

        Args:
            forward: called without arguments; its result, the loss, goes to ``backward``.
            backward: called with the loss, such as ``torch.Tensor.backward``.
            optimizer: called without arguments: the update, and clearing the gradients.
            micro_batches: how often forward and backward run in turn before the optimizer runs once; a phase's time
                is the sum over its runs.

        Raises:
            UsageError: a phase cannot be called, ``micro_batches`` is no positive int, or the case has measured before.
        """
        if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
            raise UsageError(
                f"perf.step(micro_batches={micro_batches!r})",
                "give how often forward and backward run before the optimizer: an int, 1 or more",
            )
        for name, phase in (("forward", forward), ("backward", backward), ("optimizer", optimizer)):
            if phase is not None and not callable(phase):
                raise UsageError(
                    f"perf.step({name}=...) got {type(phase).__name__!r}, which cannot be called",
                    f"pass a function: perf.step({name}=lambda: ...)",
                )
        return self._measure(Step(forward, backward, optimizer, micro_batches))

    def work(self, **units: float) -> None:
        """Say how much one call does, such as ``perf.work(tokens=512, flops=2.1e11)``; throughput is shown then.

        A unit that begins with a phase's name, such as ``backward_flops``, is the work of that phase alone.

        Raises:
            UsageError: an amount is not a positive number.
        """
        for unit, amount in units.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not amount > 0:
                raise UsageError(f"perf.work({unit}={amount!r})", "give a positive number of units in one call")
            self._state.work[unit] = float(amount)

    def quote(self, source: str, *, seconds: float, **phases: float) -> None:
        """Quote what others measured on the same work, such as ``perf.quote("H100, FA2", seconds=9e-6)``.

        Shown side by side with what is measured here, and judged by nobody. Phases are by name: ``backward=6e-6``.

        Raises:
            UsageError: a time is not a positive number of seconds.
        """
        for name, amount in {"seconds": seconds, **phases}.items():
            if isinstance(amount, bool) or not isinstance(amount, int | float) or not 0 < amount < float("inf"):
                raise UsageError(f"perf.quote({source!r}, {name}={amount!r})", "give a positive number of seconds")
        in_ns = {name: amount * 1e9 for name, amount in phases.items()}
        self._state.quotes.append(Quote(source=source, ns=seconds * 1e9, phases_ns=in_ns))

    def note(self, **facts: str | int | float | bool | None) -> None:
        """Note facts of the case beside its time and memory, such as ``perf.note(loss=3.21, setup_s=4.2)``.

        They are columns of the case's study, and stand in its record. A name's ending is its unit: ``_ns``, ``_s``,
        ``_bytes``, ``_share`` (of one), ``_ratio``, ``_per_s``. Before measuring or after it, as often as is
        needed: of a name that is noted twice the last value counts.

        Raises:
            UsageError: a value that is no plain data, or a name that tables of studies have a column of already.
        """
        self._state.facts |= checked_facts(facts)

    def requires(
        self,
        *,
        memory_bytes: float | None = None,
        flops: float | None = None,
        seconds: float | None = None,
        setup_calls: float = 0,
        setup_seconds: float = 0.0,
        precision: torch.dtype | str = "fp32",
    ) -> None:
        """Say what the case needs, before building anything; skip it, with these costs, if that does not fit.

        Args:
            memory_bytes: peak memory on the case's device.
            flops: floating-point operations of one call; time follows from this machine's matmul rate.
            seconds: time of one call, instead of ``flops``.
            setup_calls: calls that the case makes before it measures, to train a model for example.
            setup_seconds: time that it takes before that besides, to compile for example. Neither counts against
                the case's budget, which is for measuring, but both against the run's.
            precision: precision of most of the operations.

        Raises:
            pytest.skip.Exception: more memory than is free, or more time than the budget, or than is left of the
                run's total budget.
        """
        if self._prediction.active:
            self._prediction.refuse_set_up(setup_calls, setup_seconds)
            return  # it needs nothing of this machine
        if self._state.is_replicate and self._serve is None:
            return  # the session that asked for a replicate has decided
        if memory_bytes is not None:
            memory_bytes *= self._sides()
        if seconds is None and flops is not None:
            dtype = as_dtype(precision)
            assert dtype is not None
            self._state.matmul_flops_per_second = matmul_flops_per_second(self._device, dtype)
            self._state.matmul_precision = str(dtype).removeprefix("torch.")
            seconds = flops / self._state.matmul_flops_per_second
        needs = Needs(
            memory_bytes=memory_bytes,
            free_bytes=available_bytes(self._device),
            call_s=seconds,
            setup_calls=setup_calls,
            setup_s=setup_seconds,
            budget_s=self._state.settings.budget_s,
            left_s=self._seconds_left(),
        )
        if needs.is_only_late:
            pytest.skip(self._state.settings.time_is_over)
        unmet = needs.unmet()
        if unmet is not None and not self._prediction.instead(needs, unmet):
            pytest.skip(unmet)

    def fits(
        self,
        build: Callable[..., Any],
        *,
        sizes: Mapping[str, int],
        remedies: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """Say how the case is made for other sizes, so that a prediction can tell the largest that fits the GPU.

        Heeded where the case is predicted, after its own prediction; a measured case pays nothing for it::

            perf.fits(build, sizes={"batch_size": 4, "context_length": 1024}, remedies={"bf16": {"precision": "bf16"}})

        Args:
            build: ``build(**sizes, **changes)`` gives what is to be predicted: a callable without arguments, or the
                phases that ``perf.step`` takes, as a dict.
            sizes: the case's own sizes. Each in turn is made as large as fits, all else equal.
            remedies: by name, what else ``build`` takes; asked where the case does not fit as it is.

        Raises:
            UsageError: ``build`` cannot be called, a size is no positive int, or a remedy no mapping.
        """
        self._prediction.fits(build, sizes, remedies or {})

    @property
    def predicts(self) -> bool:
        """Whether the case is being predicted: its tensors are fake then, and have shapes but no numbers."""
        return self._prediction.active

    def _measure(self, workload: Workload) -> Any:
        state = self._state
        if state.has_measured:
            raise UsageError(
                f"{state.case}: perf was called twice in one case",
                "measure one thing a test; parametrize for several",
            )
        left_s = self._seconds_left()
        if not state.is_replicate and left_s is not None and left_s <= 0:
            pytest.skip(state.settings.time_is_over)
        if self._prediction.active:
            return self._prediction.of(workload)
        state.turn.enter_context(self._take_turn())
        if state.under_callgrind:
            return run_counted(workload)
        release_memory(self._device)
        if self._serve is not None:
            return self._measure_in_turns(workload, self._serve)
        measured = self._measured_or_out_of_memory(workload)
        if measured is None:
            release_memory(self._device)  # the error, and the frames it held, are gone by now
            pytest.skip("out of memory")
        self._refuse_nan(measured.result)
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
        state.measurement = self._with_callgrind(measured.measurement)
        return measured.result

    def _measure_in_turns(self, workload: Workload, serve: Callable[[Workload, CallCounter | None], Any]) -> Any:
        try:
            result = serve(workload, self._counter())
        except Exception as error:
            self._state.out_of_memory = as_out_of_memory(error)
            if self._state.out_of_memory is None:
                raise
        else:
            self._state.served = True
            self._refuse_nan(result)
            return result
        release_memory(self._device)  # the error, and the frames it held, are gone by now
        pytest.skip("out of memory")

    def _refuse_nan(self, result: Any) -> None:
        state = self._state
        if not state.settings.allow_nan and holds_nan(result):
            state.problem = "NaN"
            raise UsageError(
                f"{state.case}: the measured callable returned NaN; numbers taken on it are not kept",
                "find the NaN, or mark the case @pytest.mark.perf(allow_nan=True) if it is meant",
            )

    def _measured_or_out_of_memory(self, workload: Workload) -> Measured | None:
        state = self._state
        try:
            if state.settings.fresh_process and not state.is_replicate:
                self._progress("in a fresh process")
                found = self._measure_fresh()
                state.out_of_memory = found.out_of_memory
                return None if found.measurement is None else Measured(found.measurement, workload.run())
            return measure(
                workload, self._device, state.settings.plan, self._progress, label=state.case, counter=self._counter()
            )
        except Exception as error:
            state.out_of_memory = as_out_of_memory(error)
            if state.out_of_memory is None:
                raise
            return None

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
    if measurement.repetitions == 1 or (measurement.memory is not None and measurement.memory.growth_bytes):
        return False
    stopwatch = stopwatch_for(device)
    empty = Workload(lambda: None, (), {})
    readings = [stopwatch.time(empty, measurement.repetitions).total_ns for _ in range(3)]
    return fastest <= NO_WORK * min(readings) / measurement.repetitions


def holds_nan(value: Any) -> bool:
    """Whether a number, a tensor, or a container of such holds NaN."""
    import torch

    if isinstance(value, float):
        return value != value
    if isinstance(value, torch.Tensor):
        if value.device.type == "meta" or not (value.is_floating_point() or value.is_complex()):
            return False
        return bool(torch.isnan(value.detach()).any())
    return any(holds_nan(part) for part in _parts(value))


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
