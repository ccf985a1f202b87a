"""Rounds of an A/B comparison: one new process a side; in each case the sides take turns.

Sides may also be rows of a table: processes of one version, each with a case of its own.

How they take turns ``interleave.py`` knows. The log-ratio of a case in this pair of processes is the unit of
statistics: processes differ by more than blocks of turns do.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from perflab.compared import interleave
from perflab.compared.interleave import SIDES, Pace, Reading, TurnTime
from perflab.compared.sides.ancestor import Ancestry, NotForkedError, Start, check_variables
from perflab.compared.sides.messages import (
    Answer,
    Ended,
    Examine,
    Examined,
    Finish,
    Hello,
    Question,
    Ready,
    SetUp,
    TakeApart,
    Taken,
    TakenApart,
    Turn,
    Warm,
    Warmed,
    Weigh,
    Weighed,
)
from perflab.compared.sides.process import ANSWER_WITHIN_S, SideProcess
from perflab.environment import core_numbers
from perflab.errors import RivalError, SideEndedError
from perflab.measure.records import Evidence, Memory
from perflab.mode import Mode
from perflab.profiles.records import Peak, Profile

LOOKED_ENOUGH_S = 3.0
"""Profiles of both sides that took longer are not taken again: their calls met what disturbs them many times."""
LEAST_BLOCKS = 2
"""Blocks of a case in a round, however long they take."""


@dataclass
class CaseTurns:
    """What one side's process gave for a case in a round."""

    ready: Ready
    warmed: Warmed | None = None
    samples_ns: list[int] = field(default_factory=list)
    """All samples, in the order taken; each of ``repetitions`` calls."""
    phases_ns: dict[str, list[int]] = field(default_factory=dict)
    turns: list[TurnTime] = field(default_factory=list)
    repetitions: int = 1
    memory: Memory | None = None
    counts: dict[str, int] = field(default_factory=dict)
    off: dict[str, str] = field(default_factory=dict)
    launch_ns: float | None = None
    clock: str = "host"
    profiles: list[Profile] = field(default_factory=list)
    not_profiled: str | None = None
    peak: Peak | None = None
    not_taken_apart: str | None = None


@dataclass
class CaseRound:
    """One case in one round: by side, its turns and how its test ended. A side that has not the case is missing."""

    turns: dict[str, CaseTurns] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    first: str | None = None
    """The side that was set up first: it had the device for itself."""
    evidence: Evidence | None = None
    """What else went on while the turns were taken."""
    not_started: str | None = None
    """Why no process could be asked."""

    @property
    def is_spoilt(self) -> bool:
        """Whether a process ended before all that set the case up had taken their turns."""
        ends = [one for side, one in self.ended.items() if side in self.turns or one.outcome == "died"]
        return any(one.outcome != "passed" for one in ends)

    def reading(self, head: str, *bases: str) -> Reading | None:
        """Head over base, in these processes. None if a side has no turns.

        Of several processes of the base, those that have turns count together: what they have in common differs less
        from the next one's than a single process does, and has nothing to do with what they differ by from each other.
        """
        return interleave.reading(self._turns(head), self._turns(*bases))

    @property
    def differing_modes(self) -> dict[str, Mode]:
        """By side, how its test has the case timed, if not all sides have it timed alike."""
        modes = {side: turns.ready.mode for side, turns in self.turns.items()}
        return modes if len(set(modes.values())) > 1 else {}

    def _turns(self, *sides: str) -> list[TurnTime]:
        return interleave.together(
            [self.turns[side].turns for side in sides if side in self.turns and self.turns[side].turns]
        )


@dataclass(frozen=True)
class RoundPlan:
    """How much of each case a round takes."""

    budget_ns: float
    """Time of both sides' turns in a case, if that is enough for LEAST_BLOCKS. The null control's come on top."""
    memory: bool
    """Whether the memory of a call is taken too, and what it does is counted."""
    either_first: bool = False
    """Whether chance decides which side is set up first: that side may be the slower one. Else it is the head, which
    then has the device for itself, should memory run out."""
    profile_ns: float | None = None
    """Time of each profile, where sides are only looked into: twice each, in turns, or once where they take long."""
    takes_apart: bool = False
    """Whether sides are only looked into, and say what is alive at the peak of a call."""
    of_rows: bool = False
    """Whether the sides are rows of a table: each is timed as its own case asks, and all hold memory at once."""


Say = Callable[[str], None]
Witness = Callable[[], Callable[[], Evidence]]
"""Called when turns begin; what it returns is called when they are over, and says what else went on."""


class NotStartedError(SideEndedError):
    """A process of a round ended before it had collected its cases."""


