"""Two callables in this process, in turns: ``perflab.compare`` and ``perf.compare``.

Turns are ``interleave.py``'s, and statistics and verdict ``judge/paired.py``'s, as between two processes. A pair is
here a few blocks of turns, and they are cheap: none is spared by a screen, and every verdict rests on an interval.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, ClassVar

from perflab.amounts import positive
from perflab.compared import interleave
from perflab.compared.interleave import Pace, Shape, TurnTime
from perflab.compared.judge.paired import (
    LOOKS,
    SCREEN_PAIRS,
    PairedCase,
    PairedPolicy,
    Stage,
    TakenPair,
    case_of,
    latency_findings,
    stage,
)
from perflab.data import Data
from perflab.environment import core_numbers
from perflab.errors import UsageError
from perflab.measure import clock
from perflab.measure.devices import release_memory, resolve_device
from perflab.measure.records import CallTimes
from perflab.measure.sampling import Plan
from perflab.measure.set_up import workload_of
from perflab.measure.turns import Turns
from perflab.measured.judge.robust import ratio_of
from perflab.measured.judge.trimmed import LEAST_PAIRS, estimate
from perflab.mode import DEFAULT, Mode
from perflab.records import Verdict
from perflab.units import format_change, format_count, format_interval, format_ns

if TYPE_CHECKING:
    import torch

    from perflab.measure.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

BASE, CANDIDATE = "base", "candidate"
BUDGET_S = 5.0
THRESHOLD = 0.05


class Comparison(Data, frozen=True):
    """What turns said of two callables. Times are of one call, in nanoseconds; ratios are candidate / base."""

    LEAST_CALLS: ClassVar[int] = 2 + 2 * LEAST_PAIRS
    """Calls of each side however long they are: two to warm up, and two turns in each of the fewest pairs."""

    verdict: Verdict
    """``ok``, ``regressed``, ``improved`` or ``inconclusive``: the candidate's, beside the base."""
    ratio: float
    """1.10: the candidate takes a tenth longer."""
    low_ratio: float
    high_ratio: float
    """The 95 % interval of ``ratio``."""
    base_ns: float
    candidate_ns: float
    """Of the calls that are ``judged``: the fastest of the median turn, or the mean."""
    pairs: int
    """How many log-ratios the ratio is the trimmed mean of."""
    threshold: float
    """The change that counts, as a share."""
    judged: CallTimes = CallTimes.FASTEST
    """Which calls the ratio is of: the mean of all, if only some of them differ."""
    reasons: tuple[str, ...] = ()
    """Why the verdict is ``inconclusive``, or why a slowdown does not count."""

    def __str__(self) -> str:
        told = (
            f"{self.verdict}: candidate {format_ns(self.candidate_ns)}, base {format_ns(self.base_ns)}, "
            f"{format_change(self.ratio)} ({format_interval(self.low_ratio, self.high_ratio)}), "
            f"{format_count(self.pairs, 'pair')}"
        )
        told += "" if self.judged is CallTimes.FASTEST else ", of the mean of all calls"
        return "; ".join([told, *self.reasons])


@dataclass(frozen=True)
class Limits:
    """What a comparison may take, and what counts."""

    budget_ns: float = BUDGET_S * 1e9
    """Time of the turns; LEAST_PAIRS are taken whatever they take."""
    threshold: float = THRESHOLD
    floor_ns: float = 0.0
    """A slowdown of no more is none."""
    mode: Mode = DEFAULT


def compare(
    base: Callable[..., Any],
    candidate: Callable[..., Any],
    *,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    setup: Callable[[], Any] | None = None,
    budget_s: float = BUDGET_S,
    threshold: float = THRESHOLD,
    device: torch.device | str | None = None,
) -> Comparison:
    """Tell whether ``candidate`` is slower or faster than ``base``. Both are called in turns, in this process::

        print(perflab.compare(base=F.rms_norm, candidate=my_rms_norm, args=(x, (1024,))))

    Both are warmed up. A turn lasts some milliseconds, which may be many calls; the order of turns alternates, and a
    burst of other work on the machine spoils the turns that it falls into, not the answer. Turns end as soon as the
    answer is known, or when the budget is spent.

    The interval covers what differs from turn to turn. It cannot cover what one process has by chance and keeps: where
    its code and its memory lie, which can make either side some percent faster in this process and slower in the next.
    Where such differences matter, compare pairs of fresh processes: ``pytest --perf-against=COMMIT``.

    Args:
        base: what the candidate is held against.
        candidate: called as ``candidate(*args, **kwargs)``, as is ``base``.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        setup: makes the arguments of each call of either, outside of its time: a tuple of positional ones, a dict of
            keyword arguments, or both as ``((x,), {"scale": 2})``.
        budget_s: time of the turns in seconds; warm-up comes on top. Five pairs of turns are taken even if they take
            longer.
        threshold: the change that counts, as a share: 0.05 is 5 %.
        device: where the work happens. None: a GPU if there is one, else the CPU. On CUDA, time is that of CUDA events.

    Raises:
        UsageError: a side is not callable, the budget or the threshold is not positive, or the clock did not move.
        DeviceError: there is no such device.
        ClockError: CUDA events tell another time than the host's clock.
        Exception: whatever a callable raises.
    """
    where = resolve_device(str(device or "auto"))
    sides = checked(base, candidate, args, kwargs, setup, where, budget_s, threshold, call="perflab.compare")
    release_memory(where)
    return in_turns(*sides, where, Limits(budget_s * 1e9, threshold))


