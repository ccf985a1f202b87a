"""A whole comparison: screen every case with a few rounds, confirm the suspects with new ones.

While suspects are confirmed, a third process, the base's *twin*, takes turns with the others in one of the cases:
the null control. If the base differs from itself, nothing can be said of the head.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from perflab.gate.paired import PairedCase, PairedPolicy, Stage, stage
from perflab.rival.messages import Ended
from perflab.rival.process import Start
from perflab.rival.rounds import CaseRound, CaseTurns, Round, RoundPlan, Witness, stray

HEAD, BASE, TWIN = "head", "base", "twin"

WEIGHING_ROUNDS = 2
"""Memory and counts are exact where two processes agree on them."""

StartSide = Callable[[str, Sequence[str] | None], Start | None]
"""Makes the start of ``head`` or ``base`` for some cases, or for whatever the command selects.

None if the side can have none of them."""


@dataclass
class Compared:
    """All that is known of one case."""

    case: str
    logs: PairedCase = field(default_factory=PairedCase)
    rounds: list[CaseRound] = field(default_factory=list)
    """Those that the log-ratios of the last stage come from."""
    weighed: list[CaseRound] = field(default_factory=list)
    """Those that took memory, and counted."""
    ended: dict[str, Ended] = field(default_factory=dict)
    """How the case's test ended on each side while all cases were screened; a failure is kept."""
    head_was_alone: bool = False
    """Whether the head ended before any other process held the case."""
    lost: str | None = None
    """Why a case that passed the screen could not be confirmed."""

    def add(self, found: CaseRound, *, confirming: bool) -> None:
        """Take in one more round."""
        if any(turns.memory is not None for turns in found.turns.values()):
            self.weighed.append(found)
        for side in (HEAD, BASE):
            ended = found.ended.get(side)
            if confirming and (ended is None or ended.outcome != "passed"):
                self.lost = ended.text if ended is not None else "it was not collected again"
            elif ended is not None and (side not in self.ended or ended.outcome != "passed"):
                self.ended[side] = ended
                self.head_was_alone = self.head_was_alone or (side == HEAD and HEAD not in found.turns)
        ratio = found.log_ratio(HEAD, BASE)
        if ratio is None:
            return
        if confirming and not self.logs.confirm:
            self.rounds = []
        self.rounds.append(found)
        (self.logs.confirm if confirming else self.logs.screen).append(ratio)

    @property
    def comparable(self) -> bool:
        """Whether both sides have the case, and its test passed on both."""
        return {HEAD, BASE} <= set(self.ended) and all(ended.outcome == "passed" for ended in self.ended.values())

    def needs(self, policy: PairedPolicy, cases: int) -> Stage:
        """What it needs next."""
        return stage(self.logs, policy, cases) if self.comparable and self.lost is None else Stage.DECIDED

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
    control: list[float] = field(default_factory=list)
    """Log-ratios of the base's twin over the base."""
    control_case: str | None = None
    out_of_time: bool = False


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


def compare(
    cases: Sequence[str],
    start: StartSide,
    policy: PairedPolicy,
    limits: Limits,
    say: Callable[[str, str], None],
    into: Comparison,
) -> None:
    """Compare head and base in these cases of the head.

    Args:
        cases: node ids, in order.
        start: makes processes.
        policy: when a case is suspect, and when it is decided.
        limits: of time.
        say: told the case and what is under way.
        into: filled as results come, so that an interrupted comparison has lost nothing.

    Raises:
        RivalError: a side does not start, or imports the other side's code.
    """
    result = into
    result.cases = {case: Compared(case) for case in cases}
    longest_s = 0.0
    several = len(cases)
    for number in range(policy.screen_pairs):
        wanted = list(cases)
        if number:
            several = sum(one.comparable for one in result.cases.values())
            wanted = [case for case in cases if result.cases[case].needs(policy, several) is Stage.UNSCREENED]
        if not wanted or _too_late(limits, longest_s, result):
            break
        longest_s = max(longest_s, _screen(result, wanted, number, start, policy, limits, say))
    _confirm(result, several, start, policy, limits, say, longest_s)


