"""The messages between a session and the processes of its sides, as plain data over a socket.

The session asks, a side's process answers. Asked for a case, it says ``Ready`` when the case has called ``perf``,
serves questions until ``Finish``, and says ``Ended`` when the test is over, however it ended. The types' names and
fields are the protocol: a side may run another perflab than the session.
"""

from __future__ import annotations

from multiprocessing.connection import Connection

import msgspec

from perflab.data import Data, Parameters, to_json
from perflab.measure.records import Memory, OutOfMemory
from perflab.mode import DEFAULT, Mode
from perflab.profiles.records import Peak, Profile
from perflab.records import Environment

PROTOCOL = 1


class Hello(Data, frozen=True, tag=True):
    """First word of a process: which perf cases its selection holds."""

    protocol: int
    cases: list[str]
    strays: list[str] = []
    """Modules that were imported from the other side's tree."""
    variables: dict[str, str] | None = None
    """Its environment now that its tests are imported; None of an older perflab."""


class SetUp(Data, frozen=True, tag=True):
    """Question: begin this case. Nothing happens in a process unasked, so that no other one is disturbed."""

    case: str
    following: str | None = None
    """The case that this process will be asked for next: fixtures that both use are kept."""
    sides: int = 1
    """How many processes are to hold the case at once, of those that do not hold it yet."""


class Ready(Data, frozen=True, tag=True):
    """Answer to ``SetUp``: the case has called ``perf`` and waits for its turns."""

    case: str
    device: str
    environment: Environment
    parameters: Parameters
    phases: list[str] = []
    strays: list[str] = []
    taken: bool = True
    """Whether anything was imported from the folders that were to go first; true where there are none."""
    copies: list[str] = []
    """Packages of the project that were imported from an installed copy."""
    mode: Mode = DEFAULT
    """How the case's calls are timed there."""


class Warm(Data, frozen=True, tag=True):
    """Question: warm up, and say how long a call takes."""


class Warmed(Data, frozen=True, tag=True):
    """Answer to ``Warm``: how many calls make a sample here, and how long one sample of so many takes."""

    repetitions: int
    sample_ns: int
    calls: int
    settled: bool | None
    outputs: dict[str, list[str]] | None = None
    """What the first call left behind, as ``measure/outputs.py`` sums it up; None of an older perflab."""


class Turn(Data, frozen=True, tag=True):
    """Question: take so many samples of so many calls each, after one that is thrown away if ``rewarm`` is set."""

    repetitions: int
    samples: int
    rewarm: bool
    core: int | None = None
    """Core to begin the turn on."""


class Taken(Data, frozen=True, tag=True):
    """Answer to ``Turn``, in the order taken."""

    samples_ns: list[int]
    phases_ns: dict[str, list[int]] = {}
    waited_ns: list[int] = []
    """Of each sample, the time in which its thread waited for a core; empty of an older perflab."""


class Weigh(Data, frozen=True, tag=True):
    """Question: take the memory of one call."""


class Weighed(Data, frozen=True, tag=True):
    """Answer to ``Weigh``."""

    memory: Memory | None
    clock: str
    counts: dict[str, int] = {}
    off: dict[str, str] = {}
    """By quantity, why it is not known."""
    launch_ns: float | None = None
    """Host time to launch a call on a GPU."""


class Examine(Data, frozen=True, tag=True):
    """Question: profile a call."""

    budget_ns: float


class Examined(Data, frozen=True, tag=True):
    """Answer to ``Examine``."""

    profile: Profile | None = None
    problem: str | None = None
    """Why there is none."""


class TakeApart(Data, frozen=True, tag=True):
    """Question: say what is alive at the peak of a call."""


class TakenApart(Data, frozen=True, tag=True):
    """Answer to ``TakeApart``."""

    peak: Peak | None = None
    problem: str | None = None
    """Why there is none."""


class Finish(Data, frozen=True, tag=True):
    """The case has been measured enough: let its test go on."""


class Bye(Data, frozen=True, tag=True):
    """No more questions: take down what is set up, and end."""


class Ended(Data, frozen=True, tag=True):
    """A case's test is over: ``passed``, ``failed``, ``skipped`` or ``oom``."""

    case: str
    outcome: str
    text: str = ""
    """Why it was skipped, or the failure as pytest prints it."""
    work: dict[str, float] = {}
    facts: Parameters = {}
    out_of_memory: OutOfMemory | None = None


Question = SetUp | Warm | Turn | Weigh | Examine | TakeApart | Finish | Bye
Answer = Hello | Ready | Warmed | Taken | Weighed | Examined | TakenApart | Ended

QUESTIONS: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)
ANSWERS: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)


def send(connection: Connection, message: Question | Answer) -> None:
    """Say something to the other end.

    Raises:
        OSError: the other end is gone.
    """
    connection.send_bytes(to_json(message))
