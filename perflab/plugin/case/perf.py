"""The ``perf`` fixture: ``Perf`` takes what a case says, and keeps it in the case's state.

A ``Way`` does what the run is for with the callable: ``measured_case.Measuring``, or ``untimed.Once``. What becomes of
the measurement is ``measuring.py``'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import pytest

from perflab.data import Parameters
from perflab.errors import UsageError
from perflab.measure.compiling import CompilerState, compiler_state
from perflab.measure.devices import as_dtype
from perflab.measure.forks import calling
from perflab.measure.matmul_rate import matmul_flops_per_second, precision_of_products
from perflab.measure.workload import Step, Workload
from perflab.measured.records import Measurement, OutOfMemory, Quote
from perflab.plugin.case.facts import checked_facts, positive
from perflab.plugin.case.requirements import Claim, no_time_left
from perflab.plugin.case.returned import refuse_unfinished
from perflab.plugin.config.settings import Settings
from perflab.predicted.records import PredictedCase
from perflab.predicted.run.exploring import Exploration, exploration_of
from perflab.records import Environment, Shortage

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


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
    ran_on: dict[str, None] = field(default_factory=dict)
    """Threads that ran on when a call had returned."""
    short_of: list[Shortage] = field(default_factory=list)
    """What there is too little of, where the case does not fit."""
    problem: str | None = None
    """Why there is nothing to judge, said in the verdict column."""
    subtest_failures: list[str] = field(default_factory=list)
    """What pytest said of subtests that failed, by which the whole test has."""
    is_replicate: bool = False
    served: bool = False
    """Whether the case was measured in turns with another process, which keeps the numbers."""
    ran_once: bool = False
    """Whether its callable ran in a run that measures nothing."""
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
    until_judged: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Keeps its tensors fake until it is judged, where it says in its body that it is to be predicted."""

    def skip_for_time(self) -> NoReturn:
        """Skip the case: nothing is left of the run's time.

        Raises:
            pytest.skip.Exception: always.
        """
        self.short_of = [no_time_left(self.settings.budget_s, self.settings.total_budget_s)]
        pytest.skip(self.settings.time_is_over)

    @property
    def has_measured(self) -> bool:
        """Whether the case has had its one measurement, prediction or call, whatever came of it."""
        return self.served or self.ran_once or any((self.measurement, self.out_of_memory, self.predicted))

    def seconds_of_a_call(self, claim: Claim, device: torch.device) -> float | None:
        """What the case says that one call takes; of operations, by the device's rate, which its record then has."""
        if claim.seconds is not None or claim.flops is None:
            return claim.seconds
        dtype = as_dtype(claim.precision)
        assert dtype is not None
        self.matmul_flops_per_second = matmul_flops_per_second(device, dtype)
        self.matmul_precision = precision_of_products(device, dtype)
        return claim.flops / self.matmul_flops_per_second


STATE = pytest.StashKey[CaseState]()


class Way(Protocol):
    """What a run does with the callables of its cases."""

    def of(self, workload: Workload) -> Any:
        """Do it, and return what the callable returned."""

    def requires(self, claim: Claim) -> None:
        """Skip the case if what it says that it needs is not there."""


class Perf:
    """Measures a callable. Ask for it as the ``perf`` fixture; see there for examples."""

    def __init__(
        self, state: CaseState, device: torch.device, way: Way, expect: Callable[[float, float], None] | None = None
    ) -> None:
        self._state = state
        self._device = device
        self._way = way
        self._expect = expect

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
        return self._once_a_test(Workload(fn, args, kwargs))

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
        settings = self._state.settings
        if settings.cuda_graph and not self.predicts:
            raise UsageError(
                f"{self._state.case}: perf.step in a CUDA graph: a replay is one piece, and has no phases to time",
                "measure the whole step, perf(step), with an optimizer that a graph can hold "
                "(torch.optim.AdamW(..., capturable=True)); or leave cuda_graph out",
            )
        return self._once_a_test(Step(forward, backward, optimizer, micro_batches))

    def work(self, **units: float) -> None:
        """Say how much one call does, such as ``perf.work(tokens=512, flops=2.1e11)``; throughput is shown then.

        A unit that begins with a phase's name, such as ``backward_flops``, is the work of that phase alone.

        Raises:
            UsageError: an amount is not a positive number.
        """
        for unit, amount in units.items():
            self._state.work[unit] = positive(
                f"perf.work({unit}=", amount, "give a positive number of units in one call"
            )

    def quote(self, source: str, *, seconds: float, **phases: float) -> None:
        """Quote what others measured on the same work, such as ``perf.quote("H100, FA2", seconds=9e-6)``.

        Shown side by side with what is measured here, and judged by nobody. Phases are by name: ``backward=6e-6``.

        Raises:
            UsageError: a time is not a positive number of seconds.
        """
        if not isinstance(source, str):
            raise UsageError(f"perf.quote({source!r}, ...)", "give the source as a text: who measured it, and on what")
        in_ns = {
            name: positive(f"perf.quote({source!r}, {name}=", amount, "give a positive number of seconds", 1e9)
            for name, amount in {"seconds": seconds, **phases}.items()
        }
        self._state.quotes.append(Quote(source=source, ns=in_ns.pop("seconds"), phases_ns=in_ns))

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
        claim = Claim(memory_bytes, flops, seconds, setup_calls, setup_seconds, precision)
        self._way.requires(claim)
        if self._expect is not None:
            self._expect(*claim.expected_s(self._state.matmul_flops_per_second))

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
        self._state.exploration = exploration_of(build, sizes, remedies or {})

    @property
    def predicts(self) -> bool:
        """Whether the case is being predicted: its tensors are fake then, and have shapes but no numbers."""
        return self._state.predicts

    def _once_a_test(self, workload: Workload) -> Any:
        if self._state.has_measured:
            raise UsageError(
                f"{self._state.case}: perf was called twice in one case",
                "measure one thing a test; parametrize for several",
            )
        with calling(workload):
            result = self._way.of(workload)
        refuse_unfinished(self._state, result)
        return result


def device_of(item: pytest.Item, given: object) -> torch.device:
    """The device that a test's ``device`` fixture gives, where a project has its own.

    Raises:
        UsageError: it gives no device.
    """
    import torch

    if isinstance(given, str):  # how many projects' own device fixtures give it
        given = torch.device(given)
    if not isinstance(given, torch.device):
        raise UsageError(
            f"{item.nodeid}: the device fixture is overridden and gives {given!r}",
            "let it return a torch.device, or its name",
        )
    return given
