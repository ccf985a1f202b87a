"""A whole A/B comparison: screen every case with a few pairs, confirm suspects with more.

While suspects are confirmed, a third process, the base's *twin*, takes turns with the others in one of the cases, in
another one each round: the null control. What the base differs from itself is taken off what the head differs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from statistics import fmean, median

from perflab.compared.interleave import Reading
from perflab.compared.judge.null_control import NO_CONTROL, Control, wants_more
from perflab.compared.judge.paired import (
    PairedCase,
    PairedPolicy,
    Stage,
    TakenPair,
    case_of,
    controls_of,
    counted,
    stage,
)
from perflab.compared.rounds import CaseRound, CaseTurns, NotStartedError, Round, RoundPlan, Witness, stray
from perflab.compared.sides.ancestor import Ancestry, Start
from perflab.compared.sides.messages import Ended
from perflab.compared.sides.process import ANSWER_WITHIN_S, OutOfTimeError
from perflab.measure.records import CallTimes
from perflab.mode import Mode
from perflab.profiles.records import Peak, Profile

HEAD, BASE, TWIN = "head", "base", "twin"

WEIGHING_ROUNDS = 2
"""Memory and counts are exact where two processes agree on them."""
SCREENS_AGAIN = 2
"""Rounds in which the screen may replace pairs that were ruined; later ones are replaced while confirming."""

StartSide = Callable[[str, Sequence[str] | None], Start | None]
"""Makes the start of ``head`` or ``base`` for some cases, or for whatever the command selects.

None if the side can have none of them."""


@dataclass
class Compared:
    """All that is known of one case."""

    case: str
    floor_ns: float = 0.0
    """A slowdown of no more is none."""
    asked: bool = False
    """Whether processes were asked for it."""
    logs: PairedCase = field(default_factory=PairedCase)
    rounds: list[CaseRound] = field(default_factory=list)
    """Those that the log-ratios come from."""
    weighed: list[CaseRound] = field(default_factory=list)
    """Those that took memory, and counted."""
    ended: dict[str, Ended] = field(default_factory=dict)
    """How the case's test ended on each side while all cases were screened; a failure is kept, and one of the head's
    from later, too."""
    head_was_alone: bool = False
    """Whether the head ended before any other process held the case."""
    taken: list[tuple[CaseRound, bool]] = field(default_factory=list)
    """All rounds that gave a log-ratio, and whether that was while confirming; those that were ruined among them."""
    lost: str | None = None
    """Why a case that passed the screen could not be confirmed."""
    fails: bool = False
    """Whether it fails already, by what needs no further pairs: none are taken."""
    modes: dict[str, Mode] = field(default_factory=dict)
    """How each side's test has the case timed, where they differ: such times are not compared."""

    def add(self, found: CaseRound, policy: PairedPolicy, *, confirming: bool) -> None:
        """Take in one more round."""
        self.asked = True
        self.modes = self.modes or found.differing_modes
        if found.not_started is not None:
            self.lost = found.not_started
            return
        if any(turns.memory is not None for turns in found.turns.values()):
            self.weighed.append(found)
        for side in (HEAD, BASE):
            ended = found.ended.get(side)
            broke = side == HEAD and ended is not None and ended.outcome in ("failed", "died")
            if confirming and not broke and (ended is None or ended.outcome != "passed"):
                self.lost = ended.text if ended is not None else "it was not collected again"
            elif ended is not None and (side not in self.ended or ended.outcome != "passed"):
                self.ended[side] = ended
                self.head_was_alone = self.head_was_alone or (
                    side == HEAD and HEAD not in found.turns and found.first == HEAD
                )
        if found.reading(HEAD, BASE, TWIN) is None:
            if confirming and self.lost is None:
                self.lost = "it was not timed again"
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
        """What it needs next."""
        is_open = self.comparable and self.lost is None and not self.fails
        return stage(self.logs, policy, cases, control) if is_open else Stage.DECIDED

    def turns(self, side: str) -> list[CaseTurns]:
        """The side's turns in the rounds that count."""
        return [found.turns[side] for found in self.rounds if side in found.turns]

    def median_ns(self, side: str) -> float:
        """Typical time of one call: the median, over the process pairs, of the median turn, or of the mean of all."""
        if self.logs.judged is CallTimes.FASTEST:
            return median(median(turn.fastest_ns for turn in one.turns) for one in self.turns(side))
        return median(fmean(turn.mean_ns for turn in one.turns) for one in self.turns(side))


@dataclass
class Taken:
    """What rounds took so far, in seconds: the next one takes about as long."""

    start_s: float = 0.0
    """Of the longest round, without its cases."""
    case_s: dict[str, float] = field(default_factory=dict)
    """By case, when it was last measured."""

    def again_s(self, cases: Sequence[str]) -> float:
        """What a round of these cases takes."""
        return self.start_s + sum(self.case_s.get(case, 0.0) for case in cases)