def _screen(
    result: Comparison,
    wanted: Sequence[str],
    number: int,
    start: StartSide,
    policy: PairedPolicy,
    limits: Limits,
    say: Callable[[str, str], None],
) -> float:
    """One more pair of processes for every case that wants one; returns the seconds that it took."""
    told = f"pair {number + 1} of {policy.screen_pairs} at most"
    began_s = time.monotonic()
    first, weigh = number == 0, limits.weighs and number < WEIGHING_ROUNDS
    for case, found, running in _rounds(start, wanted, limits, say, told, weigh=weigh, first=first):
        if first:
            result.base_only = [case for case in running.cases.get(BASE, ()) if case not in running.cases[HEAD]]
        result.cases[case].add(found, confirming=False)
    return time.monotonic() - began_s


def _confirm(
    result: Comparison,
    several: int,
    start: StartSide,
    policy: PairedPolicy,
    limits: Limits,
    say: Callable[[str, str], None],
    longest_s: float,
) -> None:
    while True:
        suspects = [one for one in result.cases.values() if one.needs(policy, several) is Stage.OPEN]
        if not suspects or _too_late(limits, longest_s, result):
            return
        if result.control_case is None:  # the shortest: it is measured in every round from here on
            result.control_case = min(suspects, key=lambda one: one.median_ns(BASE)).case
        control = result.control_case
        wanted = [case for case, one in result.cases.items() if case == control or one in suspects]
        pairs = max(len(one.logs.confirm) for one in suspects) + 1
        told = f"suspect, pair {pairs} of {policy.looks[-1]} at most"
        began_s = time.monotonic()
        for case, found, _ in _rounds(start, wanted, limits, say, told, twin=[control]):
            if result.cases[case] in suspects:
                result.cases[case].add(found, confirming=True)
            if case == control and (ratio := found.log_ratio(TWIN, BASE)) is not None:
                result.control.append(ratio)
        longest_s = max(longest_s, time.monotonic() - began_s)


def _rounds(
    start: StartSide,
    wanted: Sequence[str],
    limits: Limits,
    say: Callable[[str, str], None],
    told: str,
    *,
    twin: Sequence[str] = (),
    weigh: bool = False,
    first: bool = False,
) -> Iterator[tuple[str, CaseRound, Round]]:
    """Each case once, in processes of one round; after a process has died the rest goes on in new ones."""
    waiting = list(wanted)
    while waiting:
        with _started(start, None if first else waiting, limits.witness, twin) as running:
            alive = True
            while waiting and alive:
                case = waiting.pop(0)
                plan = RoundPlan(limits.budget_ns[case], memory=weigh)
                found = running.run(case, waiting, plan, _saying(say, case, told))
                alive = all(ended.outcome != "died" for ended in found.ended.values())
                yield case, found, running


def _saying(say: Callable[[str, str], None], case: str, told: str) -> Callable[[str], None]:
    return lambda what: say(case, f"{told}, {what}")


def _started(start: StartSide, cases: Sequence[str] | None, witness: Witness | None, twin: Sequence[str] = ()) -> Round:
    wanted = {HEAD: start(HEAD, cases), BASE: start(BASE, cases), TWIN: start(BASE, twin) if twin else None}
    starts = {side: one for side, one in wanted.items() if one is not None}
    running = Round(starts, witness)
    for side in (BASE, TWIN):
        if running.strays.get(side):
            running.close()
            raise stray(starts[side].label, running.strays[side])
    return running


def _too_late(limits: Limits, needed_s: float, result: Comparison) -> bool:
    left_s = limits.seconds_left()
    result.out_of_time = result.out_of_time or (left_s is not None and left_s < needed_s)
    return result.out_of_time
