"""Rounds of an A/B comparison: one new process a side; in each case the sides take turns.

Sides may also be rows of a table: processes of one version, each with a case of its own.

``interleave.py`` defines how sides take turns. The unit of the statistics is the log-ratio of a case in one pair of
processes, because processes differ by more than blocks of turns do.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from perflab.base.data import Data
from perflab.base.errors import InShort, RivalError, SideEndedError
from perflab.base.identity import Mode
from perflab.judging import interleave
from perflab.judging.interleave import SIDES, Pace, Reading, TurnTime
from perflab.processes.child import Start
from perflab.results.environment import core_numbers
from perflab.results.measurement import Evidence
from perflab.results.profile import Profile
from perflab.turns import messages
from perflab.turns.process import (
    ANSWER_WITHIN_S,
    Ancestry,
    NotForkedError,
    SideProcess,
    check_variables,
    first_answer,
    side_process,
)

LOOKED_ENOUGH_S = 3.0
"""If profiling both sides took longer than this, neither is profiled again: such long profiles average disturbances."""
LEAST_BLOCKS = 2
"""The least number of blocks of a case in a round, even if they exceed the budget."""


@dataclass
class CaseTurns:
    """The results of one side's process for a case in a round."""

    ready: messages.Ready
    warmed: messages.Warmed | None = None
    samples_ns: list[int] = field(default_factory=list)
    """Every sample in nanoseconds, in the order taken; a sample is ``repetitions`` calls."""
    phases_ns: dict[str, list[int]] = field(default_factory=dict)
    turns: list[TurnTime] = field(default_factory=list)
    repetitions: int = 1
    weighed: messages.Weighed = field(default_factory=lambda: messages.Weighed(memory=None, clock="host"))
    examined: list[messages.Examined] = field(default_factory=list)
    taken_apart: messages.TakenApart = field(default_factory=messages.TakenApart)

    @property
    def profile(self) -> Profile | None:
        """The faster one of the side's profiles, since it was disturbed less; None if there is none."""
        found = [one.profile for one in self.examined if one.profile is not None]
        return min(found, key=lambda profile: profile.timer_ns, default=None)


@dataclass
class CaseRound:
    """One case in one round: by side, its turns and how its test ended. A side without the case is absent."""

    turns: dict[str, CaseTurns] = field(default_factory=dict)
    ended: dict[str, messages.Ended] = field(default_factory=dict)
    first: str | None = None
    """The side that was set up first, and so had the device to itself."""
    evidence: Evidence | None = None
    """The other work that was observed on the machine while the turns were taken."""
    not_started: InShort | None = None
    """Why the processes did not start; None if they did."""

    @property
    def is_spoilt(self) -> bool:
        """Whether a process ended before all that set the case up had taken their turns."""
        ends = [one for side, one in self.ended.items() if side in self.turns or one.outcome == "died"]
        return any(one.outcome != "passed" for one in ends)

    def reading(self, head: str, *bases: str) -> Reading | None:
        """Return the log-ratios head / base in these processes; None if a side has no turns.

        Several processes of the base that have turns are averaged. The average varies less than a single process, and
        is independent of the difference between the base's processes, which the null control measures.
        """
        return interleave.reading(self._turns(head), self._turns(*bases))

    @property
    def differing_modes(self) -> dict[str, Mode]:
        """The timing mode of the case by side, if the modes differ; empty if all sides use the same one."""
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
    """Time of both sides' turns in a case, in nanoseconds, if that is enough for LEAST_BLOCKS. The null control's turns
    come on top."""
    memory: bool
    """Whether to measure also the memory and the counts of a call."""
    either_first: bool = False
    """Whether chance decides which side is set up first, since the first side may be the slower one. Otherwise the head
    is first, and has the device to itself should memory run out."""
    profile_ns: float | None = None
    """Time of each profile in nanoseconds, if the round only examines; None: no profiles. Each side is profiled twice,
    in turns, or once if the profiles take long."""
    takes_apart: bool = False
    """Whether the round only examines, and breaks the peak memory of a call down by what is alive."""
    of_rows: bool = False
    """Whether the sides are rows of a table: each uses its own case's timing mode, and all hold memory at once."""