@dataclass
class Comparison:
    """What a comparison found."""

    cases: dict[str, Compared] = field(default_factory=dict)
    base_only: list[str] = field(default_factory=list)
    """Cases that the head does not have."""
    controls: dict[str, list[Reading]] = field(default_factory=dict)
    """The base's twin over the base, by the case that they were taken with."""
    crowded: set[str] = field(default_factory=set)
    """Cases that three processes at once did not get through: they are confirmed without a control of their own."""
    took: Taken = field(default_factory=Taken)
    most_failures: int = 0
    """So many that fail already end the comparison; 0: it goes on."""
    out_of_time: bool = False

    @property
    def judged(self) -> dict[str, PairedCase]:
        """The pairs of all cases that can be judged by them."""
        return {case: one.logs for case, one in self.cases.items() if one.comparable and one.logs.pairs}

    def in_stage(self, wanted: Stage, policy: PairedPolicy) -> list[Compared]:
        """The cases that stand there."""
        several = sum(one.comparable for one in self.cases.values())
        controls = controls_of(self.judged, self.controls)
        return [
            one
            for case, one in self.cases.items()
            if one.needs(policy, several, controls.get(case, NO_CONTROL)) is wanted
        ]


@dataclass(frozen=True)
class Limits:
    """What a comparison may take."""

    budget_ns: Mapping[str, float]
    """Time of each case's turns in one round."""
    seconds_left: Callable[[], float | None]
    witness: Witness | None = None
    """Says what else went on while turns were taken."""
    weighs: bool = True
    """Whether memory and counts are compared too."""
    floor_ns: Mapping[str, float] = field(default_factory=dict)
    """By case: a slowdown of no more is none."""
    answer_within_s: float = ANSWER_WITHIN_S
    """A process that is silent for longer hangs."""
    ancestry: Ancestry = field(default_factory=Ancestry)
    """What the processes of a round are forked from."""
    old_names: Callable[[Sequence[str], Sequence[str]], Mapping[str, str]] = lambda _head, _base: {}
    """Given what head and base collected, the base's name of each case whose test was moved or renamed."""
    moved: dict[str, str] = field(default_factory=dict)
    """What ``old_names`` said, or what is known beforehand."""


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
        start: makes processes.
        policy: when a case is suspect, and when it is decided.
        limits: of time.
        say: told the case and what is under way.
        into: filled as results come, so that an interrupted comparison has lost nothing.
        stands: told after each round which cases have new results.

    Raises:
        RivalError: a side does not start, or imports the other side's code.
    """
    result = into
    result.cases = {case: Compared(case, limits.floor_ns.get(case, 0.0)) for case in cases}
    for number in range(policy.screen_pairs + SCREENS_AGAIN):
        wanted = [one.case for one in result.in_stage(Stage.UNSCREENED, policy)] if number else list(cases)
        if not wanted or _too_late(limits, wanted, result):
            break
        _screen(result, wanted, number, start, policy, limits, say)
        stands(wanted)
    while suspects := _suspects(result, policy):
        if _too_late(limits, [one.case for one in suspects], result):
            return
        _confirm(result, suspects, start, policy, limits, say)
        stands([one.case for one in suspects])


Looked = tuple[Profile, Profile] | str
Weighed = tuple[Peak, Peak] | str
"""Of base and head; or why there are none."""


@dataclass(frozen=True)
class Look:
    """What is wanted of both sides of a case."""

    profile_ns: float | None
    """Time of each profile; each side may have two, and the faster one counts, since it was disturbed less. None: there
    are none."""
    takes_apart: bool = False
    """Whether the peak of a call is taken apart."""


def looked_into(
    wanted: Mapping[str, Look], start: StartSide, limits: Limits, say: Callable[[str, str], None]
) -> Generator[tuple[str, Looked, Weighed], None, None]:
    """Profiles and peaks of base and head, case by case, from one fresh process each.

    Args:
        wanted: what is looked for, by case.
        start: makes processes.
        limits: of time.
        say: called with the case and what is under way.

    Raises:
        RivalError: a side does not start, or imports the other side's code.
    """

    def plan(case: str) -> RoundPlan:
        look = wanted[case]
        return RoundPlan(0.0, memory=False, profile_ns=look.profile_ns, takes_apart=look.takes_apart)

    def begin(waiting: Sequence[str]) -> Round:
        return _started(start, waiting, limits)

    for case, found, _ in each_once(begin, list(wanted), plan, say, "looking for the cause", Taken()):
        sides = [found.turns[side] for side in (BASE, HEAD) if side in found.turns]
        profiles = [min(one.profiles, key=lambda profile: profile.timer_ns) for one in sides if one.profiles]
        peaks = [one.peak for one in sides if one.peak is not None]
        no_profile, no_peak = (
            _why_not(found, of)
            for of in (lambda one: (one.profiles, one.not_profiled), lambda one: (one.peak, one.not_taken_apart))
        )
        yield (
            case,
            (profiles[0], profiles[1]) if len(profiles) > 1 else no_profile,
            (peaks[0], peaks[1]) if len(peaks) > 1 else no_peak,
        )


def _why_not(found: CaseRound, of: Callable[[CaseTurns], tuple[object, str | None]]) -> str:
    """Why a side was not looked into, the base first: its own words, or how its test ended."""
    for side in (BASE, HEAD):
        turns, ended = found.turns.get(side), found.ended.get(side)
        there, said = of(turns) if turns is not None else (None, None)
        if not there:
            text = ended.text if ended is not None else found.not_started
            last = "the case does not exist there" if text is None else text.strip().rpartition("\n")[2]
            return f"{side}: {said or last or 'it was not examined'}"
    return "it was not examined"


def _suspects(result: Comparison, policy: PairedPolicy) -> list[Compared]:
    """Those that want more pairs; of some too many were ruined even for the screen."""
    short = [one for one in result.in_stage(Stage.UNSCREENED, policy) if one.taken]
    return [*result.in_stage(Stage.OPEN, policy), *short]


def _screen(
    result: Comparison,
    wanted: Sequence[str],
    number: int,
    start: StartSide,
    policy: PairedPolicy,
    limits: Limits,
    say: Callable[[str, str], None],
) -> None:
    """One more pair of processes for every case that wants one."""
    told = f"pair {number + 1} of {policy.screen_pairs}"
    if number >= policy.screen_pairs:
        told = f"pair {number + 1}, for one that was ruined"
    first, weigh = number == 0, limits.weighs and number < WEIGHING_ROUNDS

    def plan(case: str) -> RoundPlan:
        return RoundPlan(limits.budget_ns[case], memory=weigh, either_first=not first)

    def begin(waiting: Sequence[str]) -> Round:
        return _started(start, None if first else waiting, limits)

    for case, found, running in each_once(begin, wanted, plan, say, told, result.took, must_start=first):
        if first and running is not None:
            result.base_only = [case for case in running.cases.get(BASE, ()) if case not in running.cases[HEAD]]
        result.cases[case].add(found, policy, confirming=False)


def _confirm(
    result: Comparison,
    suspects: Sequence[Compared],
    start: StartSide,
    policy: PairedPolicy,
    limits: Limits,
    say: Callable[[str, str], None],
) -> None:
    """One more pair of processes for every suspect, and in one of them the control."""
    had = {one.case: len(result.controls.get(one.case, ())) for one in suspects}
    known = controls_of(result.judged, result.controls)
    roomy = [one for one in suspects if one.case not in result.crowded]
    short = [one for one in roomy if wants_more(result.controls, one.case, known.get(one.case, NO_CONTROL))]
    # Each has it in turn; of those that had it as often, the shortest, since it takes half as long again.
    control = [one.case for one in sorted(short, key=lambda one: (had[one.case], one.median_ns(BASE)))[:1]]
    pairs = max(len(one.logs.pairs) for one in suspects) + 1
    told = f"suspect, pair {pairs} of {policy.looks[-1]} at most"

    def plan(case: str) -> RoundPlan:
        return RoundPlan(limits.budget_ns[case], memory=False, either_first=True)

    def begin(waiting: Sequence[str]) -> Round:
        return _started(start, waiting, limits, [case for case in control if case in waiting])

    for case, found, _ in each_once(begin, [one.case for one in suspects], plan, say, told, result.took):
        if case in control and found.is_spoilt:
            result.crowded.add(case)  # it may be that memory holds two processes and not three: another round tells
            if found.ended.get(HEAD) is None or found.ended[HEAD].outcome != "failed":
                continue
        result.cases[case].add(found, policy, confirming=True)
        control_reading = found.reading(TWIN, BASE)
        if control_reading is not None:
            result.controls.setdefault(case, []).append(control_reading)


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
    """Each case once, in processes of one round; after a process has died the rest goes on in new ones.

    If these do not start either, nothing is measured of the rest; nor once the time of all is over. ``begin`` starts
    the processes for those that wait.
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
                yield case, CaseRound(not_started=str(error)), None
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
        starts.pop(TWIN, None)  # once more, and with as few as will do: memory may have been short
        running = Round(starts, limits.witness, limits.answer_within_s, limits.ancestry, limits.seconds_left)
    for side in (BASE, TWIN):
        if running.strays.get(side):
            running.close()
            raise stray(starts[side].label, running.strays[side])
    if cases is None:
        limits.moved.update(limits.old_names(running.cases[HEAD], running.cases.get(BASE, ())))
    if limits.moved:
        new = {old: case for case, old in limits.moved.items()}
        running.call({side: {new.get(case, case): case for case in own} for side, own in running.cases.items()})
    return running


def _too_late(limits: Limits, wanted: Sequence[str], result: Comparison) -> bool:
    left_s = limits.seconds_left()
    if 0 < result.most_failures <= sum(one.fails for one in result.cases.values()):
        return True
    result.out_of_time = result.out_of_time or (left_s is not None and left_s <= result.took.again_s(wanted))
    return result.out_of_time
