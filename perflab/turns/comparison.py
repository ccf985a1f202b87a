"""A whole A/B comparison: screen every case with a few pairs, confirm suspects with more.

While suspects are confirmed, a third process, the base's *twin*, takes turns with base and head in one case per round,
a different case each round: the null control. The difference between the base and its twin is subtracted from the
difference between head and base.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import fmean, median
from typing import TypeVar

from perflab.base.errors import InShort
from perflab.base.identity import Mode
from perflab.judging.interleave import Reading
from perflab.judging.null_control import NO_CONTROL, Control, wants_more
from perflab.judging.paired import PairedCase, PairedPolicy, Stage, TakenPair, case_of, controls_of, counted, stage
from perflab.processes.child import Start
from perflab.results.measurement import CallTimes
from perflab.results.peak import Peak
from perflab.results.profile import Profile
from perflab.turns.messages import Ended
from perflab.turns.process import ANSWER_WITHIN_S, Ancestry, OutOfTimeError
from perflab.turns.rounds import CaseRound, CaseTurns, NotStartedError, Round, RoundPlan, Witness, stray

HEAD, BASE, TWIN = "head", "base", "twin"

WEIGHING_ROUNDS = 2
"""The number of rounds that measure memory and counts: these are exact where two processes agree on them."""
SCREENS_AGAIN = 2
"""The number of extra rounds in which the screen may replace ruined pairs; later ones are replaced while confirming."""

StartSide = Callable[[str, Sequence[str] | None], Start | None]
"""A function that returns the ``Start`` of ``head`` or ``base`` for the given cases, or, for None, for all cases that
the command selects.

The function returns None if the side can have none of the cases."""


@dataclass
class Compared:
    """The state of one case in a comparison: its rounds, log-ratios, and how its tests ended."""

    case: str
    floor_ns: float = 0.0
    """A slowdown of at most this many nanoseconds does not count."""
    asked: bool = False
    """Whether a round has included the case."""
    logs: PairedCase = field(default_factory=PairedCase)
    rounds: list[CaseRound] = field(default_factory=list)
    """The rounds that gave the log-ratios that count."""
    weighed: list[CaseRound] = field(default_factory=list)
    """The rounds that measured memory and counts."""
    ended: dict[str, Ended] = field(default_factory=dict)
    """How the case's test ended on each side during screening. A failure is kept, and so is a later failure of the
    head."""
    head_was_alone: bool = False
    """Whether the head ended before any other process held the case."""
    taken: list[tuple[CaseRound, bool]] = field(default_factory=list)
    """Every round that gave a log-ratio, ruined ones included, each with whether the round was a confirming one."""
    lost: InShort | None = None
    """Why a round could not measure the case, so that the case is not compared or confirmed; None: no such round."""
    fails: bool = False
    """Whether the case fails already for a reason that needs no further pairs, so that no more pairs are taken."""
    modes: dict[str, Mode] = field(default_factory=dict)
    """The timing mode of the case on each side, if the sides' modes differ: such times are not compared."""

    def add(self, found: CaseRound, policy: PairedPolicy, *, confirming: bool) -> None:
        """Add the results of one more round."""
        self.asked = True
        self.modes = self.modes or found.differing_modes
        if found.not_started is not None:
            self.lost = found.not_started
            return
        if any(turns.weighed.memory is not None for turns in found.turns.values()):
            self.weighed.append(found)
        for side in (HEAD, BASE):
            ended = found.ended.get(side)
            broke = side == HEAD and ended is not None and ended.outcome in ("failed", "died")
            if confirming and not broke and (ended is None or ended.outcome != "passed"):
                self.lost = ended.in_short if ended is not None else InShort("it was not collected again")
            elif ended is not None and (side not in self.ended or ended.outcome != "passed"):
                self.ended[side] = ended
                self.head_was_alone = self.head_was_alone or (
                    side == HEAD and HEAD not in found.turns and found.first == HEAD
                )
        if found.reading(HEAD, BASE, TWIN) is None:
            if confirming and self.lost is None:
                self.lost = InShort("it was not timed again")
            return
        self.taken.append((found, confirming))
        policy = policy.of(self.logs)
        pairs = [
            TakenPair(reading, late)
            for taken, late in self.taken
            if (reading := taken.reading(HEAD, BASE, TWIN)) is not None
        ]
        self.rounds = list(
            compress((taken for taken, _ in self.taken), counted([one.reading.error for one in pairs], policy))
        )
        self.logs = case_of(pairs, policy)
        self.logs.floor = math.log1p(self.floor_ns / self.median_ns(BASE))

    @property
    def comparable(self) -> bool:
        """Whether both sides have the case, timed alike, and its test passed on both."""
        return (
            not self.modes
            and {HEAD, BASE} <= set(self.ended)
            and all(ended.outcome == "passed" for ended in self.ended.values())
        )

    def needs(self, policy: PairedPolicy, cases: int, control: Control = NO_CONTROL) -> Stage:
        """Return the case's stage: which pairs the case needs next, if any."""
        is_open = self.comparable and self.lost is None and not self.fails
        return stage(self.logs, policy, cases, control) if is_open else Stage.DECIDED

    def turns(self, side: str) -> list[CaseTurns]:
        """Return the side's turns in the rounds that count."""
        return [found.turns[side] for found in self.rounds if side in found.turns]

    def median_ns(self, side: str) -> float:
        """Return the typical time of one call: over the process pairs, the median of the median turn's fastest call or
        of the mean of all turns."""
        if self.logs.judged is CallTimes.FASTEST:
            return median(median(turn.fastest_ns for turn in one.turns) for one in self.turns(side))
        return median(fmean(turn.mean_ns for turn in one.turns) for one in self.turns(side))


