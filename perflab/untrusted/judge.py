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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median, quantiles

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from perflab.base.errors import UsageError
from perflab.correctness.definition import Definition, described, wider
from perflab.correctness.run import Function
from perflab.judging import interleave
from perflab.judging.interleave import TurnTime
from perflab.judging.paired import LOOKS, PairedPolicy
from perflab.judging.statistics import LEAST_PAIRS
from perflab.measure.clocks import clock
from perflab.measure.machine.devices import matmul_flops_per_second
from perflab.measurement.callables import BASE, CANDIDATE, Comparison, Limits, Taken
from perflab.processes.peer import How
from perflab.results.records import Verdict
from perflab.units import format_ns
from perflab.untrusted.messages import Entry, Role, TensorAt
from perflab.untrusted.records import Finding, Judged, Ratio, Reason
from perflab.untrusted.stranger import (
    EndedError,
    Holding,
    LooseError,
    RaisedError,
    Span,
    Stranger,
    UnfitError,
)

_SPAN_NS = 3_000_000
"""The time in nanoseconds that calls in a row should last, against which the cost of a question is small."""
_MOST_CALLS = 32
_MOST_BYTES = 1 << 28
"""Inputs of all calls of a span in bytes, at most; a single call may have more."""
_LONG_SPANS = 10
"""The length of the slower side's span, at most, in spans of the usual length; one call takes what it takes."""
_MOST_SPANS = 2
"""Spans in a turn, at most; the fastest of them counts most."""
_CHECKS = 2
"""Calls with inputs as they are drawn, for each shape, before the candidate is timed."""
_WARMING, _CONTROLS = 4, 9
"""Calls before any counts, and spans of the control that tell what a question costs."""
_ALONE = 0.25
"""The share of spans that have a single call, by chance."""
_ENOUGH = 3
"""Calls alone that are enough to compare the fastest of them: one that waits for others to be known is never fast."""
_MORE = 12
"""Further calls alone, at most, before a candidate is suspected: a busy machine delays most of them."""
_CHECK = 0.2
"""The share of calls alone that are checked, by chance. Of calls in a row one is, each time: a few pairs may decide."""
_CHECK_LONG = 0.5
"""The share of calls that are checked where one is so long that it makes a row; a check takes longer than the call."""
_SHORTEST_NS = 1.0
"""The time in nanoseconds of a call that took no longer than the question did."""
_RESOLVED_NS = 100_000
"""Differences between clocks, in nanoseconds, that a busy machine explains."""
_TOLD, _OFF_NS = 0.1, 300_000
"""A clock that tells less than this share of the time outside was replaced, if what it leaves out is longer than the
nanoseconds, and than what the rival's leaves out. Nothing is taken from that clock, so it need not be exact."""
_BEYOND_PEAK = 4.0
"""The factor by which a rate may exceed the best that this machine has shown, which may have been busy then."""


@dataclass(frozen=True)
class Source:
    """A callable for another process: where it comes from, and what is pickled of it."""

    name: str
    entry: Entry
    given: bytes = b""


@dataclass(frozen=True)
class Case:
    """The task of a candidate, and how it is judged.

    Attributes:
        definition: called on float64 copies of the inputs; returns what is right.
        plain: the definition step by step in the inputs' precision; its error makes the budget.
        draws: make_inputs(seed) -> {name: tensor}, one for each shape.
        rivals: trusted callables whose time the candidate's is compared with; the first one decides ``slower``.
        multiple: how many times plain's error is allowed; None: 2 in 16 bit, 8 otherwise, where other orders of sums
            differ by more than one order's error.
        may_change: whether the candidate may write to its inputs, and return them.
        wide: whether further calls have values that the draws do not have.
    """

    definition: Function
    plain: Function
    draws: Sequence[Callable[[int], Mapping[str, Tensor]]]
    rivals: Sequence[Source] = ()
    multiple: float | None = None
    may_change: bool = False
    wide: bool = True
    budget_s: float = 5.0
    threshold: float = 0.1


