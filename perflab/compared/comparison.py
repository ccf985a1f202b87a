"""A whole A/B comparison: screen every case with a few pairs, confirm suspects with more.

While suspects are confirmed, a third process, the base's *twin*, takes turns with the others in one of the cases, in
another one each round: the null control. What the base differs from itself is taken off what the head differs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from perflab.compared.judge.null_control import NO_CONTROL, Control, wants_more
from perflab.compared.judge.paired import PairedCase, PairedPolicy, Stage, controls_of, counted, is_doubtful, stage
from perflab.compared.rounds import CaseRound, CaseTurns, Round, RoundPlan, Witness, stray
from perflab.compared.sides.messages import Ended
from perflab.compared.sides.process import ANSWER_WITHIN_S, Start
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
    logs: PairedCase = field(default_factory=PairedCase)
    rounds: list[CaseRound] = field(default_factory=list)
    """Those that the log-ratios come from."""
    weighed: list[CaseRound] = field(default_factory=list)
    """Those that took memory, and counted."""
    ended: dict[str, Ended] = field(default_factory=dict)
    """How the case's test ended on each side while all cases were screened; a failure is kept."""
    head_was_alone: bool = False
    """Whether the head ended before any other process held the case."""
    taken: list[tuple[CaseRound, bool]] = field(default_factory=list)
    """All rounds that gave a log-ratio, and whether that was while confirming; those that were ruined among them."""
    lost: str | None = None
    """Why a case that passed the screen could not be confirmed."""
    modes: dict[str, Mode] = field(default_factory=dict)
    """How each side's test has the case timed, where they differ: such times are not compared."""

    def add(self, found: CaseRound, policy: PairedPolicy, *, confirming: bool) -> None:
        """Take in one more round."""
        self.modes = self.modes or found.differing_modes
        if any(turns.memory is not None for turns in found.turns.values()):
            self.weighed.append(found)
        for side in (HEAD, BASE):
            ended = found.ended.get(side)
            if confirming and (ended is None or ended.outcome != "passed"):
                self.lost = ended.text if ended is not None else "it was not collected again"
            elif ended is not None and (side not in self.ended or ended.outcome != "passed"):
                self.ended[side] = ended
                self.head_was_alone = self.head_was_alone or (
                    side == HEAD and HEAD not in found.turns and found.first == HEAD
                )
        ratio = found.log_ratio(HEAD, BASE, TWIN)
        if ratio is None:
            if confirming and self.lost is None:
                self.lost = "it was not timed again"
            return
        self.taken.append((found, confirming))
        errors = [taken.own_error(HEAD, BASE, TWIN) for taken, _ in self.taken]
        counts = counted(errors, policy)
        self.logs.doubtful = sum(
            is_doubtful(error, policy) for error, counts_too in zip(errors, counts, strict=True) if counts_too
        )
        kept = [one for one, counts_too in zip(self.taken, counts, strict=True) if counts_too]
        self.rounds = [taken for taken, _ in kept]
        logs = [(log, late) for taken, late in kept if (log := taken.log_ratio(HEAD, BASE, TWIN)) is not None]
        self.logs.screen = [log for log, late in logs if not late]
        self.logs.confirm = [log for log, late in logs if late]

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
        return stage(self.logs, policy, cases, control) if self.comparable and self.lost is None else Stage.DECIDED

    def turns(self, side: str) -> list[CaseTurns]:
        """The side's turns in the rounds that count."""
        return [found.turns[side] for found in self.rounds if side in found.turns]

    def median_ns(self, side: str) -> float:
        """Typical time of one call: the median, over the process pairs, of the median turn."""
        return median(median(turns.turns_ns) for turns in self.turns(side))