def checked(
    base: Callable[..., Any],
    candidate: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    setup: Callable[[], Any] | None,
    device: torch.device,
    budget_s: float,
    threshold: float,
    *,
    call: str,
) -> tuple[Workload, Workload]:
    """Both sides, if they can be compared; ``call`` is what the user called, for the error.

    Raises:
        UsageError: they cannot.
    """
    for name, fn in ((BASE, base), (CANDIDATE, candidate)):
        if not callable(fn):
            raise UsageError(
                f"{call}({name}=...) got {type(fn).__name__!r}, which cannot be called",
                f"pass the function itself: {call}(base=old, candidate=new, args=(x,))",
            )
    for name, number in (("budget_s", budget_s), ("threshold", threshold)):
        positive(f"{call}({name}=", number, "give a positive number, and a finite one")
    given, named = tuple(args), dict(kwargs or {})
    return workload_of(base, given, named, setup, device), workload_of(candidate, given, named, setup, device)


def in_turns(
    base: Workload,
    candidate: Workload,
    device: torch.device,
    limits: Limits,
    say: Callable[[str], None] = lambda _what: None,
    draw: random.Random | None = None,
) -> Comparison:
    """Compare two workloads; what earlier work left behind has been collected by the caller.

    Args:
        base: what the candidate is held against.
        candidate: what is judged.
        device: where both work.
        limits: of time, and what counts.
        say: told what is under way.
        draw: decides which side begins a block.

    Raises:
        UsageError: the clock did not move.
        CaptureError: no CUDA graph can hold a side, and the mode asks for one.
        ClockError: CUDA events tell another time than the host's clock.
    """
    # A look as soon as there is an interval: where calls are long, there may be no other.
    policy = PairedPolicy(limits.threshold, looks=(LEAST_PAIRS, *LOOKS), pairs_are="pairs of turns")
    draw = draw or random.Random()  # its own: the caller may have seeded the module's
    taken = _Taken(policy)
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(
                Turns(workload, device, Plan(limits.budget_ns), mode=limits.mode, hands_back=False)
            )
            for name, workload in ((BASE, base), (CANDIDATE, candidate))
        }
        paces = []
        for name, side in sides.items():
            say(f"warming up {name}")
            warmup = side.warm_up()
            if warmup.call_lasts_ns <= 0:
                raise UsageError(f"the clock did not move while {name} was called", "compare more work in a call")
            paces.append(Pace(warmup.repetitions, warmup.call_lasts_ns * warmup.repetitions))
        # So short that all pairs that may be needed fit in; most comparisons are known after a quarter of them.
        pair_budget_ns = limits.budget_ns / policy.looks[-1]
        shape = interleave.shape_of(paces, pair_budget_ns, least_blocks=1, hands_back=False)
        began_ns = clock.read_ns()
        while taken.wants_more(clock.read_ns() - began_ns, limits.budget_ns):
            say(f"pair {len(taken.turns) + 1} of {policy.looks[-1]} at most")
            taken.turns.append(_pair(sides, shape, draw))
    return taken.concluded(limits)


def _pair(sides: Mapping[str, Turns], shape: Shape, draw: random.Random) -> dict[str, list[TurnTime]]:
    """The turns of one pair, by side."""
    found: dict[str, list[TurnTime]] = {name: [] for name in sides}
    for place in interleave.places(list(sides), shape.blocks, core_numbers(), draw):
        samples = sides[place.side].take(shape.repetitions, shape.samples, rewarm=shape.rewarm, core=place.core)
        samples_ns, waited_ns = ([one.total_ns for one in samples], [one.waited_ns for one in samples])
        found[place.side].append(interleave.turn_time(samples_ns, waited_ns, shape.repetitions))
    return found


@dataclass
class _Taken:
    """The pairs so far."""

    policy: PairedPolicy
    turns: list[dict[str, list[TurnTime]]] = field(default_factory=list)

    def wants_more(self, spent_ns: float, budget_ns: float) -> bool:
        """Whether another pair could tell more, and there is time for it."""
        taken, case = len(self.turns), self._case
        if taken >= self.policy.looks[-1]:
            return False
        if len(case.pairs) >= LEAST_PAIRS and spent_ns + spent_ns / taken > budget_ns:
            return False
        return len(case.pairs) < LOOKS[0] or stage(case, self.policy, 1) is Stage.OPEN

    def concluded(self, limits: Limits) -> Comparison:
        """What the pairs say, by the paired judge's rules."""
        case = self._case
        base_ns, candidate_ns = (self._typical_ns(name, case.judged) for name in (BASE, CANDIDATE))
        finding = latency_findings({"": case}, {}, self.policy)[""].timed(base_ns, limits.floor_ns)
        seen = estimate(case.pairs)
        return Comparison(
            verdict=finding.verdict,
            ratio=ratio_of(seen.value),
            low_ratio=ratio_of(seen.low),
            high_ratio=ratio_of(seen.high),
            base_ns=base_ns,
            candidate_ns=candidate_ns,
            pairs=len(case.pairs),
            threshold=limits.threshold,
            judged=case.judged,
            reasons=tuple(finding.reasons),
        )

    @property
    def _case(self) -> PairedCase:
        """The pairs that count: those that were ruined, as their own blocks tell, do not."""
        taken = [
            TakenPair(reading, late=number >= SCREEN_PAIRS)
            for number, pair in enumerate(self.turns)
            if (reading := interleave.reading(pair[CANDIDATE], pair[BASE])) is not None
        ]
        return case_of(taken, self.policy)

    def _typical_ns(self, side: str, judged: CallTimes) -> float:
        """The median turn's fastest call, or the mean of all calls."""
        turns = [turn for pair in self.turns for turn in pair[side]]
        if judged is CallTimes.FASTEST:
            return median(turn.fastest_ns for turn in turns)
        return fmean(turn.mean_ns for turn in turns)