@dataclass
class Taken:
    """The durations of past rounds, in seconds, from which the duration of the next round is estimated."""

    start_s: float = 0.0
    """The time of the longest round in seconds, excluding the time of its cases."""
    case_s: dict[str, float] = field(default_factory=dict)
    """The time in seconds that each case took when it was last measured."""

    def again_s(self, cases: Sequence[str]) -> float:
        """Return the estimated time of a round of these cases, in seconds."""
        return self.start_s + sum(self.case_s.get(case, 0.0) for case in cases)


@dataclass
class Comparison:
    """The results of a whole comparison."""

    cases: dict[str, Compared] = field(default_factory=dict)
    base_only: list[str] = field(default_factory=list)
    """Cases of the base that the head does not have."""
    controls: dict[str, list[Reading]] = field(default_factory=dict)
    """Log-ratios twin / base of the null control, by the case with which they were taken."""
    crowded: set[str] = field(default_factory=set)
    """Cases that three simultaneous processes could not finish; such a case is confirmed without its own control."""
    took: Taken = field(default_factory=Taken)
    most_failures: int = 0
    """The comparison ends when this many cases fail already; 0: there is no such limit."""
    out_of_time: bool = False

    @property
    def judged(self) -> dict[str, PairedCase]:
        """The pairs of every case whose sides are comparable and that has at least one pair."""
        return {case: one.logs for case, one in self.cases.items() if one.comparable and one.logs.pairs}

    def in_stage(self, wanted: Stage, policy: PairedPolicy) -> list[Compared]:
        """Return the cases that are in the wanted stage."""
        several = sum(one.comparable for one in self.cases.values())
        controls = controls_of(self.judged, self.controls)
        return [
            one
            for case, one in self.cases.items()
            if one.needs(policy, several, controls.get(case, NO_CONTROL)) is wanted
        ]


@dataclass(frozen=True)
class Limits:
    """The limits and options of a comparison."""

    budget_ns: Mapping[str, float]
    """Time of each case's turns in one round, in nanoseconds."""
    seconds_left: Callable[[], float | None]
    witness: Witness | None = None
    """Observes what other work the machine did while turns were taken."""
    weighs: bool = True
    """Whether memory and counts are compared too."""
    floor_ns: Mapping[str, float] = field(default_factory=dict)
    """The largest slowdown that does not count, by case, in nanoseconds."""
    answer_within_s: float = ANSWER_WITHIN_S
    """A process that is silent for longer counts as hanging."""
    ancestry: Ancestry = field(default_factory=Ancestry)
    """The source of the ancestor process from which the processes of a round are forked."""
    old_names: Callable[[Sequence[str], Sequence[str]], Mapping[str, str]] = lambda _head, _base: {}
    """Returns the base's name of each case whose test was moved or renamed, from the cases of head and base."""
    moved: dict[str, str] = field(default_factory=dict)
    """The base's name of each moved or renamed case: the result of ``old_names``, or names known beforehand."""


def compare(
    cases: Sequence[str],
    start: StartSide,
    policy: PairedPolicy,
    limits: Limits,
    say: Callable[[str, str], None],
    into: Comparison,
    stands: Callable[[Sequence[str]], None] = lambda _cases: None,
) -> None:
    """Compare head and base in these cases of the head.

    Args:
        cases: node ids, in order.
        start: returns the starts of processes.
        policy: decides when a case is suspect, and when it is decided.
        limits: the time limits.
        say: called with the case and a description of the current step.
        into: filled as results arrive, so that an interrupted comparison loses none of them.
        stands: called after each round with the cases that have new results.

    Raises:
        RivalError: a side does not start, or imports the other side's code.
    """
    comparing = _Comparing(start, policy, limits, say, into)
    into.cases = {case: Compared(case, limits.floor_ns.get(case, 0.0)) for case in cases}
    for number in range(policy.screen_pairs + SCREENS_AGAIN):
        wanted = [one.case for one in into.in_stage(Stage.UNSCREENED, policy)] if number else list(cases)
        if not wanted or comparing.is_too_late(wanted):
            break
        comparing.screen(wanted, number)
        stands(wanted)
    while suspects := comparing.suspects():
        if comparing.is_too_late([one.case for one in suspects]):
            return
        comparing.confirm(suspects)
        stands([one.case for one in suspects])


