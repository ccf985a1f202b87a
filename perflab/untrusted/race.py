"""A candidate and a rival in turns: how long each takes, and whether the candidate's time can be believed."""

from __future__ import annotations

import contextlib
import math
import secrets
from collections.abc import Iterator, Sequence
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from perflab.judging import interleave
from perflab.judging.interleave import TurnTime
from perflab.judging.paired import LOOKS, PairedPolicy
from perflab.judging.statistics import LEAST_PAIRS
from perflab.measure.clocks import clock
from perflab.measurement.callables import BASE, CANDIDATE, Comparison, Limits, Taken
from perflab.results.records import Verdict
from perflab.units import format_ns
from perflab.untrusted.errors import RefusedError
from perflab.untrusted.messages import Role
from perflab.untrusted.records import Finding, Reason
from perflab.untrusted.stranger import Span, Stranger

if TYPE_CHECKING:
    from perflab.untrusted.judge import Judge

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_SPAN_NS = 3_000_000
"""The time in nanoseconds that calls in a row should last, against which the cost of a question is small."""
_MOST_CALLS = 32
_MOST_BYTES = 1 << 28
"""Inputs of all calls of a span in bytes, at most; a single call may have more."""
_LONG_SPANS = 10
"""The length of the slower side's span, at most, in spans of the usual length; one call takes what it takes."""
_MOST_SPANS = 2
"""Spans in a turn, at most; the fastest of them counts most."""
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
_PROBE = 0.5
"""The share of pairs of turns after which, by chance, a call of other values or another shape is checked."""
_AS_TIMED = (0, 0)
"""The kind of the calls that are timed: the first shape, values as they are drawn."""
_SHORTEST_NS = 1.0
"""The time in nanoseconds of a call that took no longer than the question did."""
_RESOLVED_NS = 100_000
"""Differences between clocks, in nanoseconds, that a busy machine explains."""
_TOLD, _OFF_NS = 0.1, 300_000
"""A clock that tells less than this share of the time outside was replaced, if what it leaves out is longer than the
nanoseconds, and than what the rival's leaves out. Nothing is taken from that clock, so it need not be exact."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch use one thread of this process: others would spin on the cores of those that are timed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Side(Protocol):
    """A side of a race, which makes calls and times them: a callable in a process of its own, or in this one."""

    role: Role

    def span(self, sets: Sequence[Sequence[Tensor]]) -> Span:
        """Make a call for each set of arguments, and return the time of all of them."""


class Race:
    """A candidate and a rival in turns."""

    def __init__(self, judge: Judge, candidate: Stranger, rival: Side, control: Stranger) -> None:
        self._judge, self._terms = judge, judge.terms
        self._candidate = candidate
        self._sides: dict[str, Side] = {BASE: rival, CANDIDATE: candidate}
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
        budget_ns = 1e9 * self._terms.budget_s
        policy = PairedPolicy(self._terms.threshold, looks=(LEAST_PAIRS, *LOOKS), pairs_are="pairs of turns")
        taken = Taken(policy)
        began_ns = clock.read_ns()
        while len(taken.turns) < self._terms.pairs or taken.wants_more(clock.read_ns() - began_ns, budget_ns):
            found: dict[str, list[TurnTime]] = {name: [] for name in self._sides}
            for place in interleave.places(list(self._sides), 1, (), self._draw):
                found[place.side].append(self._turn(place.side))
            taken.turns.append(found)
            others = [kind for kind in self._judge.kinds if kind != _AS_TIMED]
            if others and self._draw.random() < _PROBE:
                self._judge.probe(self._candidate, self._draw.choice(others))
        return taken.concluded(Limits(budget_ns, self._terms.threshold))

    @property
    def fastest_ns(self) -> float:
        """The time of one of the candidate's calls in its fastest row: what no busy machine has delayed, if any is."""
        return min(self._among[CANDIDATE])

    def _count_calls(self) -> int:
        """Return how many calls a span has: enough for _SPAN_NS, if their inputs fit."""
        spent: dict[Role, list[int]] = {}
        for _ in range(_WARMING):
            sets = self._judge.sets(1)
            for process in (*self._sides.values(), self._control):
                spent.setdefault(process.role, []).append(self._judge.span(process, sets).ns)
        size = sum(one.untyped_storage().nbytes() for one in sets[0].values())
        least = [max(1.0, min(spent[role]) - min(spent[Role.CONTROL])) for role in (Role.CANDIDATE, Role.RIVAL)]
        call_ns = min(least)
        # What is far slower must not spend the time for all pairs in a few of them.
        wanted = min(_SPAN_NS / call_ns, _LONG_SPANS * _SPAN_NS / max(least))
        if self._terms.in_a_row is not None:
            self._spans = 1
            return self._terms.in_a_row
        self._spans = max(1, min(_MOST_SPANS, math.ceil(interleave.TURN_NS / max(_SPAN_NS, call_ns))))
        return max(1, min(_MOST_CALLS, int(wanted), _MOST_BYTES // max(1, size)))

    def _control_ns(self, number: int) -> float:
        sets = self._judge.sets(number)
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
        process, sets = self._sides[side], self._judge.sets(number)
        span = self._judge.span(process, sets)
        work_ns = span.ns - self._cost_ns[number]
        self._spans_of[side].append((work_ns, span))
        share = 1.0 if number > 1 else _CHECK if self._calls > 1 else _CHECK_LONG
        if side == CANDIDATE and self._draw.random() < share:
            self._judge.check(self._candidate, span, sets, self._draw.randrange(number), _AS_TIMED)
        return max(_SHORTEST_NS, work_ns / number)

    def refuse_bent_time(self) -> None:
        """Refuse a candidate whose clock tells another time, or that is faster among calls than a call alone can be.

        The rival, which is trusted, shows by how much a call alone is slower on this machine.
        """
        untold_ns = {side: [work_ns - span.own_ns for work_ns, span in spans] for side, spans in self._spans_of.items()}
        told = [span.own_ns / max(work_ns, float(_OFF_NS)) for work_ns, span in self._spans_of[CANDIDATE]]
        share = share_of_a_replaced_clock(told, untold_ns[CANDIDATE], untold_ns[BASE])
        if share is not None:
            text = f"its own clock tells {share:.1%} of the time outside"
            raise RefusedError(Reason.CLOCK, text)
        if (over_ns := median(span.own_ns - span.ns for _, span in self._spans_of[CANDIDATE])) > _OFF_NS:
            text = f"its own clock tells {format_ns(over_ns)} more than the clock outside"
            raise RefusedError(Reason.CLOCK, text)
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
        raise RefusedError(
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


def is_too_short(comparison: Comparison) -> bool:
    """Whether a side's calls take no longer than the question that asks for them, so that they have no time."""
    return min(comparison.candidate_ns, comparison.base_ns) <= _SHORTEST_NS


def finding_of(comparison: Comparison, threshold: float) -> Finding:
    """Return what a comparison says of a candidate: only certainly slower is ``slower``, and ``ok`` is certain too."""
    if is_too_short(comparison):
        return Finding.UNKNOWN
    if comparison.verdict is Verdict.REGRESSED:
        return Finding.SLOWER
    return Finding.OK if comparison.high_ratio <= 1 + threshold else Finding.UNKNOWN
