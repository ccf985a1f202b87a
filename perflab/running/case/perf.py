"""The ``perf`` fixture: ``Perf`` checks the arguments that a case gives and stores them in the case's state.

A ``Way`` measures, predicts or calls the callable, and the tier of the ``Way`` judges the result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

import pytest

from perflab.base.amounts import positive, refuse_no_count, refuse_uncallable
from perflab.base.data import Parameters
from perflab.base.errors import UsageError
from perflab.measure.calls.strays import calling
from perflab.measure.calls.workload import Step, Workload, chain
from perflab.measure.clocks.set_up import workload_of
from perflab.measure.generation import Generating, TokenHook
from perflab.measure.machine.devices import as_dtype, matmul_flops_per_second, precision_of_products
from perflab.measurement.callables import Comparison, checked
from perflab.results.measurement import Quote
from perflab.results.records import Shortage, TierRecord
from perflab.results.result import Result
from perflab.running.case.coroutines import awaited
from perflab.running.case.reference import Reference
from perflab.running.case.refusals import refuse_unfinished
from perflab.running.case.statements import Claim, Exploration, checked_facts, claim_of, exploration_of, no_time_left
from perflab.settings.settings import Settings
from perflab.tables.view import NOT_FOR_PHASES

if TYPE_CHECKING:
    import torch

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


Part = TypeVar("Part")


@dataclass
class CaseState:
    """The state of a running case; it exists from the item's set-up to its last report."""

    case: str
    settings: Settings
    device: torch.device | None = None
    work: dict[str, float] = field(default_factory=dict)
    parameters: Parameters = field(default_factory=dict)
    matmul_flops_per_second: float | None = None
    matmul_precision: str | None = None
    quotes: list[Quote] = field(default_factory=list)
    facts: Parameters = field(default_factory=dict)
    phases: tuple[str, ...] = ()
    """The names of the phases of the workload that the case measures; empty without phases."""
    short_of: list[Shortage] = field(default_factory=list)
    """The resources that are insufficient, if the case does not fit into memory or time."""
    problem: str | None = None
    """The short reason, shown in the verdict column, why there is nothing to judge."""
    subtest_failures: list[str] = field(default_factory=list)
    """pytest's messages of failed subtests, which make the whole test fail."""
    done: bool = False
    """Whether the case has made its one measurement, prediction or call, successful or not."""
    predicts: bool = False
    """Whether the case is predicted, so that its tensors are fake."""
    reference: Reference | None = None
    """The argument of ``perf.reference``: what the measured callable has to return."""
    exploration: Exploration | None = None
    """The argument of ``perf.fits``: how the case is built at other sizes."""
    outcome: TierRecord | None = None
    """The record of the case, if the case was not measured."""
    result: Result | None = None
    """The judged result; None until the test's body has ended."""
    parts: dict[type, Any] = field(default_factory=dict)
    """The tiers' own data about the case, by type."""

    def part(self, kind: type[Part]) -> Part:
        """Return a tier's own data of this type, created at the first call."""
        if kind not in self.parts:
            self.parts[kind] = kind()
        part: Part = self.parts[kind]
        return part

    def skip_for_time(self) -> NoReturn:
        """Skip the case because nothing is left of the run's time.

        Raises:
            pytest.skip.Exception: always.
        """
        self.short_of = [no_time_left(self.settings.budget_s, self.settings.total_budget_s)]
        pytest.skip(self.settings.time_is_over)

    def seconds_of_a_call(self, claim: Claim, device: torch.device) -> float | None:
        """Return the claimed time of one call in seconds; None if the case claims neither a time nor operations.

        A number of operations is divided by the device's matmul rate, which is then stored in the state.
        """
        if claim.seconds is not None or claim.flops is None:
            return claim.seconds
        dtype = as_dtype(claim.precision)
        assert dtype is not None
        self.matmul_flops_per_second = matmul_flops_per_second(device, dtype)
        self.matmul_precision = precision_of_products(device, dtype)
        return claim.flops / self.matmul_flops_per_second


STATE = pytest.StashKey[CaseState]()


class NothingComparedError(Exception):
    """Ends a test that calls ``perf.compare`` in a run that compares nothing; the test has not failed."""


