"""The messages between a session and the processes of its sides, as plain data over a socket.

The session asks, and a side's process answers. When asked for a case, the process answers ``Ready`` once the case has
called ``perf``, serves questions until ``Finish``, and answers ``Ended`` when the test is over, however the test ended.
The names and fields of the types are the protocol: a side may run another version of perflab than the session.
"""

from __future__ import annotations

import msgspec

from perflab.base.data import Data, Parameters
from perflab.base.errors import InShort
from perflab.base.identity import DEFAULT, Mode
from perflab.processes.channel import Alive
from perflab.results.measurement import LaunchedKernel, Memory, OutOfMemory
from perflab.results.peak import Peak
from perflab.results.profile import Profile
from perflab.results.records import Environment

PROTOCOL = 1


class Hello(Data, frozen=True, tag=True):
    """The first message of a process: the perf cases that its selection contains."""

    protocol: int
    cases: list[str]
    strays: list[str] = []
    """Modules that were imported from the other side's tree."""
    variables: dict[str, str] | None = None
    """The process's environment variables after its tests were imported; None from an older perflab."""


class SetUp(Data, frozen=True, tag=True):
    """Question: begin this case. A process works only when asked, so that it disturbs no other process."""

    case: str
    following: str | None = None
    """The case that this process will be asked for next, so that fixtures that both cases use are kept."""
    sides: int = 1
    """The number of processes that will hold the case at the same time, counting only those that do not hold it yet."""


class Ready(Data, frozen=True, tag=True):
    """Answer to ``SetUp``: the case has called ``perf`` and waits for its turns."""

    case: str
    device: str
    environment: Environment
    parameters: Parameters
    phases: list[str] = []
    strays: list[str] = []
    taken: bool = True
    """Whether any module was imported from the folders that take precedence; true if there are no such folders."""
    copies: list[str] = []
    """Packages of the project that were imported from an installed copy."""
    mode: Mode = DEFAULT
    """The timing mode of the case's calls in this process."""


class Warm(Data, frozen=True, tag=True):
    """Question: warm up, and report how long a call takes."""


class Warmed(Data, frozen=True, tag=True):
    """Answer to ``Warm``: the number of calls in a sample of this process, and the duration of one such sample."""

    repetitions: int
    sample_ns: int
    calls: int
    settled: bool | None
    outputs: dict[str, list[str]] | None = None
    """The outputs of the first call, as summarised by ``measure/calls/outputs.py``; None from an older perflab."""


class Turn(Data, frozen=True, tag=True):
    """Question: take ``samples`` samples of ``repetitions`` calls each.

    If ``rewarm`` is set, one or two samples are taken before them and discarded.
    """

    repetitions: int
    samples: int
    rewarm: bool
    core: int | None = None
    """The core on which the turn begins; None: any core."""


class Taken(Data, frozen=True, tag=True):
    """Answer to ``Turn``: the samples in the order taken."""

    samples_ns: list[int]
    phases_ns: dict[str, list[int]] = {}
    waited_ns: list[int] = []
    """The time in nanoseconds in which the thread waited for a core, by sample; empty from an older perflab."""


class Weigh(Data, frozen=True, tag=True):
    """Question: measure the memory and the counts of one call."""


class Weighed(Data, frozen=True, tag=True):
    """Answer to ``Weigh``: the memory and the counts of one call."""

    memory: Memory | None
    clock: str
    counts: dict[str, int] = {}
    off: dict[str, str] = {}
    """The quantities that are not known, each with the reason."""
    launch_ns: float | None = None
    """The host time in nanoseconds to launch a call on a GPU."""
    kernels: list[LaunchedKernel] = []
    """The Triton kernels that the call launched; empty from an older perflab."""


class Examine(Data, frozen=True, tag=True):
    """Question: profile a call."""

    budget_ns: float


class Examined(Data, frozen=True, tag=True):
    """Answer to ``Examine``: the profile of a call."""

    profile: Profile | None = None
    problem: str | None = None
    """Why there is no profile."""


class TakeApart(Data, frozen=True, tag=True):
    """Question: report what is alive at the memory peak of a call."""


class TakenApart(Data, frozen=True, tag=True):
    """Answer to ``TakeApart``: what is alive at the memory peak of a call."""

    peak: Peak | None = None
    problem: str | None = None
    """Why there is no peak."""


class Finish(Data, frozen=True, tag=True):
    """Question: let the case's test continue, because the case has been measured enough."""


class Bye(Data, frozen=True, tag=True):
    """The last question: tear down all fixtures, and end the process."""


class Ended(Data, frozen=True, tag=True):
    """Answer: a case's test is over. ``outcome`` is ``passed``, ``failed``, ``skipped`` or ``oom``.

    A session also makes an ``Ended`` with the outcome ``died`` for a case whose process ended or hung.
    """

    case: str
    outcome: str
    text: str = ""
    """Why the test was skipped, its failure as pytest prints it, or what happened to the process, with its output."""
    work: dict[str, float] = {}
    facts: Parameters = {}
    out_of_memory: OutOfMemory | None = None
    died: InShort | None = None
    """The end of a process that died."""

    @property
    def in_short(self) -> InShort:
        """The end in one line: the last one of what pytest printed, which has the error."""
        return self.died or InShort(self.text.strip().rpartition("\n")[2])


Question = SetUp | Warm | Turn | Weigh | Examine | TakeApart | Finish | Bye
Answer = Hello | Ready | Warmed | Taken | Weighed | Examined | TakenApart | Ended

QUESTIONS: msgspec.json.Decoder[Question] = msgspec.json.Decoder(Question)
ANSWERS: msgspec.json.Decoder[Answer | Alive] = msgspec.json.Decoder(Answer | Alive)