Say = Callable[[str], None]
Witness = Callable[[], Callable[[], Evidence]]
"""A function that is called when turns begin. The function that it returns is called when the turns are over, and
returns the evidence of other work on the machine."""


_Wanted = TypeVar("_Wanted", bound=Data)


class _CaseEndedError(Exception):
    """The case's test has ended on a side that was asked for one of its steps."""


class NotStartedError(SideEndedError):
    """A process of a round ended before it had collected its cases."""


class Round:
    """The live processes of one round, a context manager: leaving its ``with`` block ends the processes."""

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
        self._draw = random.Random()  # a generator of its own: tests of this process may have seeded the module's
        self._running = contextlib.ExitStack()
        self._processes: dict[str, SideProcess] = {}
        self._asked = ""
        """The side that was sent the last question."""
        self.cases: dict[str, list[str]] = {}
        """The cases of each side, under the names that the comparison uses."""
        self._named: dict[str, dict[str, str]] = {}
        """The side's own name of each case: by side, then by the name that the comparison uses."""
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
            NotForkedError: the processes had an ancestor, and should be started without one.
            NotStartedError: a process ended.
            RivalError: the system cannot start a process.
        """
        ancestor = None
        try:
            ancestor = self._running.enter_context(ancestry.ancestor_of(list(starts.values())))
            order = list(starts)
            for side in self._draw.sample(order, len(order)):  # in parallel: nothing is timed yet
                process = side_process(starts[side], answer_within_s, ancestor, self._seconds_left)
                self._processes[side] = self._running.enter_context(process)
            self._processes = {side: self._processes[side] for side in order}
            for side, process in self._processes.items():
                hello = first_answer(process)
                self.cases[side], self.strays[side] = hello.cases, hello.strays
                self._named[side] = {case: case for case in hello.cases}
                if ancestor is not None:
                    check_variables(starts[side], hello.variables)
        except SideEndedError as error:
            self._running.close()
            if ancestor is not None and not error.hung:
                raise NotForkedError(f"a forked process did not start ({error.in_short})") from None
            raise NotStartedError(error.role, error.what, error.remedy, output=error.output) from None
        except BaseException:
            self._running.close()
            raise

    def call(self, names: Mapping[str, Mapping[str, str]]) -> None:
        """Rename the cases: ``names`` maps, for each side, a new name to the side's own name of the case."""
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
                process.dismiss(messages.Bye())
        self.close()

    def close(self) -> None:
        """End all processes of the round."""
        self._running.close()

    def run(self, case: str, following: Sequence[str], plan: RoundPlan, say: Say) -> CaseRound:
        """Measure one case.

        Args:
            case: the comparison's name of the case.
            following: the cases that come after this case in this round, in order.
            plan: how much to measure.
            say: called with a description of the current step.

        Raises:
            RivalError: a process has the wrong code, or gives an answer that does not fit the question.
        """
        result = CaseRound()
        try:
            self._run(result, case, following, plan, say)
        except _CaseEndedError:
            pass  # its end is in the result
        except SideEndedError as error:
            result.ended[self._asked] = _died(case, error)
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
            # The same test must not be its own successor: pytest would not set it up again.
            next_one = next((other for other in later if other != own), None)
            # The sides must fit into memory together; the control's process comes last, and uses what is left.
            sides = max(1, (len(having) if plan.of_rows else min(len(having), SIDES)) - number)
            answer = self._answer_to(side, messages.SetUp(case=own, following=next_one, sides=sides))
            if isinstance(answer, messages.Ready):
                self._check(side, answer)
                result.turns[side] = CaseTurns(answer)
            elif isinstance(answer, messages.Ended):
                result.ended[side] = answer
            else:
                raise self._out_of_turn(side, answer)
        alike = plan.of_rows or not result.differing_modes
        if len([side for side in result.turns if side not in result.ended]) > 1 and alike:
            self._take_turns(result, plan, say)

    def _finish(self, result: CaseRound, case: str) -> None:
        """Let the test continue on every side where it waits for turns.

        How the test ends counts, even if another process is gone.
        """
        for side in result.turns:
            if side in result.ended:
                continue
            try:
                ended = self._answer_to(side, messages.Finish())
            except SideEndedError as error:
                ended = _died(case, error)
            if not isinstance(ended, messages.Ended):
                raise self._out_of_turn(side, ended)
            result.ended[side] = ended

    def _answer_to(self, side: str, question: messages.Question) -> messages.Answer:
        self._asked = side
        self._processes[side].ask(question)
        return self._processes[side].answer()

    def _check(self, side: str, ready: messages.Ready) -> None:
        label = self._processes[side].role
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

    def _out_of_turn(self, side: str, answer: messages.Answer) -> RivalError:
        return RivalError(
            f"the process of {self._processes[side].role} answered {type(answer).__name__} out of order",
            "call perf once per test, and disable plugins that re-run tests",
        )

    def _take_turns(self, result: CaseRound, plan: RoundPlan, say: Say) -> None:
        sides = list(result.turns)
        # One side after another: sides that warm up at once would disturb each other.
        for side in self._draw.sample(sides, len(sides)):
            say(f"warming up {side}")
            result.turns[side].warmed = self._ask(result, side, messages.Warm(), messages.Warmed)
        if plan.profile_ns is not None or plan.takes_apart:
            self._look_into(result, plan, say)
            return
        paces = {
            side: Pace(turns.warmed.repetitions, turns.warmed.sample_ns)
            for side, turns in result.turns.items()
            if turns.warmed
        }
        end_of_turns = self._witness() if self._witness is not None else None
        # On a GPU a side returns its cached memory after a turn; the next turn's first call allocates it again.
        hands_back = result.turns[sides[0]].ready.device != "cpu"
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
            turn = messages.Turn(
                repetitions=shape.repetitions, samples=shape.samples, rewarm=shape.rewarm, core=place.core
            )
            taken = self._ask(result, place.side, turn, messages.Taken)
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
            result.turns[side].weighed = self._ask(result, side, messages.Weigh(), messages.Weighed)

    def _look_into(self, result: CaseRound, plan: RoundPlan, say: Say) -> None:
        """Profile the sides in the order ABBA, so that drift affects both sides; break their memory peaks down."""
        sides = list(result.turns)
        began_s = time.monotonic()
        for number, side in enumerate((*sides, *reversed(sides)) if plan.profile_ns is not None else ()):
            if number == len(sides) and time.monotonic() - began_s > LOOKED_ENOUGH_S:
                break
            say(f"profile of {side}")
            examine = messages.Examine(budget_ns=plan.profile_ns or 0.0)
            result.turns[side].examined.append(self._ask(result, side, examine, messages.Examined))
        for side in sides if plan.takes_apart else ():
            say(f"peak memory of {side}")
            result.turns[side].taken_apart = self._ask(result, side, messages.TakeApart(), messages.TakenApart)

    def _ask(self, result: CaseRound, side: str, question: messages.Question, wanted: type[_Wanted]) -> _Wanted:
        """Ask a side for one step of a case, and return the answer.

        Raises:
            _CaseEndedError: the case ended instead; the result has its end.
        """
        answer = self._answer_to(side, question)
        if isinstance(answer, messages.Ended):
            result.ended[side] = answer
            raise _CaseEndedError
        if not isinstance(answer, wanted):
            raise self._out_of_turn(side, answer)
        return answer


def stray(label: str, strays: Sequence[str]) -> RivalError:
    """Return the error for a side that imported the other side's code."""
    more = f" and {len(strays) - 1} more" if len(strays) > 1 else ""
    return RivalError(
        f"{label} imported this side's code: {strays[0]}{more}",
        "the module is missing there, or found by a finder that goes before the import path; "
        "install the other side in an environment of its own, and use --perf-against=THAT_ENVIRONMENT",
    )


def _died(case: str, error: SideEndedError) -> messages.Ended:
    """Return the end of a case whose process ended or hung."""
    return messages.Ended(case=case, outcome="died", text=str(error), died=error.in_short)