@dataclass(frozen=True)
class _Comparing:
    """A comparison under way: the arguments of ``compare``, and its steps."""

    start: StartSide
    policy: PairedPolicy
    limits: Limits
    say: Callable[[str, str], None]
    result: Comparison

    def suspects(self) -> list[Compared]:
        """Return the cases that need more confirming pairs, and those that lost too many to finish their screen."""
        short = [one for one in self.result.in_stage(Stage.UNSCREENED, self.policy) if one.taken]
        return [*self.result.in_stage(Stage.OPEN, self.policy), *short]

    def is_too_late(self, wanted: Sequence[str]) -> bool:
        """Whether no round of these cases fits into the time that is left, or enough cases fail already."""
        result, left_s = self.result, self.limits.seconds_left()
        if 0 < result.most_failures <= sum(one.fails for one in result.cases.values()):
            return True
        result.out_of_time = result.out_of_time or (left_s is not None and left_s <= result.took.again_s(wanted))
        return result.out_of_time

    def screen(self, wanted: Sequence[str], number: int) -> None:
        """Run one more pair of processes for every case that needs one for its screen."""
        told = f"pair {number + 1} of {self.policy.screen_pairs}"
        if number >= self.policy.screen_pairs:
            told = f"pair {number + 1}, for one that was ruined"
        first, weigh = number == 0, self.limits.weighs and number < WEIGHING_ROUNDS

        def plan(case: str) -> RoundPlan:
            return RoundPlan(self.limits.budget_ns[case], memory=weigh, either_first=not first)

        def begin(waiting: Sequence[str]) -> Round:
            return _started(self.start, None if first else waiting, self.limits)

        result = self.result
        for case, found, running in each_once(begin, wanted, plan, self.say, told, result.took, must_start=first):
            if first and running is not None:
                result.base_only = [case for case in running.cases.get(BASE, ()) if case not in running.cases[HEAD]]
            result.cases[case].add(found, self.policy, confirming=False)

    def confirm(self, suspects: Sequence[Compared]) -> None:
        """Run one more pair of processes for every suspect, with the null control in one of the suspects."""
        result = self.result
        had = {one.case: len(result.controls.get(one.case, ())) for one in suspects}
        known = controls_of(result.judged, result.controls)
        roomy = [one for one in suspects if one.case not in result.crowded]
        short = [one for one in roomy if wants_more(result.controls, one.case, known.get(one.case, NO_CONTROL))]
        # Suspects get the control in turn; among those that had it equally often the shortest one, since the control
        # makes a case take half as long again.
        control = [one.case for one in sorted(short, key=lambda one: (had[one.case], one.median_ns(BASE)))[:1]]
        pairs = max(len(one.logs.pairs) for one in suspects) + 1
        told = f"suspect, pair {pairs} of {self.policy.looks[-1]} at most"

        def plan(case: str) -> RoundPlan:
            return RoundPlan(self.limits.budget_ns[case], memory=False, either_first=True)

        def begin(waiting: Sequence[str]) -> Round:
            return _started(self.start, waiting, self.limits, [case for case in control if case in waiting])

        for case, found, _ in each_once(begin, [one.case for one in suspects], plan, self.say, told, result.took):
            if case in control and found.is_spoilt:
                result.crowded.add(case)  # memory may hold two processes but not three: another round will show
                if found.ended.get(HEAD) is None or found.ended[HEAD].outcome != "failed":
                    continue
            result.cases[case].add(found, self.policy, confirming=True)
            control_reading = found.reading(TWIN, BASE)
            if control_reading is not None:
                result.controls.setdefault(case, []).append(control_reading)


_Seen = TypeVar("_Seen", Profile, Peak)
Looked = tuple[Profile, Profile] | str
Weighed = tuple[Peak, Peak] | str
"""The peaks of base and head, or the reason why there are none. ``Looked`` is the equivalent for profiles."""


@dataclass(frozen=True)
class Look:
    """The profiles and peaks to take on both sides of a case."""

    profile_ns: float | None
    """Time of each profile, in nanoseconds; None: no profiles. Each side may be profiled twice, and the faster profile
    counts, since it was disturbed less."""
    takes_apart: bool = False
    """Whether to break the peak memory of a call down by what is alive."""


