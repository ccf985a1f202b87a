"""Judges a candidate that runs in a process of its own: right, at random and in secret; and its time, from outside.

- The values of a call's inputs are drawn here from random numbers of the system, and reach the process while it is
  stopped. A result that was kept, from whatever it was kept by, is wrong for them.
- A span begins when the process is let go, and ends when it is stopped. Outputs are read from its memory while it is
  stopped. So nothing can be computed before or after, by whatever thread or stream, and no clock of the process counts.
- Which calls are checked is drawn at random after they were made. What is timed and what is checked are the same
  questions.

Times are set against those of a trusted rival, in turns (``judging/interleave.py``); a control that does nothing tells
what the questions cost.
"""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import msgspec
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from perflab.base.errors import UsageError
from perflab.correctness.definition import Definition, described, wider
from perflab.correctness.run import Function
from perflab.measure.clocks import clock
from perflab.measure.machine.devices import matmul_flops_per_second, synchronize
from perflab.units import format_ns
from perflab.untrusted.errors import EndedError, RaisedError, RefusedError, UnfitError, refusing
from perflab.untrusted.messages import PLAINLY, Looked, Manner, Role
from perflab.untrusted.race import Race, Side, finding_of, is_too_short, one_thread
from perflab.untrusted.records import Finding, Judged, Ratio, Reason
from perflab.untrusted.stranger import Holding, Source, Span, Stranger, nothing

_CHECKS = 2
"""Calls with inputs as they are drawn, for each shape, before the candidate is timed."""
_BEYOND_PEAK = 4.0
"""The factor by which a rate may exceed the best that this machine has shown, which may have been busy then."""
_ROUNDED = 1e-12
"""A gradient in float64, of a random upstream one, that may be no more than rounding."""
_COPYING_NS = 300_000_000
"""The nanoseconds for which copies are made, of which the fastest shows the rate of memory, until one acquits."""


@dataclass(frozen=True)
class Terms:
    """The rules of a judgement that do not depend on the task, and the time that it may take."""

    multiple: float | None = None
    """How many times plain's error is allowed; None: 2 in 16 bit, 8 otherwise, where other orders of sums differ by
    more than one order's error."""
    may_change: bool = False
    """Whether the candidate may write to its inputs, and return them."""
    may_return: bool = False
    """Whether it may return them unchanged, or views of them."""
    wide: bool = True
    """Whether further calls have values that the draws do not have."""
    budget_s: float = 5.0
    """The time in seconds of the turns with one rival."""
    threshold: float = 0.1
    """The slowdown that counts, as a share."""
    pairs: int = 1
    """The pairs of turns, at least."""
    in_a_row: int | None = None
    """The calls that are timed together, once a turn; None: as many as last for some milliseconds, in some spans."""


@dataclass(frozen=True)
class Case:
    """The task of a candidate."""

    definition: Function
    """Called on float64 copies of the inputs; returns what is right."""
    plain: Function
    """The definition step by step in the inputs' precision; its error makes the budget."""
    draws: Sequence[Callable[[int], Mapping[str, Tensor]]]
    """make_inputs(seed) -> {name: tensor}, one for each shape."""
    rivals: Sequence[Source] = ()
    """Trusted callables whose time the candidate's is compared with; the first one decides ``slower``."""
    terms: Terms = Terms()


_OUTLASTS, _OUTLASTS_NS = 1.05, 100_000
"""The factor and the nanoseconds by which a device may seem to work for longer than the span of the clock outside: its
clock and the host's are matched anew in each recording, and drift."""