@dataclass
class Comparison:
    """What a comparison found."""

    cases: dict[str, Compared] = field(default_factory=dict)
    base_only: list[str] = field(default_factory=list)
    """Cases that the head does not have."""
    controls: dict[str, list[float]] = field(default_factory=dict)
    """Log-ratios of the base's twin over the base, by the case that they were taken with."""
    out_of_time: bool = False

    @property
    def judged(self) -> dict[str, PairedCase]:
        """The pairs of all cases that can be judged by them."""
        return {case: one.logs for case, one in self.cases.items() if one.comparable and one.logs.screen}

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
    answer_within_s: float = ANSWER_WITHIN_S
    """A process that is silent for longer hangs."""


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
    result.cases = {case: Compared(case) for case in cases}
    longest_s = 0.0
    for number in range(policy.screen_pairs + SCREENS_AGAIN):
        wanted = [one.case for one in result.in_stage(Stage.UNSCREENED, policy)] if number else list(cases)
        if not wanted or _too_late(limits, longest_s, result):
            break
        began_s = time.monotonic()
        _screen(result, wanted, number, start, policy, limits, say)
        stands(wanted)
        longest_s = max(longest_s, time.monotonic() - began_s)
    while suspects := _suspects(result, policy):
        if _too_late(limits, longest_s, result):
            return
        began_s = time.monotonic()
        _confirm(result, suspects, start, policy, limits, say)
        stands([one.case for one in suspects])
        longest_s = max(longest_s, time.monotonic() - began_s)


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

    for case, found, _ in _rounds(start, list(wanted), limits, plan, say, "looking for the cause"):
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
            last = ended.text.strip().rpartition("\n")[2] if ended is not None else "the case does not exist there"
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
    first, weigh = number == 0, limits.weighs and number < WEIGHING_ROUNDS

    def plan(case: str) -> RoundPlan:
        return RoundPlan(limits.budget_ns[case], memory=weigh, either_first=not first)

    for case, found, running in _rounds(start, wanted, limits, plan, say, told, first=first):
        if first:
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
    short = [one for one in suspects if wants_more(result.controls, one.case, known.get(one.case, NO_CONTROL))]
    # Each has it in turn; of those that had it as often, the shortest, since it takes half as long again.
    control = [one.case for one in sorted(short, key=lambda one: (had[one.case], one.median_ns(BASE)))[:1]]
    pairs = max(len(one.logs.pairs) for one in suspects) + 1
    told = f"suspect, pair {pairs} of {policy.looks[-1]} at most"

    def plan(case: str) -> RoundPlan:
        return RoundPlan(limits.budget_ns[case], memory=False, either_first=True)

    for case, found, _ in _rounds(start, [one.case for one in suspects], limits, plan, say, told, twin=control):
        result.cases[case].add(found, policy, confirming=True)
        ratio = found.log_ratio(TWIN, BASE)
        if ratio is not None:
            result.controls.setdefault(case, []).append(ratio)


def _rounds(
    start: StartSide,
    wanted: Sequence[str],
    limits: Limits,
    plan: Callable[[str], RoundPlan],
    say: Callable[[str, str], None],
    told: str,
    *,
    twin: Sequence[str] = (),
    first: bool = False,
) -> Iterator[tuple[str, CaseRound, Round]]:
    """Each case once, in processes of one round; after a process has died the rest goes on in new ones."""
    waiting = list(wanted)
    while waiting:
        with _started(start, None if first else waiting, limits, twin) as running:
            alive = True
            while waiting and alive:
                case = waiting.pop(0)
                found = running.run(case, waiting, plan(case), _saying(say, case, told))
                alive = all(ended.outcome != "died" for ended in found.ended.values())
                yield case, found, running


def _saying(say: Callable[[str, str], None], case: str, told: str) -> Callable[[str], None]:
    return lambda what: say(case, f"{told}, {what}")


def _started(start: StartSide, cases: Sequence[str] | None, limits: Limits, twin: Sequence[str] = ()) -> Round:
    wanted = {HEAD: start(HEAD, cases), BASE: start(BASE, cases), TWIN: start(BASE, twin) if twin else None}
    starts = {side: one for side, one in wanted.items() if one is not None}
    running = Round(starts, limits.witness, limits.answer_within_s)
    for side in (BASE, TWIN):
        if running.strays.get(side):
            running.close()
            raise stray(starts[side].label, running.strays[side])
    return running


def _too_late(limits: Limits, needed_s: float, result: Comparison) -> bool:
    left_s = limits.seconds_left()
    result.out_of_time = result.out_of_time or (left_s is not None and left_s < needed_s)
    return result.out_of_time
