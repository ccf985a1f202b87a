"""Two callables in this process, in turns: ``perflab.compare`` and ``perf.compare``.

``interleave.py`` defines the turns, and ``judging/paired.py`` the statistics and the verdict, as between two processes.
A pair is here a few blocks of turns. Pairs are cheap, so there is no screening stage, and every verdict rests on an
interval.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, ClassVar

from perflab.base.amounts import positive
from perflab.base.data import Data
from perflab.base.errors import UsageError
from perflab.base.identity import DEFAULT, Mode
from perflab.devices.kinds import resolve_device
from perflab.judging import interleave, paired
from perflab.judging.interleave import Pace, Shape, TurnTime
from perflab.judging.statistics import LEAST_PAIRS, estimate, ratio_of
from perflab.measure.clocks import clock
from perflab.measure.clocks.set_up import workload_of
from perflab.measure.machine.devices import release_memory
from perflab.measure.stopping import Plan
from perflab.measurement.turns import Turns
from perflab.ranks.group import together
from perflab.results.environment import core_numbers
from perflab.results.measurement import CallTimes
from perflab.results.records import Verdict
from perflab.units import format_change, format_count, format_interval, format_ns

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

BASE, CANDIDATE = "base", "candidate"
BUDGET_S = 5.0
THRESHOLD = 0.05


class Comparison(Data, frozen=True):
    """The result of comparing two callables in turns.

    Times are of one call, in nanoseconds; ratios are candidate / base.
    """

    LEAST_CALLS: ClassVar[int] = 2 + 2 * LEAST_PAIRS
    """The least number of calls of each side: two for the warm-up, and two turns in each of the LEAST_PAIRS pairs."""

    verdict: Verdict
    """The verdict on the candidate, relative to the base: ``ok``, ``regressed``, ``improved`` or ``inconclusive``."""
    ratio: float
    """The candidate's time divided by the base's: 1.10 if the candidate takes a tenth longer."""
    low_ratio: float
    high_ratio: float
    """The 95 % interval of ``ratio``."""
    base_ns: float
    candidate_ns: float
    """The time of one call on each side: the fastest call of the median turn, or the mean of all calls, as ``judged``
    says."""
    pairs: int
    """The number of log-ratios whose trimmed mean gives the ratio."""
    threshold: float
    """The smallest change that counts, as a fraction: 0.05 is 5 %."""
    judged: CallTimes = CallTimes.FASTEST
    """The calls that the ratio compares: the fastest ones, or the mean of all calls if only some calls differ."""
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
    """The time limit of a comparison, and the changes that count."""

    budget_ns: float = BUDGET_S * 1e9
    """Total time of the turns, in nanoseconds; LEAST_PAIRS pairs are taken even if they take longer."""
    threshold: float = THRESHOLD
    floor_ns: float = 0.0
    """A slowdown of at most this many nanoseconds does not count."""
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

    Both are warmed up. A turn lasts some milliseconds, which may be many calls; the order of turns alternates. A
    burst of other work on the machine disturbs single turns, and the statistics discount these. Turns end as soon as
    the verdict is certain, or when the budget is spent.

    The interval covers the differences between turns. It cannot cover what stays constant within one process by
    chance: the placement of code and memory, which can make either side some percent faster in this process and slower
    in the next. Where such differences matter, compare pairs of fresh processes: ``pytest --perf-against=COMMIT``.

    Args:
        base: the function that the candidate is compared with.
        candidate: called as ``candidate(*args, **kwargs)``, as is ``base``.
        args: positional arguments of both.
        kwargs: keyword arguments of both.
        setup: makes the arguments of each call of either function, outside the timed region: a tuple of positional
            arguments, a dict of keyword arguments, or both as ``((x,), {"scale": 2})``.
        budget_s: time of the turns in seconds; warm-up comes on top. Five pairs of turns are taken even if they take
            longer.
        threshold: the smallest change that counts, as a fraction: 0.05 is 5 %.
        device: the device that does the work. None: an accelerator if there is one, else the CPU. An
            accelerator's own events measure the time where they tell it.

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
    """Check the arguments of a comparison, and return both sides as workloads.

    ``call`` is the name of the function that the user called, for error messages.

    Raises:
        UsageError: a side is not callable, or the budget or the threshold is not a positive, finite number.
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
    """Compare two workloads. The caller has already released memory that earlier work left behind.

    Args:
        base: the workload that the candidate is compared with.
        candidate: the workload that is judged.
        device: the device on which both workloads run.
        limits: the time limit, and the changes that count.
        say: called with a description of the current step.
        draw: decides at random which side begins a block, and how many samples are thrown away before it.

    Raises:
        UsageError: the clock did not move.
        CaptureError: no CUDA graph can hold a side, and the mode asks for one.
        ClockError: CUDA events tell another time than the host's clock.
    """
    # Judge as soon as there are enough pairs for an interval: with long calls there may be no time for more pairs.
    policy = paired.PairedPolicy(limits.threshold, looks=(LEAST_PAIRS, *paired.LOOKS), pairs_are="pairs of turns")
    in_step = together()
    draw = draw or in_step.draw()  # a generator of its own: the caller may have seeded the module's
    taken = Taken(policy)
    with contextlib.ExitStack() as stack:
        sides = {
            name: stack.enter_context(
                Turns(workload, device, Plan(limits.budget_ns), mode=limits.mode, hands_back=False, draw=draw)
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
        # A pair is short enough for the largest number of pairs to fit in; most comparisons need a quarter of them.
        pair_budget_ns = limits.budget_ns / policy.looks[-1]
        shape = interleave.shape_of(paces, pair_budget_ns, least_blocks=1, hands_back=False)
        began_ns = clock.read_ns()
        while taken.wants_more(in_step.most(clock.read_ns() - began_ns)[0], limits.budget_ns):
            say(f"pair {len(taken.turns) + 1} of {policy.looks[-1]} at most")
            taken.turns.append(_pair(sides, shape, draw))
    return taken.concluded(limits)


def _pair(sides: Mapping[str, Turns], shape: Shape, draw: random.Random) -> dict[str, list[TurnTime]]:
    """Run one pair, and return the times of its turns by side."""
    found: dict[str, list[TurnTime]] = {name: [] for name in sides}
    for place in interleave.places(list(sides), shape.blocks, core_numbers(), draw):
        samples = sides[place.side].take(shape.repetitions, shape.samples, rewarm=shape.rewarm, core=place.core)
        samples_ns, waited_ns = ([one.total_ns for one in samples], [one.waited_ns for one in samples])
        found[place.side].append(interleave.turn_time(samples_ns, waited_ns, shape.repetitions))
    return found


@dataclass
class Taken:
    """The pairs that have been taken so far."""

    policy: paired.PairedPolicy
    turns: list[dict[str, list[TurnTime]]] = field(default_factory=list)

    def wants_more(self, spent_ns: float, budget_ns: float) -> bool:
        """Whether another pair could change the verdict and fits into the time budget."""
        taken, case = len(self.turns), self._case
        if taken >= self.policy.looks[-1]:
            return False
        if len(case.pairs) >= LEAST_PAIRS and spent_ns + spent_ns / taken > budget_ns:
            return False
        return len(case.pairs) < paired.LOOKS[0] or paired.stage(case, self.policy, 1) is paired.Stage.OPEN

    def concluded(self, limits: Limits) -> Comparison:
        """Return the comparison's result by the paired judge's rules."""
        case = self._case
        base_ns, candidate_ns = (self._typical_ns(name, case.judged) for name in (BASE, CANDIDATE))
        finding = paired.latency_findings({"": case}, {}, self.policy)[""].timed(base_ns, limits.floor_ns)
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
    def _case(self) -> paired.PairedCase:
        """The pairs that count: all except those whose own blocks show that they were disturbed too much."""
        taken = [
            paired.TakenPair(reading, late=number >= paired.SCREEN_PAIRS)
            for number, pair in enumerate(self.turns)
            if (reading := interleave.reading(pair[CANDIDATE], pair[BASE])) is not None
        ]
        return paired.case_of(taken, self.policy)

    def _typical_ns(self, side: str, judged: CallTimes) -> float:
        """Return the typical time of one call on a side: the median turn's fastest call, or the mean of all calls."""
        turns = [turn for pair in self.turns for turn in pair[side]]
        if judged is CallTimes.FASTEST:
            return median(turn.fastest_ns for turn in turns)
        return fmean(turn.mean_ns for turn in turns)