class Witness(Protocol):
    """A judge of results: a definition (``correctness.definition``), or another process of its own."""

    @property
    def outputs(self) -> tuple[str, ...] | None:
        """The names of the results; None if there may be any number."""

    def takes(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether there is an answer for these inputs."""

    def wrong(
        self, inputs: Mapping[str, Tensor], got: Mapping[str, Tensor | None], kind: Hashable, *, wholly: bool
    ) -> str | None:
        """Return what is wrong with results, empty if nothing is; None where there is no answer."""


def judge(candidate: Source, case: Case, holding: Holding) -> Judged:
    """Judge a candidate. Whatever it does becomes a verdict; errors of the trusted side are raised.

    Raises:
        PerflabError: the definition, the inputs or a rival cannot be used, or this system cannot hold a process.
    """
    example, *_ = [fresh(draw) for draw in case.draws]
    definition = Definition(case.definition, case.plain, example, case.terms.multiple)
    one, reason, text = Judge(definition, case.draws, case.terms, holding), Reason.NONE, ""
    try:
        with contextlib.ExitStack() as processes:
            process = one.begin(candidate, processes)
            one.look(process, _raced(one, case, process, processes) if case.rivals else [])
        finding = one.ratios[0].finding if one.ratios else Finding.UNKNOWN if case.rivals else Finding.OK
        if not one.checked:  # the definition is NaN for all inputs
            finding, reason = Finding.UNKNOWN, Reason.UNDEFINED
        elif finding is Finding.UNKNOWN:
            reason = Reason.TIME
    except RefusedError as refused:
        finding, reason, text = refused.finding, refused.reason, refused.text
    return Judged(
        name=candidate.name,
        finding=finding,
        reason=reason,
        text=text,
        ratios=one.ratios,
        checked=one.checked,
        calls=one.calls,
        as_rival=one.as_rival,
        notes=one.notes,
        **msgspec.structs.asdict(one.looked),
    )


def fresh(draw: Callable[[int], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Draw inputs from a seed that nobody knows.

    Raises:
        UsageError: the function raises, or returns something else than dense tensors by name.
    """
    remedy = "return {name: tensor} for a seed, in the order of the candidate's arguments"
    try:
        drawn = dict(draw(secrets.randbits(62)))
    except Exception as error:
        raise UsageError(f"the inputs' function raised {type(error).__name__}: {error}", remedy) from error
    for name, one in drawn.items():
        if not isinstance(one, Tensor) or one.layout is not torch.strided or one.is_nested:
            raise UsageError(f"input {name} is a {type(one).__name__}, not a dense tensor", remedy)
    return {name: one.detach() for name, one in drawn.items()}


class Judge:
    """The course of one judgement."""

    def __init__(
        self,
        witness: Witness,
        draws: Sequence[Callable[[int], Mapping[str, Tensor]]],
        terms: Terms,
        holding: Holding,
    ) -> None:
        self.draws, self.terms, self.holding = draws, terms, holding
        self.witness = witness
        self.checked, self.calls = 0, 0
        self.notes: list[str] = []
        self.ratios: list[Ratio] = []
        self.as_rival: list[str] = []
        self.looked = Looked()

    def begin(self, source: Source, processes: contextlib.ExitStack) -> Stranger:
        """Start the candidate, let it compile, and check a call of every kind.

        Raises:
            RefusedError: something speaks against it.
        """
        with refusing(Reason.UNBUILT, called=False):
            candidate = processes.enter_context(Stranger(Role.CANDIDATE, source, self.holding))
        self.notes += candidate.ready.missing
        with refusing(Reason.UNBUILT):
            for draw in self.draws:  # what compiles at a call, compiles now
                self.span(candidate, [fresh(draw)], Reason.UNBUILT)
            self.notes += candidate.narrow()
        for kind in secrets.SystemRandom().sample(self.kinds, len(self.kinds)):
            self.probe(candidate, kind)
        return candidate

    def sets(self, number: int) -> list[dict[str, Tensor]]:
        """Draw inputs of the first shape for so many calls."""
        return [fresh(self.draws[0]) for _ in range(number)]

    def note(self, text: str) -> None:
        """Note what is not certain, once."""
        if text not in self.notes:
            self.notes.append(text)

    @cached_property
    def kinds(self) -> list[tuple[int, int]]:
        """The kinds of calls that are all checked: the number of a shape, and of a change of values; 0 for none."""
        kinds = []
        for number, draw in enumerate(self.draws):
            changes = range(1, 1 + len(wider(fresh(draw)))) if self.terms.wide else ()
            kinds += [(number, change) for change in (*[0] * _CHECKS, *changes)]
        return kinds

    def probe(self, candidate: Stranger, kind: tuple[int, int]) -> None:
        """Make a call of a kind that is not timed, and check it; none where the definition takes no such values."""
        inputs = fresh(self.draws[kind[0]])
        if kind[1]:
            inputs = next(iter(wider(inputs)[kind[1] - 1 :]), {})
            if not inputs or not self.witness.takes(inputs):
                return
        self.check(candidate, self.span(candidate, [inputs]), [inputs], 0, kind)

    def span(
        self,
        process: Side,
        sets: Sequence[Mapping[str, Tensor]],
        reason: Reason = Reason.RAISED,
    ) -> Span:
        """Make calls with these inputs in a process; count those of the candidate, and end by what it does instead."""
        is_candidate = process.role is Role.CANDIDATE
        with refusing(reason) if is_candidate else contextlib.nullcontext():
            span = process.span([list(one.values()) for one in sets])
        self.calls += len(sets) * is_candidate
        return span

    # --- right ----------------------------------------------------------------------------------------------

    def check(
        self, process: Stranger, span: Span, sets: Sequence[Mapping[str, Tensor]], call: int, kind: tuple[int, int]
    ) -> None:
        """Compare a call's results with the definition's, and its inputs with what was given."""
        inputs, told = sets[call], [one for one in span.outputs[call] if one is not None]
        names = self.witness.outputs or tuple(map(str, range(len(told))))
        if len(told) != len(names):
            raise RefusedError(Reason.FORM, f"it returned {len(told)} outputs, wanted {len(names)}")
        terms = self.terms
        with refusing():
            got = {name: process.result(one) for name, one in zip(names, told, strict=True)}  # on the host
            changed = [] if terms.may_change else process.changed(inputs, call)
            may_be_theirs = [] if terms.may_change or terms.may_return else [one for one in told if not one.kind]
            is_theirs = any(map(process.lies_in_inputs, may_be_theirs))
        if changed:
            text = f"it changed {', '.join(changed)}; inputs must come back bit by bit"
            raise RefusedError(Reason.INPUTS_CHANGED, text)
        if is_theirs:
            text = "an output lies in the memory of an input"
            raise RefusedError(Reason.INPUTS_RETURNED, text)
        wrong = self.witness.wrong(inputs, got, kind, wholly=kind[1] > 0)  # changed values may have no answer
        if wrong is None:
            return
        self.checked += 1
        if wrong:
            text = f"call {self.calls - len(sets) + call + 1}, inputs {described(inputs)}:\n{wrong}"
            raise RefusedError(Reason.RESULT, text)

    def look(self, candidate: Stranger, rivals: Sequence[Stranger] = ()) -> None:
        """Record what a call runs. Its process tells that, so it may be accused by it, and is not acquitted."""
        has_cuda = torch.device(self.holding.device).type == "cuda"
        for how in (Manner(records=True), PLAINLY):  # one that has a profiler of its own cannot be recorded
            try:
                self.calls += 1
                span = candidate.span([list(one.values()) for one in self.sets(1)], how)
                self.looked = candidate.look()
                refuse_work_outside(self.looked.device_ns, span.ns)
                break
            except (RaisedError, EndedError, UnfitError) as error:
                if how is PLAINLY:
                    self.note(f"what a call runs is not known: {str(error).splitlines()[0]}")
        with contextlib.suppress(RaisedError, EndedError, UnfitError):
            for rival in rivals[:1]:
                rival.span([list(one.values()) for one in self.sets(1)], Manner(records=True))
                mine, theirs = self.looked, rival.look()
                both = theirs.operators.keys() & mine.operators.keys() | theirs.kernels.keys() & mine.kernels.keys()
                self.as_rival = sorted(both - _PLAIN_OPERATORS)
        if has_cuda and self.looked.device_ns is None:
            self.note("the profiler saw no work of the device, so its span is not compared with the clock outside")


# --- time ---------------------------------------------------------------------------------------------------


def _raced(one: Judge, case: Case, candidate: Stranger, processes: contextlib.ExitStack) -> list[Stranger]:
    """Time the candidate against each rival, and return those rivals whose processes run."""

    def drawn() -> dict[str, Tensor]:
        return {name: tensor.to(one.holding.device) for name, tensor in fresh(case.draws[0]).items()}

    control_of = nothing(one.holding.device, max(1, len(one.witness.outputs or ())))
    control = processes.enter_context(Stranger(Role.CONTROL, control_of, one.holding))
    rivals = []
    for source in case.rivals:
        try:
            rival = processes.enter_context(Stranger(Role.RIVAL, source, one.holding))
            rivals.append(rival)
            with one_thread():
                race = Race(one, candidate, rival, control)
                comparison = race.run()
                ratio = Ratio(
                    rival=source.name,
                    value=comparison.ratio,
                    low=comparison.low_ratio,
                    high=comparison.high_ratio,
                    candidate_ns=comparison.candidate_ns,
                    rival_ns=comparison.base_ns,
                    pairs=comparison.pairs,
                    finding=finding_of(comparison, one.terms.threshold),
                )
                one.ratios.append(ratio)
                race.refuse_bent_time()
            if is_too_short(comparison):
                one.note("calls were as short as what the questions cost, and have no time")
                continue
            refuse_beyond_hardware(case.plain, drawn, comparison.candidate_ns, comparison.base_ns)
        except (RaisedError, EndedError, UnfitError) as error:  # of what is trusted: a candidate's are refused
            one.note(f"{source.name} cannot be timed: {str(error).splitlines()[0]}")
    return rivals


def refuse_beyond_hardware(
    plain: Function, draw: Callable[[], Mapping[str, Tensor]], call_ns: float, rival_ns: float
) -> None:
    """Refuse a call that is faster than this machine can be.

    Args:
        plain: the function that the call has to compute.
        draw: draws inputs of such a call, by name, on its device.
        call_ns: the time of a call in nanoseconds.
        rival_ns: the time of what is trusted: what that does, this hardware can do.
    """
    enough_ns = _BEYOND_PEAK * call_ns
    if enough_ns >= rival_ns or not (inputs := draw()):
        return
    device = next(iter(inputs.values())).device
    moving_ns = _moving_ns(least_bytes(plain, inputs, draw()), device, enough_ns)
    for work, least_ns in (("product", product_ns(plain, inputs)), ("bytes", moving_ns)):
        if enough_ns < least_ns:
            text = f"a call takes {format_ns(call_ns)}, and its {work} {format_ns(least_ns)} at the best rate that "
            raise RefusedError(Reason.FLOOR, text + "this machine has shown")


def product_ns(plain: Function, inputs: Mapping[str, Tensor]) -> float:
    """Return the time of a function's product at the best rate, in nanoseconds; 0 without one, or with several.

    A chain of products may be done in another order with fewer operations.
    """
    from perflab.untrusted.worker import noted_operators

    with FlopCounterMode(display=False) as counter:
        seen = noted_operators(lambda: plain(*(one.clone() for one in inputs.values())))
    counts = counter.get_flop_counts().get("Global", {})
    forms = {(one.device, one.dtype) for one in inputs.values() if one.is_floating_point()}
    products = [number for name, number in seen.items() if any(one in name for one in ("mm", "conv", "attention"))]
    if len(counts) != 1 or len(forms) != 1 or sum(products) != 1:
        return 0.0
    return 1e9 * float(counter.get_total_flops()) / matmul_flops_per_second(*forms.pop())


def least_bytes(plain: Function, inputs: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> int:
    """Return the number of bytes that any code of a function has to read and write.

    Written are results that depend on the inputs, other than zero, which memory fresh from the system has. Read are
    values of inputs whose gradient is not zero in float64; none where the function has no gradient.

    Args:
        plain: the function.
        inputs: its inputs, by name.
        others: another draw of them.
    """
    found, elsewhere = (_listed(plain(*(one.clone() for one in each.values()))) for each in (inputs, others))
    alike = [_stored(one) for one in found], [_stored(one) for one in elsewhere]
    size = sum(
        int(((one != other) & (one != 0)).sum()) * result.element_size()
        for one, other, result in zip(*alike, found, strict=False)
        if one.shape == other.shape
    )
    with contextlib.suppress(Exception):  # a function without gradients, or not of float64
        leaves = [one.double().requires_grad_() if one.is_floating_point() else one for one in inputs.values()]
        roots = [one for one in _listed(plain(*(one.clone() for one in leaves))) if one.requires_grad]
        wanted = [one for one in leaves if one.requires_grad]
        upstream = [torch.randn_like(one) for one in roots]
        gradients = iter(torch.autograd.grad(roots, wanted, upstream, allow_unused=True))
        for one in inputs.values():
            gradient = next(gradients) if one.is_floating_point() else None
            if gradient is not None:
                used = int((gradient.abs() > _ROUNDED).sum()) * one.element_size()
                size += min(used, one.untyped_storage().nbytes())
    return size


def _stored(one: Tensor) -> Tensor:
    """Return the elements of a result that have memory of their own, in a dtype that can be compared."""
    one = one.detach()[tuple(slice(None) if stride else slice(0, 1) for stride in one.stride())]
    return one.to(torch.complex128 if one.is_complex() else torch.float64)


def _moving_ns(size: int, device: torch.device, enough_ns: float) -> float:
    """Return the time of a cached copy that moves so many bytes, in nanoseconds: the best, or one that is enough."""
    source = torch.ones(size // 2, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best_ns, began_ns = math.inf if size else 0.0, clock.read_ns()
    while best_ns > enough_ns and clock.read_ns() - began_ns < _COPYING_NS:
        for threads in (contextlib.nullcontext(), one_thread()):  # on a busy machine many wait for each other
            with threads:
                copy_ns = clock.read_ns()
                target.copy_(source)
                synchronize(device)
                best_ns = min(best_ns, clock.read_ns() - copy_ns)
    return best_ns


def _listed(returned: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [returned] if isinstance(returned, Tensor) else list(returned)


def refuse_work_outside(device_ns: int | None, span_ns: int) -> None:
    """Refuse a candidate whose device has worked for longer than a span that has the call, its inputs and its results.

    Args:
        device_ns: from the first work on the device to the last, in nanoseconds; None if the profiler saw none.
        span_ns: the span of the same call by the clock outside.
    """
    if device_ns is not None and device_ns > _OUTLASTS * span_ns + _OUTLASTS_NS:
        text = f"its device works for {format_ns(device_ns)} in a call of {format_ns(span_ns)} by the clock outside"
        raise RefusedError(Reason.CLOCK, text)


_PLAIN_OPERATORS = frozenset(("aten::view", "aten::empty.memory_format", "aten::t", "aten::transpose.int")) | {
    *("aten::reshape", "aten::_to_copy", "aten::clone", "aten::add.Tensor", "aten::mul.Tensor"),
}
"""Operators that any code calls, and that say nothing about whose work is done."""