class Way(Protocol):
    """The treatment of a case's callables by a run: measure, predict, or call once."""

    def of(self, workload: Workload) -> Any:
        """Treat the workload, and return what its callable returned."""

    def compare(self, base: Workload, candidate: Workload, budget_s: float, threshold: float) -> Comparison | None:
        """Compare two workloads in turns, and return the comparison; None if this run does not compare."""

    def requires(self, claim: Claim) -> Way:
        """Skip the case if the memory or time that it claims is not available; else return the way to use then."""


class Perf:
    """The value of the ``perf`` fixture, which measures a callable. The fixture's docstring has examples."""

    def __init__(
        self, state: CaseState, device: torch.device, way: Way, expect: Callable[[float, float], None] | None = None
    ) -> None:
        self._state = state
        self._device = device
        self._way = way
        self._expect = expect

    @property
    def device(self) -> torch.device:
        """The device that the case runs on."""
        return self._device

    def __call__(
        self, fn: Callable[..., Any], *args: Any, setup: Callable[[], Any] | None = None, **kwargs: Any
    ) -> Any:
        """Measure ``fn(*args, **kwargs)`` and return its result.

        A callable that changes, grows or uses up its arguments gets new ones for each call from ``setup``::

            perf(list.sort, setup=lambda: (numbers.copy(),))

        A coroutine function is run to its end, also in an ``async def`` test: ``perf(fetch, url)``, without ``await``.

        Args:
            fn: the callable to measure.
            args: positional arguments of each call.
            setup: called before each call without being measured: its time, memory and operators do not count. It
                returns the call's arguments: a tuple of positional arguments, a dict of keyword arguments, both as
                ``((x,), {"scale": 2})``, or None for ``args`` and ``kwargs``.
            kwargs: keyword arguments of each call.

        Raises:
            UsageError: ``fn`` is not callable or does no work, ``setup`` returns no arguments or cannot be used with a
                CUDA graph, or the case has already measured.
        """
        remedy = "pass the function itself and its arguments: perf(model, x), not perf(model(x))"
        refuse_uncallable("perf()", fn, remedy)
        self._refuse_in_graph(setup, "perf")
        return self._once_a_test(workload_of(fn, args, kwargs, setup, self._device))

    def step(
        self,
        *,
        forward: Callable[[], Any],
        backward: Callable[[Any], Any] | None = None,
        optimizer: Callable[[], Any] | None = None,
        micro_batches: int = 1,
    ) -> Any:
        """Measure a training step, each phase and the whole. Return the result of the last ``forward``.

        Args:
            forward: called without arguments; its result, the loss, is passed to ``backward``.
            backward: called with the loss, such as ``torch.Tensor.backward``.
            optimizer: called without arguments; updates the weights and clears the gradients.
            micro_batches: number of forward and backward passes before the optimizer runs once. The time of a phase
                is the sum over its passes.

        Raises:
            UsageError: a phase is not callable, ``micro_batches`` is not a positive int, the case is timed as a CUDA
                graph, or the case has already measured.
        """
        remedy = "give how often forward and backward run before the optimizer: an int, 1 or more"
        refuse_no_count(f"perf.step(micro_batches={micro_batches!r})", micro_batches, remedy)
        for name, phase in (("forward", forward), ("backward", backward), ("optimizer", optimizer)):
            if phase is not None:
                refuse_uncallable(f"perf.step({name}=...)", phase, f"pass a function: perf.step({name}=lambda: ...)")
        self._refuse_phases_in_graph(
            "perf.step",
            "step",
            "the whole step, perf(step), with an optimizer that can be captured "
            "(torch.optim.AdamW(..., capturable=True))",
        )
        return self._once_a_test(Step(forward, backward, optimizer, micro_batches))

    def phases(self, /, **phases: Callable[..., Any]) -> Any:
        """Measure phases of any names, each and the whole. Return the result of the last one::

            perf.phases(prefill=start, decode=go)  # go(start())

        Args:
            phases: called in this order: the first phase without arguments, each other phase with the result of the
                phase before.

        Raises:
            UsageError: there is no phase, a phase is not callable, or its name is already a column; the case is timed
                as a CUDA graph, or has already measured.
        """
        if not phases:
            raise UsageError(
                "perf.phases() got no phase", "name them in their order: perf.phases(prefill=start, decode=go)"
            )
        for name, phase in phases.items():
            refuse_uncallable(f"perf.phases({name}=...)", phase, f"pass a function: perf.phases({name}=lambda: ...)")
            if name in NOT_FOR_PHASES or not name.isidentifier():
                why = "means something else in tables" if name.isidentifier() else "cannot be a column's name"
                raise UsageError(f"perf.phases({name}=...): {name!r} {why}", "call the phase something else")
        self._refuse_phases_in_graph("perf.phases", "call", "a phase by itself, perf(phase)")
        return self._once_a_test(chain(phases))

    def generation(
        self, generate: Callable[[TokenHook], Any], *, batch: int = 1, setup: Callable[[], Any] | None = None
    ) -> Any:
        """Measure the generation of tokens, and return what ``generate`` returns::

            perf.generation(lambda streamer: model.generate(**inputs, streamer=streamer, max_new_tokens=64))

        The phases are ``prefill``, up to the first token, and ``decode``, from the first token to the end. The results
        also have the time to the first token (``ttft``), the time per output token (``tpot``), quantiles of the times
        between outputs (``itl_p50``, …), ``tokens/s``, and the counts of decode per token (``operators/token``).

        Args:
            generate: called with a hook, which it must call once for each step that produced tokens: ``hook()``, or
                ``hook(3)`` if each sequence got three. The hook has the methods ``put`` and ``end`` of transformers'
                streamers: the first ``put`` is for the prompt, and does not count as a token.
            batch: number of sequences in a call.
            setup: called before each call without being timed, for example to empty a cache; returns None.

        Raises:
            UsageError: ``generate`` or ``setup`` is not callable, ``batch`` is not a positive int, the hook was never
                called, the case is timed as a CUDA graph, or the case has already measured.
        """
        remedy = "pass a function: perf.generation(lambda hook: model.generate(x, streamer=hook))"
        refuse_uncallable("perf.generation(...)", generate, remedy)
        if setup is not None:
            refuse_uncallable("perf.generation(setup=...)", setup, remedy)
        refuse_no_count(f"perf.generation(batch={batch!r})", batch, "give the number of sequences: an int, 1 or more")
        self._refuse_phases_in_graph("perf.generation", "call", "one step of decode by itself, perf(step)")
        return self._once_a_test(Generating(generate, batch, setup))

    def compare(
        self,
        base: Callable[..., Any],
        candidate: Callable[..., Any],
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        budget_s: float | None = None,
        threshold: float | None = None,
    ) -> Comparison:
        """Compare two callables in turns, then measure ``candidate`` as ``perf(candidate, *args, **kwargs)`` does::

            def test_fused_is_faster(perf, device):
                x = torch.rand(512, 512, device=device)
                assert perf.compare(base=eager, candidate=fused, args=(x,)).verdict == "improved"

        This call is the case's one measurement: times and memory of the candidate are stored, and compared with the
        case's baseline. The comparison itself fails no test; assert the result that you require. The record contains
        the result as the facts ``compared_verdict``, ``compared_ratio``, ``compared_low_ratio`` and
        ``compared_high_ratio``.

        Some runs compare nothing: they run each case once, predict it, take turns with another commit, or repeat the
        measurement in a fresh process. In these runs the candidate is treated as by ``perf(candidate)``, and the test
        ends with this call, so check results before it. See ``perflab.compare`` for the limits of such a comparison.

        Args:
            base: the function that the candidate is compared with.
            candidate: called as ``candidate(*args, **kwargs)``, as is ``base``.
            args: positional arguments of both.
            kwargs: keyword arguments of both.
            setup: makes the arguments of each call of either function, as in ``perf(fn, setup=make)``.
            budget_s: time of the turns in seconds. None: the case's budget.
            threshold: the smallest change that counts, as a fraction: 0.05 is 5 %. None: the case's threshold.

        Raises:
            UsageError: a side is not callable or does no work, or the case has already measured.
        """
        settings = self._state.settings
        self._refuse_in_graph(setup, "perf.compare")
        budget_s = settings.budget_s if budget_s is None else budget_s
        threshold = settings.threshold if threshold is None else threshold
        sides = checked(base, candidate, args, kwargs, setup, self._device, budget_s, threshold, call="perf.compare")
        self._refuse_second()
        with awaited(*sides):
            comparison = self._way.compare(*sides, budget_s, threshold)
        self._once_a_test(sides[1])
        if comparison is None:
            raise NothingComparedError
        self.note(
            compared_verdict=str(comparison.verdict),
            compared_ratio=comparison.ratio,
            compared_low_ratio=comparison.low_ratio,
            compared_high_ratio=comparison.high_ratio,
        )
        return comparison

    def work(self, **units: float) -> None:
        """State the work of one call, such as ``perf.work(tokens=512, flops=2.1e11)``. Results then show throughput.

        A unit that starts with the name of a phase, such as ``backward_flops``, is the work of that phase only.

        Raises:
            UsageError: an amount is not a positive number.
        """
        for unit, amount in units.items():
            self._state.work[unit] = positive(
                f"perf.work({unit}=", amount, "give a positive number of units in one call"
            )

    def quote(self, source: str, *, seconds: float, **phases: float) -> None:
        """Quote a published time for the same work, such as ``perf.quote("H100, FA2", seconds=9e-6)``.

        Side-by-side tables and studies show quoted times. They are never compared with a baseline. Name a phase to
        quote its time: ``backward=6e-6``.

        Raises:
            UsageError: the source is not text, or a time is not a positive number of seconds.
        """
        if not isinstance(source, str):
            raise UsageError(f"perf.quote({source!r}, ...)", "give the source as a text: who measured it, and on what")
        in_ns = {
            name: positive(f"perf.quote({source!r}, {name}=", amount, "give a positive number of seconds", 1e9)
            for name, amount in {"seconds": seconds, **phases}.items()
        }
        self._state.quotes.append(Quote(source=source, ns=in_ns.pop("seconds"), phases_ns=in_ns))

    def reference(self, definition: Callable[..., Any], *, multiple: float | None = None) -> None:
        """State what the measured callable has to return: the result of ``definition`` with the same arguments::

            perf.reference(plain_softmax)
            perf(fast_softmax, x)

        A call on copies of the arguments is compared with it before anything is measured, and the case fails with
        ``wrong result``. ``definition`` is called with the tensors among the arguments in float64 (so are the weights
        of a module), which says what is right, and as they are: the error that it has then, times ``multiple``, is
        allowed. Arguments that it writes to are results too; others have to stay as they are. Under
        ``--perf-adversarial`` the results of processes of the candidate's own are compared with it, on fresh values.
        Predictions and A/B turns leave the check out.

        Args:
            definition: a plain function that is trusted, and works in float64; call ``perf`` as
                ``perf(fn, *args, **kwargs)``, with tensors among the arguments.
            multiple: how many times its own error is allowed. None: 2 times in 16 bit, 8 times otherwise.

        Raises:
            UsageError: ``definition`` is not callable, ``multiple`` is not positive, or the case has already measured.
        """
        refuse_uncallable("perf.reference()", definition, "pass a function: perf.reference(plain_softmax)")
        if multiple is not None:
            positive("perf.reference(multiple=", multiple, "give how many times the error is allowed, such as 2")
        if self._state.done:
            raise UsageError(f"{self._state.case}: perf.reference() after perf()", "state it before the measurement")
        self._state.reference = Reference(definition, multiple)

    def note(self, **facts: str | int | float | bool | None) -> None:
        """Store facts of the case in its record, such as ``perf.note(loss=3.21, setup_s=4.2)``.

        Each fact is a column of the case's study. The suffix of a name is its unit: ``_ns``, ``_s``, ``_bytes``,
        ``_share`` (a fraction of one), ``_ratio``, ``_per_s``. Call it before or after measuring, any number of times.
        If a name is noted twice, the last value counts.

        Raises:
            UsageError: a value is not plain data, or a name is already a column of study tables.
        """
        self._state.facts |= checked_facts(facts)
        self._refuse_facts_as_phases()

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
        """State the estimated cost of the case, and skip it if that exceeds the limits. Call it before building.

        Args:
            memory_bytes: peak memory on the case's device.
            flops: floating-point operations of one call. Its time is estimated from this machine's matmul rate.
            seconds: time of one call; takes precedence over ``flops``.
            setup_calls: number of calls before the measurement, for example to train a model.
            setup_seconds: further time before the measurement, for example to compile. Set-up counts against the
                run's total budget; the case's budget is for measuring only.
            precision: precision of most of the operations.

        Raises:
            UsageError: a number is not positive and finite; for set-up, 0 is also allowed.
            pytest.skip.Exception: the case needs more memory than is free, or more time than its budget or than is
                left of the run's total budget.
        """
        claim = claim_of(
            precision,
            memory_bytes=memory_bytes,
            flops=flops,
            seconds=seconds,
            setup_calls=setup_calls,
            setup_seconds=setup_seconds,
        )
        self._way = self._way.requires(claim)
        if self._expect is not None:
            self._expect(*claim.expected_s(self._state.matmul_flops_per_second))

    def fits(
        self,
        build: Callable[..., Any],
        *,
        sizes: Mapping[str, int],
        remedies: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """State how to build the case at other sizes, so a prediction can find the largest size that fits the GPU.

        This call takes effect after the case itself was predicted. It has no effect on a measured case::

            perf.fits(build, sizes={"batch_size": 4, "context_length": 1024}, remedies={"bf16": {"precision": "bf16"}})

        Args:
            build: ``build(**sizes, **changes)`` returns the workload to predict: a callable without arguments, or a
                dict with the phases that ``perf.step`` or ``perf.phases`` takes.
            sizes: the sizes of this case. The prediction finds the largest value of each, with the others unchanged.
                ``world_size`` is the number of ranks: of it, the prediction has the peak of a rank at 8 to 512.
            remedies: further arguments of ``build`` by the name of the remedy. They are tried if the case does not
                fit.

        Raises:
            UsageError: ``build`` is not callable, ``sizes`` is empty, a size is not a positive int, or a remedy is not
                a mapping.
        """
        self._state.exploration = exploration_of(build, sizes, remedies or {})

    @property
    def predicts(self) -> bool:
        """Whether the case is being predicted on fake tensors, which have shapes and no values.

        False in a dry run: tensors are then on CUDA, and everything that kernels would have written reads as zero.
        """
        return self._state.predicts and not self._state.settings.dry_run

    def _refuse_phases_in_graph(self, call: str, whole: str, instead: str) -> None:
        if self._state.settings.cuda_graph and not self.predicts:
            raise UsageError(
                f"{self._state.case}: {call} in a CUDA graph: a replay is the whole {whole}, without timed phases",
                f"measure {instead}; or leave cuda_graph out",
            )

    def _refuse_in_graph(self, setup: Callable[[], Any] | None, call: str) -> None:
        if setup is not None and self._state.settings.cuda_graph and not self.predicts:
            raise UsageError(
                f"{self._state.case}: {call}(setup=) in a CUDA graph: a replay repeats its calls on the same memory, "
                "and nothing can be set up between them",
                "leave cuda_graph out, or measure set-up and work together in one function",
            )

    def _refuse_facts_as_phases(self) -> None:
        for name in self._state.phases:
            if name in self._state.facts:
                raise UsageError(
                    f"perf.note({name}={self._state.facts[name]!r}): {name!r} is a phase of the case, and its column",
                    f"call the fact something else, such as noted_{name}",
                )

    def _refuse_second(self) -> None:
        if self._state.done:
            raise UsageError(
                f"{self._state.case}: perf was called twice in one case", "call perf once per test, or parametrize it"
            )

    def _once_a_test(self, workload: Workload) -> Any:
        self._refuse_second()
        self._state.phases = workload.phases
        self._refuse_facts_as_phases()
        with awaited(workload), calling(workload):
            result = self._way.of(workload)
        refuse_unfinished(self._state, result)
        return result


def device_of(item: pytest.Item, given: object) -> torch.device:
    """Return the device that a test's ``device`` fixture gives, which a project may have overridden.

    Raises:
        UsageError: the fixture gives neither a ``torch.device`` nor a device's name.
    """
    import torch

    if isinstance(given, str):  # many projects' own device fixtures return a name
        given = torch.device(given)
    if not isinstance(given, torch.device):
        raise UsageError(
            f"{item.nodeid}: the device fixture is overridden and gives {given!r}",
            "let it return a torch.device, or its name",
        )
    return given
