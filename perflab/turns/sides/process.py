"""Starts the process of one side of an A/B comparison."""

from __future__ import annotations

import os
from collections.abc import Callable

from perflab.base.errors import RivalError, SideEndedError
from perflab.processes.child import Start, launch
from perflab.processes.peer import Ending, How, Peer
from perflab.turns.sides.ancestor import Ancestor
from perflab.turns.sides.messages import ANSWERS, PROTOCOL, Answer, Hello, Question

SideProcess = Peer[Question, Answer]
ANSWER_WITHIN_S = 900.0
"""A process that has not answered for this many seconds counts as hanging. A case may train, download or compile before
it is measured, and cannot report that, so the limit is a quarter of an hour."""
_LINES_SHOWN = 25


class OutOfTimeError(Exception):
    """The time of the whole comparison ended before a process had answered."""


def side_process(
    start: Start,
    answer_within_s: float = ANSWER_WITHIN_S,
    ancestor: Ancestor | None = None,
    seconds_left: Callable[[], float | None] = lambda: None,
) -> SideProcess:
    """Start the process of a side, without waiting until it is ready.

    Asking it and waiting for its answer raise ``SideEndedError`` if the process ended or hung, with its last output;
    ``OutOfTimeError`` if the comparison's time is over; and ``RivalError`` if it uses another protocol.

    Args:
        start: the command, environment and directory of the process.
        answer_within_s: a process that is silent for longer is ended; infinite: never.
        ancestor: forks the process; None: it is started as a fresh process.
        seconds_left: returns the time left for the whole comparison, which limits every wait; None: no limit.

    Raises:
        RivalError: the system cannot start such a process.
        NotForkedError: the ancestor cannot fork the process.
    """
    if os.name != "posix":
        raise RivalError("--perf-against needs a POSIX system", "run it on Linux or macOS, or under WSL")
    try:
        return Peer(
            start,
            ANSWERS,
            lambda ending: _error(start, ending),
            silent_s=answer_within_s,
            seconds_left=seconds_left,
            launch=launch if ancestor is None else ancestor.fork,
        )
    except OSError as error:
        raise RivalError(f"{start.role}: cannot start {start.command[0]}: {error}", "check that it runs") from None


def first_answer(side: SideProcess) -> Hello:
    """Wait until the process has collected its cases, and return its first message.

    Raises:
        RivalError: the process ended before that, or uses another protocol.
    """
    answer = side.answer()
    if not isinstance(answer, Hello) or answer.protocol != PROTOCOL:
        raise RivalError(
            f"{side.role} runs another version of perflab than this session, with another protocol",
            "compare with a commit whose perflab has this version or a newer one",
        )
    return answer


def _error(start: Start, ending: Ending) -> Exception:
    """Return the error for a side with which the conversation has ended."""
    if ending.how is How.OUT_OF_TIME:
        return OutOfTimeError()
    if ending.how is How.FOREIGN:
        return RivalError(f"{start.role} {ending.told}", "use the same version of perflab in head and base")
    before = " before it had measured" if ending.how is How.ENDED else ""
    output = "\n".join(f"    {line}" for line in ending.last_lines(_LINES_SHOWN))
    remedy = {
        How.ENDED: f"first make the cases run there: pytest -m perf in {start.directory}",
        How.HUNG: f"run the case alone: pytest -m perf in {start.directory}",
        How.CLOSED: "close no file descriptors in tests but your own: a case was running that did, or a library of its",
    }[ending.how]
    what = f"{start.role}: its process {ending.told}{before}"
    return SideEndedError(what, remedy, output=output, hung=ending.how is How.HUNG)