def looked_into(
    wanted: Mapping[str, Look], start: StartSide, limits: Limits, say: Callable[[str, str], None]
) -> Generator[tuple[str, Looked, Weighed], None, None]:
    """Yield profiles and peaks of base and head, case by case, from one fresh process of each side.

    Args:
        wanted: the profiles and peaks to take, by case.
        start: returns the starts of processes.
        limits: the time limits.
        say: called with the case and a description of the current step.

    Raises:
        RivalError: a side does not start, or imports the other side's code.
    """

    def plan(case: str) -> RoundPlan:
        look = wanted[case]
        return RoundPlan(0.0, memory=False, profile_ns=look.profile_ns, takes_apart=look.takes_apart)

    def begin(waiting: Sequence[str]) -> Round:
        return _started(start, waiting, limits)

    for case, found, _ in each_once(begin, list(wanted), plan, say, "looking for the cause", Taken()):
        looked = _of_both(found, lambda one: (one.profile, one.examined[-1].problem if one.examined else None))
        yield case, looked, _of_both(found, lambda one: (one.taken_apart.peak, one.taken_apart.problem))


def _of_both(found: CaseRound, of: Callable[[CaseTurns], tuple[_Seen | None, str | None]]) -> tuple[_Seen, _Seen] | str:
    """Return what base and head were examined for; or why not, the base first.

    A side's own message says why, or how its test ended. ``of`` reads what a side has, and its message.
    """
    seen = []
    for side in (BASE, HEAD):
        turns, ended = found.turns.get(side), found.ended.get(side)
        there, said = of(turns) if turns is not None else (None, None)
        if there is None:
            if said is None and ended is None and found.not_started is not None:
                return str(found.not_started)  # of whichever side did not start
            last = "the case does not exist there" if ended is None else ended.in_short.what
            return f"{side}: {said or last or 'it was not examined'}"
        seen.append(there)
    return seen[0], seen[1]


def each_once(
    begin: Callable[[Sequence[str]], Round],
    wanted: Sequence[str],
    plan: Callable[[str], RoundPlan],
    say: Callable[[str, str], None],
    told: str,
    took: Taken,
    *,
    must_start: bool = False,
) -> Generator[tuple[str, CaseRound, Round | None], None, None]:
    """Measure each case once, in the processes of one round, and yield the results case by case.

    After a process has died, new processes measure the remaining cases. If the new processes do not start, the
    remaining cases are yielded unmeasured, with the reason. When the time of the whole comparison is over, the
    remaining cases are not yielded at all. ``begin`` starts the processes for the waiting cases.
    """
    waiting = list(wanted)
    while waiting:
        began_s, cases_s = time.monotonic(), 0.0
        try:
            running = begin(waiting)
        except NotStartedError as error:
            if must_start and len(waiting) == len(wanted):
                raise
            for case in waiting:
                yield case, CaseRound(not_started=error.in_short), None
            return
        except OutOfTimeError:
            return
        with running:
            alive = True
            while waiting and alive:
                case, case_began_s = waiting.pop(0), time.monotonic()
                try:
                    found = running.run(case, waiting, plan(case), _saying(say, case, told))
                except OutOfTimeError:
                    running.close()
                    return
                alive = all(ended.outcome != "died" for ended in found.ended.values())
                took.case_s[case] = time.monotonic() - case_began_s
                cases_s += took.case_s[case]
                yield case, found, running
        took.start_s = max(took.start_s, time.monotonic() - began_s - cases_s)


def _saying(say: Callable[[str, str], None], case: str, told: str) -> Callable[[str], None]:
    return lambda what: say(case, f"{told}, {what}")


def _started(start: StartSide, cases: Sequence[str] | None, limits: Limits, twin: Sequence[str] = ()) -> Round:
    there = [limits.moved.get(case, case) for case in cases] if cases is not None else None
    twins = [limits.moved.get(case, case) for case in twin]
    wanted = {HEAD: start(HEAD, cases), BASE: start(BASE, there), TWIN: start(BASE, twins) if twins else None}
    starts = {side: one for side, one in wanted.items() if one is not None}
    try:
        running = Round(starts, limits.witness, limits.answer_within_s, limits.ancestry, limits.seconds_left)
    except NotStartedError:
        if cases is None:
            raise
        starts.pop(TWIN, None)  # try once more with as few processes as possible: memory may have been short
        running = Round(starts, limits.witness, limits.answer_within_s, limits.ancestry, limits.seconds_left)
    for side in (BASE, TWIN):
        if running.strays.get(side):
            running.close()
            raise stray(starts[side].role, running.strays[side])
    if cases is None:
        limits.moved.update(limits.old_names(running.cases[HEAD], running.cases.get(BASE, ())))
    if limits.moved:
        new = {old: case for case, old in limits.moved.items()}
        running.call({side: {new.get(case, case): case for case in own} for side, own in running.cases.items()})
    return running