class Round:
    """The live processes of one round. Leave its ``with`` block, and they are gone."""

    def __init__(
        self,
        starts: dict[str, Start],
        witness: Witness | None = None,
        answer_within_s: float = ANSWER_WITHIN_S,
        ancestry: Ancestry | None = None,
        seconds_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._witness = witness
        self._seconds_left = seconds_left
        self._draw = random.Random()  # its own: the tests of this process may have seeded the module's
        self._running = contextlib.ExitStack()
        self._processes: dict[str, SideProcess] = {}
        self._asked = ""
        """The side that was asked last."""
        self.cases: dict[str, list[str]] = {}
        """By side, its cases as the comparison calls them."""
        self._named: dict[str, dict[str, str]] = {}
        """By side, its own names of cases by these."""
        self.strays: dict[str, list[str]] = {}
        ancestry = ancestry or Ancestry()
        try:
            self._begin(starts, answer_within_s, ancestry)
        except NotForkedError as error:
            ancestry.refused = str(error)
            self._begin(starts, answer_within_s, ancestry)

    def _begin(self, starts: dict[str, Start], answer_within_s: float, ancestry: Ancestry) -> None:
        """Start all processes, and wait until they have collected their cases.

        Raises:
            NotForkedError: they had an ancestor, and it is better if they have none.
            NotStartedError: one ended.
            RivalError: the system cannot start one.
        """
        ancestor = None
        try:
            ancestor = self._running.enter_context(ancestry.ancestor_of(list(starts.values())))
            order = list(starts)
            for side in self._draw.sample(order, len(order)):  # they start up side by side: nothing is timed yet
                process = SideProcess(starts[side], answer_within_s, ancestor, self._seconds_left)
                self._processes[side] = self._running.enter_context(process)
            self._processes = {side: self._processes[side] for side in order}
            for side, process in self._processes.items():
                hello = process.hello()
                self.cases[side], self.strays[side] = hello.cases, hello.strays
                self._named[side] = {case: case for case in hello.cases}
                if ancestor is not None:
                    check_variables(starts[side], hello.variables)
        except SideEndedError as error:
            self._running.close()
            if ancestor is not None and not error.hung:
                said = error.problem.partition("\n")[0].removesuffix("; its output:")
                raise NotForkedError(f"a forked process did not start ({said})") from None
            raise NotStartedError(error.problem, error.remedy) from None
        except BaseException:
            self._running.close()
            raise

    def call(self, names: Mapping[str, Mapping[str, str]]) -> None:
        """Call cases by other names: by side and name, which of the side's cases that is."""
        self._named = {
            side: {name: own for name, own in names.get(side, {}).items() if own in cases}
            for side, cases in self.cases.items()
        }
        self.cases = {side: list(named) for side, named in self._named.items()}

    def __enter__(self) -> Round:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        if kind is None:
            for process in self._processes.values():
                process.dismiss()
        self.close()

    def close(self) -> None:
        """End all its processes."""
        self._running.close()

    def run(self, case: str, following: Sequence[str], plan: RoundPlan, say: Say) -> CaseRound:
        """Measure one case.

        Args:
            case: which.
            following: the cases that come after it in this round, in order.
            plan: how much of it.
            say: told what is under way.

        Raises:
            RivalError: a process has the wrong code, or says what it should not.
        """
        result = CaseRound()
        try:
            self._run(result, case, following, plan, say)
        except SideEndedError as error:
            result.ended[self._asked] = Ended(case=case, outcome="died", text=str(error))
        self._finish(result, case)
        return result

    def _run(self, result: CaseRound, case: str, following: Sequence[str], plan: RoundPlan, say: Say) -> None:
        having = [side for side in self._processes if case in self._named[side]]
        if plan.either_first and self._draw.random() < 0.5:
            having[:SIDES] = having[:SIDES][::-1]
        result.first = having[0] if having else None
        for number, side in enumerate(having):
            say(f"setting up {side}")
            named = self._named[side]
            own, later = named[case], (named[other] for other in following if other in named)
            # A test that came after itself would not be set up again.
            next_one = next((other for other in later if other != own), None)
            # The control's process comes last, and must find room that is left; the sides must fit together.
            sides = max(1, (len(having) if plan.of_rows else min(len(having), SIDES)) - number)
            answer = self._answer_to(side, SetUp(case=own, following=next_one, sides=sides))
            if isinstance(answer, Ready):
                self._check(side, answer)
                result.turns[side] = CaseTurns(answer)
            elif isinstance(answer, Ended):
                result.ended[side] = answer
            else:
                raise self._out_of_turn(side, answer)
        alike = plan.of_rows or not result.differing_modes
        if len([side for side in result.turns if side not in result.ended]) > 1 and alike:
            self._take_turns(result, plan, say)

    def _finish(self, result: CaseRound, case: str) -> None:
        """Let the test go on wherever it waits for turns: how it ends counts, even if another process is gone."""
        for side in result.turns:
            if side in result.ended:
                continue
            try:
                ended = self._answer_to(side, Finish())
            except SideEndedError as error:
                ended = Ended(case=case, outcome="died", text=str(error))
            if not isinstance(ended, Ended):
                raise self._out_of_turn(side, ended)
            result.ended[side] = ended

    def _answer_to(self, side: str, question: Question) -> Answer:
        self._asked = side
        self._processes[side].ask(question)
        return self._processes[side].answer()

    def _check(self, side: str, ready: Ready) -> None:
        label = self._processes[side].label
        if ready.strays:
            raise stray(label, ready.strays)
        if ready.copies:
            raise RivalError(
                f"{label} runs installed copies of this project's code: {', '.join(ready.copies[:3])}; "
                "both sides would run the same",
                "install the project so that its source is used (pip install --editable .), or compare two installed "
                "versions: --perf-against=FOLDER_OF_PACKAGES",
            )
        if not ready.taken:
            raise RivalError(
                f"nothing was imported from {label}: head would be compared with itself",
                "name the folder that contains the package itself, such as DIR of `pip install --target=DIR`",
            )

    def _out_of_turn(self, side: str, answer: Answer) -> RivalError:
        return RivalError(
            f"the process of {self._processes[side].label} answered {type(answer).__name__} out of order",
            "call perf once per test, and disable plugins that re-run tests",
        )

    def _take_turns(self, result: CaseRound, plan: RoundPlan, say: Say) -> None:
        sides = list(result.turns)
        # One after another: two that warm up at once would disturb each other.
        for side in self._draw.sample(sides, len(sides)):
            say(f"warming up {side}")
            warmed = self._ask(result, side, Warm())
            if not isinstance(warmed, Warmed):
                return
            result.turns[side].warmed = warmed
        if plan.profile_ns is not None or plan.takes_apart:
            self._look_into(result, plan, say)
            return
        paces = {
            side: Pace(turns.warmed.repetitions, turns.warmed.sample_ns)
            for side, turns in result.turns.items()
            if turns.warmed
        }
        end_of_turns = self._witness() if self._witness is not None else None
        # On a GPU cached memory was handed back, and the first call of a turn asks the driver for it again.
        hands_back = result.turns[sides[0]].ready.device.startswith("cuda")
        shapes = {
            side: interleave.shape_of(
                [pace] if plan.of_rows else list(paces.values()),
                plan.budget_ns,
                least_blocks=LEAST_BLOCKS,
                hands_back=hands_back,
            )
            for side, pace in paces.items()
        }
        blocks = min(shape.blocks for shape in shapes.values())
        for place in interleave.places(sides, blocks, core_numbers(), self._draw):
            say(f"block {place.block + 1} of {blocks}")
            shape = shapes[place.side]
            turn = Turn(repetitions=shape.repetitions, samples=shape.samples, rewarm=shape.rewarm, core=place.core)
            taken = self._ask(result, place.side, turn)
            if not isinstance(taken, Taken):
                return
            turns = result.turns[place.side]
            turns.repetitions = shape.repetitions
            turns.samples_ns += taken.samples_ns
            turns.turns.append(interleave.turn_time(taken.samples_ns, taken.waited_ns, shape.repetitions))
            for phase, samples_ns in taken.phases_ns.items():
                turns.phases_ns.setdefault(phase, []).extend(samples_ns)
        if end_of_turns is not None:
            result.evidence = end_of_turns()
        for side in sides if plan.memory else ():
            say(f"memory of {side}")
            weighed = self._ask(result, side, Weigh())
            if not isinstance(weighed, Weighed):
                return
            turns = result.turns[side]
            turns.memory, turns.counts, turns.clock = weighed.memory, weighed.counts, weighed.clock
            turns.off, turns.launch_ns = weighed.off, weighed.launch_ns

    def _look_into(self, result: CaseRound, plan: RoundPlan, say: Say) -> None:
        """Profile the sides in the order ABBA, so that what drifts meets both; take their peaks apart."""
        sides = list(result.turns)
        began_s = time.monotonic()
        for number, side in enumerate((*sides, *reversed(sides)) if plan.profile_ns is not None else ()):
            if number == len(sides) and time.monotonic() - began_s > LOOKED_ENOUGH_S:
                break
            say(f"profile of {side}")
            examined = self._ask(result, side, Examine(budget_ns=plan.profile_ns or 0.0))
            if not isinstance(examined, Examined):
                return
            turns = result.turns[side]
            turns.not_profiled = examined.problem
            turns.profiles += [examined.profile] if examined.profile is not None else []
        for side in sides if plan.takes_apart else ():
            say(f"peak memory of {side}")
            found = self._ask(result, side, TakeApart())
            if not isinstance(found, TakenApart):
                return
            result.turns[side].peak, result.turns[side].not_taken_apart = found.peak, found.problem

    def _ask(self, result: CaseRound, side: str, question: Question) -> Answer:
        """Ask for a step of a case; if the case ended instead, that is kept."""
        answer = self._answer_to(side, question)
        if isinstance(answer, Hello | Ready):
            raise self._out_of_turn(side, answer)
        if isinstance(answer, Ended):
            result.ended[side] = answer
        return answer


def stray(label: str, strays: Sequence[str]) -> RivalError:
    """What is said of a side that runs the other one's code."""
    more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
    return RivalError(
        f"{label} imported this side's code: {strays[0]}{more}",
        "the module is missing there, or found by a finder that goes before the import path; "
        "install the other side in an environment of its own, and use --perf-against=THAT_ENVIRONMENT",
    )