class _RefusedError(Exception):
    """Ends a judgement: the candidate is wrong or suspicious."""

    def __init__(self, finding: Finding, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.finding, self.reason, self.text = finding, reason, text


@dataclass
class _State:
    checked: int = 0
    calls: int = 0
    notes: list[str] = field(default_factory=list)
    ratios: list[Ratio] = field(default_factory=list)
    operators: dict[str, int] = field(default_factory=dict)
    as_rival: list[str] = field(default_factory=list)
    threads: int = 0
    precision: str = ""


def judge(candidate: Source, case: Case, holding: Holding) -> Judged:
    """Judge a candidate. Whatever it does becomes a verdict; errors of the trusted side are raised.

    Raises:
        PerflabError: the definition, the inputs or a rival cannot be used, or this system cannot hold a process.
    """
    state = _State()
    finding, reason, text = Finding.OK, Reason.NONE, ""
    try:
        _Judge(case, holding, state).run(candidate)
        slowest = next(iter(state.ratios), None)
        finding = slowest.finding if slowest is not None else Finding.UNKNOWN if case.rivals else Finding.OK
        reason = Reason.TIME if finding is Finding.UNKNOWN else Reason.NONE
        if not state.checked:  # the definition is NaN for all inputs
            finding, reason = Finding.UNKNOWN, Reason.UNDEFINED
    except _RefusedError as refused:
        finding, reason, text = refused.finding, refused.reason, refused.text
    return Judged(name=candidate.name, finding=finding, reason=reason, text=text, **vars(state))


@contextlib.contextmanager
def _refusing(reason: Reason = Reason.RAISED, *, called: bool = True) -> Iterator[None]:
    """Turn what a candidate's process does into the end of the judgement.

    Args:
        reason: what an error means. A first call may compile, or raise as any other.
        called: whether the candidate is called, and not only imported.
    """
    try:
        yield
    except RaisedError as error:
        why = Reason.RAISED if called and not error.told.of_compiler else reason
        why = Reason.OUT_OF_MEMORY if error.told.out_of_memory else why
        raise _RefusedError(Finding.WRONG, why, error.told.traceback or str(error)) from None
    except EndedError as error:
        ending = error.ending
        why = Reason.HUNG if ending.how in (How.HUNG, How.OUT_OF_TIME) else Reason.CRASHED
        lines = [f"its process {ending.told}", *ending.last_lines(20)]
        raise _RefusedError(Finding.WRONG, why, "\n".join(lines)) from None
    except LooseError as error:
        raise _RefusedError(Finding.SUSPICIOUS, Reason.LOOSE, str(error)) from None
    except UnfitError as error:
        raise _RefusedError(Finding.WRONG, Reason.FORM, str(error)) from None


class _Judge:
    """The course of one judgement."""

    def __init__(self, case: Case, holding: Holding, state: _State) -> None:
        self.case, self._holding, self._state = case, holding, state
        self._device = torch.device(holding.device)
        self._draws = [self.fresh(draw) for draw in case.draws]
        self._definition = Definition(case.definition, case.plain, self._draws[0], case.multiple)

    def run(self, source: Source) -> None:
        """Judge the candidate, and end by an exception if anything speaks against it."""
        with contextlib.ExitStack() as processes:
            with _refusing(Reason.UNBUILT, called=False):
                candidate = processes.enter_context(Stranger(Role.CANDIDATE, source.entry, self._holding, source.given))
            self._state.notes += candidate.ready.missing
            with _refusing(Reason.UNBUILT):
                for draw in self.case.draws:  # what compiles at a call, compiles now
                    self.span(candidate, [self.fresh(draw)])
                self._state.notes += candidate.narrow()
            for kind, inputs in self._planned():
                with _refusing():
                    span = self.span(candidate, [inputs])
                self.check(candidate, span, [inputs], 0, kind)
            self._look(candidate, self._raced(candidate, processes) if self.case.rivals else [])

    def _raced(self, candidate: Stranger, processes: contextlib.ExitStack) -> list[Stranger]:
        """Time the candidate against each rival, and return those rivals whose processes run."""
        returns = max(1, len(self._definition.outputs))
        control = processes.enter_context(Stranger(Role.CONTROL, Entry(), self._holding, returns=returns))
        rivals = []
        for one in self.case.rivals:
            try:
                rivals.append(processes.enter_context(Stranger(Role.RIVAL, one.entry, self._holding, one.given)))
                self._race(candidate, rivals[-1], control, one.name)
            except (RaisedError, EndedError, UnfitError) as error:  # of what is trusted: a candidate's are refused
                self.note(f"{one.name} cannot be timed: {str(error).splitlines()[0]}")
        return rivals

    def note(self, text: str) -> None:
        """Note what is not certain, once."""
        if text not in self._state.notes:
            self._state.notes.append(text)

    def fresh(self, draw: Callable[[int], Mapping[str, Tensor]]) -> dict[str, Tensor]:
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

    def _planned(self) -> list[tuple[tuple[int, int], dict[str, Tensor]]]:
        """Return inputs of the calls that are all checked, in random order, each with its kind.

        A kind is the numbers of a shape and of a change of values: 0 for values as they are drawn.
        """
        planned = []
        for number, draw in enumerate(self.case.draws):
            planned += [((number, 0), self.fresh(draw)) for _ in range(_CHECKS)]
            if self.case.wide:
                changes = enumerate(wider(self.fresh(draw)), 1)
                planned += [((number, change), one) for change, one in changes if self._definition.takes(one)]
        secrets.SystemRandom().shuffle(planned)
        return planned

    def span(self, process: Stranger, sets: Sequence[Mapping[str, Tensor]]) -> Span:
        """Make calls with these inputs in a process, and count those of the candidate."""
        span = process.span([list(one.values()) for one in sets])
        if process.role is Role.CANDIDATE:
            self._state.calls += len(sets)
        return span

    # --- right ----------------------------------------------------------------------------------------------

    def check(
        self, process: Stranger, span: Span, sets: Sequence[Mapping[str, Tensor]], call: int, kind: tuple[int, int]
    ) -> None:
        """Compare a call's results with the definition's, and its inputs with what was given."""
        inputs, told = sets[call], span.outputs[call]
        names = self._definition.outputs
        if len(told) != len(names):
            raise _RefusedError(Finding.WRONG, Reason.FORM, f"it returned {len(told)} outputs, wanted {len(names)}")
        with _refusing():
            got = {name: process.result(one) for name, one in zip(names, told, strict=True)}
            if not self.case.may_change:
                self._refuse_changes(process, inputs, told, call)
        wrong = self._definition.wrong(inputs, got, kind, wholly=kind[1] > 0)  # changed values may have no answer
        if wrong is None:
            return
        self._state.checked += 1
        if wrong:
            text = f"call {self._state.calls - len(sets) + call + 1}, inputs {described(inputs)}:\n{wrong}"
            raise _RefusedError(Finding.WRONG, Reason.RESULT, text)

    def _refuse_changes(
        self, process: Stranger, inputs: Mapping[str, Tensor], told: Sequence[TensorAt | None], call: int
    ) -> None:
        if self._device.type == "cpu" and (changed := process.changed(list(inputs), list(inputs.values()), call)):
            text = f"it changed {', '.join(changed)}; inputs must come back bit by bit"
            raise _RefusedError(Finding.WRONG, Reason.INPUTS_CHANGED, text)
        if any(one is not None and one.is_plain and process.lies_in_inputs(one) for one in told):
            text = "an output lies in the memory of an input"
            raise _RefusedError(Finding.WRONG, Reason.INPUTS_RETURNED, text)

    # --- time -----------------------------------------------------------------------------------------------

    def _race(self, candidate: Stranger, rival: Stranger, control: Stranger, name: str) -> None:
        """Time the candidate against a rival in turns, and keep the ratio; checks fall among the timed calls."""
        with _one_thread():  # others of this process would spin on the cores of the two
            race = _Race(self, candidate, rival, control)
            comparison = race.run()
            self._state.ratios.append(
                Ratio(
                    rival=name,
                    value=comparison.ratio,
                    low=comparison.low_ratio,
                    high=comparison.high_ratio,
                    candidate_ns=comparison.candidate_ns,
                    rival_ns=comparison.base_ns,
                    pairs=comparison.pairs,
                    finding=_finding_of(comparison, self.case.threshold),
                )
            )
            race.refuse_bent_time()
        if _is_too_short(comparison):
            self.note("calls were as short as what the questions cost, and have no time")
        else:
            self._refuse_beyond_floor(comparison.candidate_ns, comparison.base_ns)

    def _refuse_beyond_floor(self, call_ns: float, rival_ns: float) -> None:
        """Refuse a time in which this hardware cannot do the operation; what a trusted callable does, it can do."""
        floor_ns = min(self._floor_ns(), rival_ns)
        if call_ns < floor_ns / _BEYOND_PEAK:
            raise _RefusedError(
                Finding.SUSPICIOUS,
                Reason.FLOOR,
                f"a call takes {format_ns(call_ns)}, and the product in it {format_ns(floor_ns)} at the best rate that "
                "this machine has shown",
            )

    def _floor_ns(self) -> float:
        """Return the time of the definition's product at the best rate; 0 without one, or with several.

        A chain of products may be done in another order with fewer operations.
        """
        from perflab.untrusted.worker import noted_operators

        inputs = self._draws[0]
        with FlopCounterMode(display=False) as counter:
            seen = noted_operators(lambda: self.case.plain(*inputs.values()))
        counts = counter.get_flop_counts().get("Global", {})
        dtypes = {one.dtype for one in inputs.values() if one.is_floating_point()}
        products = [number for name, number in seen.items() if any(one in name for one in ("mm", "conv", "attention"))]
        if len(counts) != 1 or len(dtypes) != 1 or sum(products) != 1:
            return 0.0
        return 1e9 * float(counter.get_total_flops()) / matmul_flops_per_second(self._device, dtypes.pop())

    def _look(self, candidate: Stranger, rivals: Sequence[Stranger]) -> None:
        """Record what a call runs. Its process tells that, so nothing is judged by it."""
        with contextlib.suppress(RaisedError, EndedError, UnfitError):
            sets = [self._draws[0]]
            self.span(candidate, sets)
            looked = candidate.look()
            state = self._state
            state.operators, state.threads, state.precision = looked.operators, looked.threads, looked.precision
            for rival in rivals[:1]:
                self.span(rival, sets)
                theirs = rival.look().operators
                state.as_rival = sorted(theirs.keys() & looked.operators.keys() - _PLAIN_OPERATORS)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Race:
    """A candidate and a rival in turns."""

    def __init__(self, judge: _Judge, candidate: Stranger, rival: Stranger, control: Stranger) -> None:
        self._judge, self._case = judge, judge.case
        self._sides = {BASE: rival, CANDIDATE: candidate}
        self._control = control
        self._draw = secrets.SystemRandom()
        self._calls = self._count_calls()
        self._cost_ns = {number: self._control_ns(number) for number in {1, self._calls}}
        self._alone: dict[str, list[float]] = {name: [] for name in self._sides}
        self._among: dict[str, list[float]] = {name: [] for name in self._sides}
        self._spans_of: dict[str, list[tuple[float, Span]]] = {name: [] for name in self._sides}
        """The spans of each side, each after its nanoseconds without the cost of the question."""

    def run(self) -> Comparison:
        """Take pairs of turns until the verdict is certain or the time is over."""
        budget_ns = 1e9 * self._case.budget_s
        policy = PairedPolicy(self._case.threshold, looks=(LEAST_PAIRS, *LOOKS), pairs_are="pairs of turns")
        taken = Taken(policy)
        began_ns = clock.read_ns()
        while taken.wants_more(clock.read_ns() - began_ns, budget_ns):
            found: dict[str, list[TurnTime]] = {name: [] for name in self._sides}
            for place in interleave.places(list(self._sides), 1, (), self._draw):
                found[place.side].append(self._turn(place.side))
            taken.turns.append(found)
        return taken.concluded(Limits(budget_ns, self._case.threshold))

    def _sets(self, number: int) -> list[dict[str, Tensor]]:
        return [self._judge.fresh(self._case.draws[0]) for _ in range(number)]

    def _count_calls(self) -> int:
        """Return how many calls a span has: enough for _SPAN_NS, if their inputs fit."""
        spent: dict[Role, list[int]] = {}
        for _ in range(_WARMING):
            sets = self._sets(1)
            for process in (*self._sides.values(), self._control):
                spent.setdefault(process.role, []).append(self._timed(process, sets).ns)
        size = sum(one.untyped_storage().nbytes() for one in sets[0].values())
        least = [max(1.0, min(spent[role]) - min(spent[Role.CONTROL])) for role in (Role.CANDIDATE, Role.RIVAL)]
        call_ns = min(least)
        # What is far slower must not spend the time for all pairs in a few of them.
        wanted = min(_SPAN_NS / call_ns, _LONG_SPANS * _SPAN_NS / max(least))
        self._spans = max(1, min(_MOST_SPANS, math.ceil(interleave.TURN_NS / max(_SPAN_NS, call_ns))))
        return max(1, min(_MOST_CALLS, int(wanted), _MOST_BYTES // max(1, size)))

    def _control_ns(self, number: int) -> float:
        sets = self._sets(number)
        # The least: a question that a busy machine delays would leave too little for the calls.
        return min(self._judge.span(self._control, sets).ns for _ in range(_CONTROLS))

    def _turn(self, side: str) -> TurnTime:
        """Time spans of fresh calls; now and then a call alone comes before, and by chance a call is checked."""
        if self._calls > 1 and self._draw.random() < _ALONE:
            self._alone[side].append(self._call_ns(side, 1))
        found_ns = [self._call_ns(side, self._calls) for _ in range(self._spans)]
        self._among[side].append(min(found_ns))
        return TurnTime(min(found_ns), fmean(found_ns), self._calls * self._spans)

    def _call_ns(self, side: str, number: int) -> float:
        """Return the time of one call, of so many in a row with fresh inputs, without what the questions cost."""
        process, sets = self._sides[side], self._sets(number)
        span = self._timed(process, sets)
        work_ns = span.ns - self._cost_ns[number]
        self._spans_of[side].append((work_ns, span))
        share = 1.0 if number > 1 else _CHECK if self._calls > 1 else _CHECK_LONG
        if side == CANDIDATE and self._draw.random() < share:
            self._judge.check(process, span, sets, self._draw.randrange(number), (0, 0))
        return max(_SHORTEST_NS, work_ns / number)

    def _timed(self, process: Stranger, sets: Sequence[Mapping[str, Tensor]]) -> Span:
        if process.role is Role.CANDIDATE:
            with _refusing():
                return self._judge.span(process, sets)
        return self._judge.span(process, sets)

    def refuse_bent_time(self) -> None:
        """Refuse a candidate whose clock tells another time, or that is faster among calls than a call alone can be.

        The rival, which is trusted, shows by how much a call alone is slower on this machine.
        """
        untold_ns = {side: [work_ns - span.own_ns for work_ns, span in spans] for side, spans in self._spans_of.items()}
        told = [span.own_ns / max(work_ns, float(_OFF_NS)) for work_ns, span in self._spans_of[CANDIDATE]]
        share = share_of_a_replaced_clock(told, untold_ns[CANDIDATE], untold_ns[BASE])
        if share is not None:
            text = f"its own clock tells {share:.1%} of the time outside"
            raise _RefusedError(Finding.SUSPICIOUS, Reason.CLOCK, text)
        if (over_ns := median(span.own_ns - span.ns for _, span in self._spans_of[CANDIDATE])) > _OFF_NS:
            text = f"its own clock tells {format_ns(over_ns)} more than the clock outside"
            raise _RefusedError(Finding.SUSPICIOUS, Reason.CLOCK, text)
        if self._calls > 1 and median(self._among[CANDIDATE]) < _RESOLVED_NS:
            self._judge.note(f"calls of less than {format_ns(_RESOLVED_NS)} may be computed ahead, several at once")
        if self._calls > 1:
            self._refuse_calls_ahead()

    def _refuse_calls_ahead(self) -> None:
        """Refuse a candidate whose fastest call alone is slower than calls in a row, by more than the rival's are."""
        for side, alone in self._alone.items():
            alone += [self._call_ns(side, 1) for _ in range(_ENOUGH - len(alone))]
        alone = self._alone[CANDIDATE]
        among_ns = min((one for one in self._among[CANDIDATE] if one > _SHORTEST_NS), default=math.inf)
        for left in reversed(range(_MORE + 1)):
            # A busy machine delays a call alone, which the rival shows; calls in a row share one delay.
            extra_ns = max(0.0, median(self._alone[BASE]) - min(self._among[BASE]))
            if min(alone) <= 2 * among_ns + 3 * extra_ns + _RESOLVED_NS:
                return
            for side in self._alone if left else ():
                self._alone[side].append(self._call_ns(side, 1))
        raise _RefusedError(
            Finding.SUSPICIOUS,
            Reason.AHEAD,
            f"a call alone takes {format_ns(min(alone))} at least, and one of {self._calls} {format_ns(among_ns)}: "
            "does it compute several calls at once?",
        )


def share_of_a_replaced_clock(
    told: Sequence[float], untold_ns: Sequence[float], untold_of_rival_ns: Sequence[float]
) -> float | None:
    """Return the share of the time outside that a candidate's own clock tells, if it was replaced; None if not.

    Args:
        told: that share in each span of the candidate.
        untold_ns: the nanoseconds of each span that the candidate's clock does not tell.
        untold_of_rival_ns: the same of the trusted rival: what a busy machine adds to a span, however short it is.
    """
    _, _, high = quantiles(told, n=4)
    least_ns, _, _ = quantiles(untold_ns, n=4)
    _, _, explained_ns = quantiles(untold_of_rival_ns, n=4)
    return high if high < _TOLD and least_ns > 3 * explained_ns + _OFF_NS else None


def _is_too_short(comparison: Comparison) -> bool:
    """Whether a side's calls take no longer than the question that asks for them, so that they have no time."""
    return min(comparison.candidate_ns, comparison.base_ns) <= _SHORTEST_NS


def _finding_of(comparison: Comparison, threshold: float) -> Finding:
    """Return what a comparison says of a candidate: only certainly slower is ``slower``, and ``ok`` is certain too."""
    if _is_too_short(comparison):
        return Finding.UNKNOWN
    if comparison.verdict is Verdict.REGRESSED:
        return Finding.SLOWER
    return Finding.OK if comparison.high_ratio <= 1 + threshold else Finding.UNKNOWN


_PLAIN_OPERATORS = frozenset(("aten::view", "aten::empty.memory_format", "aten::t", "aten::transpose.int")) | {
    *("aten::reshape", "aten::_to_copy", "aten::clone", "aten::add.Tensor", "aten::mul.Tensor"),
}
"""Operators that any code calls, and that say nothing about whose work is done."""
