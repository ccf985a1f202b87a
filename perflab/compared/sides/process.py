"""Starts, asks and stops the process of one side."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection

import msgspec

from perflab.child import end_group
from perflab.compared.sides.ancestor import Ancestor, Forked, Start
from perflab.compared.sides.messages import ANSWERS, PROTOCOL, Answer, Bye, Hello, Question, send
from perflab.errors import RivalError, SideEndedError
from perflab.lifeline import with_lifeline

SOCKET_VARIABLE = "PERFLAB_SOCKET"
"""The environment variable that gives a process the number of the socket on which it receives questions."""
_LINES_SHOWN = 25
_CLOSING_S = 5.0
"""The time in seconds that a process may take to end after it has closed its connection."""
_PATIENCE_S = 10.0
"""The time in seconds that a process may take to tear down its fixtures."""
ANSWER_WITHIN_S = 900.0
"""A process that has not answered for this many seconds counts as hanging. A case may train, download or compile before
it is measured, and cannot report that, so the limit is a quarter of an hour."""


class OutOfTimeError(Exception):
    """The time of the whole comparison ended before a process had answered."""


class SideProcess:
    """A live process of one side, a context manager: ``close``, or leaving the ``with`` block, ends the process."""

    def __init__(
        self,
        start: Start,
        answer_within_s: float = ANSWER_WITHIN_S,
        ancestor: Ancestor | None = None,
        seconds_left: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Start the process without waiting until it is ready.

        Args:
            start: the command, environment and directory of the process.
            answer_within_s: a process that is silent for longer is ended; infinite: never.
            ancestor: forks the process; None: it is started as a fresh process.
            seconds_left: returns the time left for the whole comparison, which limits every wait; None: no limit.

        Raises:
            RivalError: the system cannot start such a process.
            NotForkedError: the ancestor cannot fork the process.
        """
        self._patience_s = 0.0
        self._answer_within_s = answer_within_s
        self._seconds_left = seconds_left
        self.label = start.label
        self._directory = start.directory
        if os.name != "posix":
            raise RivalError("--perf-against needs a POSIX system", "run it on Linux or macOS, or under WSL")
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        try:
            self._process = _process(start, ancestor, theirs.fileno(), self._output.fileno())
        except BaseException as error:
            self._connection.close()
            self._output.close()
            if isinstance(error, OSError):
                problem = f"{start.label}: cannot start {start.command[0]}: {error}"
                raise RivalError(problem, "check that it runs") from None
            raise
        finally:
            theirs.close()

    def __enter__(self) -> SideProcess:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def hello(self) -> Hello:
        """Wait until the process has collected its cases, and return its first message.

        Raises:
            RivalError: the process ended before that, or uses another protocol.
        """
        answer = self.answer()
        if not isinstance(answer, Hello) or answer.protocol != PROTOCOL:
            raise RivalError(
                f"{self.label} runs another version of perflab than this session, with another protocol",
                "compare with a commit whose perflab has this version or a newer one",
            )
        return answer

    def ask(self, question: Question) -> None:
        """Send a question to the process.

        Raises:
            RivalError: the process has ended; its last output is in the error.
        """
        try:
            send(self._connection, question)
        except OSError:
            raise self._ended() from None

    def answer(self) -> Answer:
        """Wait for the process's answer, and return it.

        Raises:
            RivalError: the process has ended, or hung and was ended; its last output is in the error.
            OutOfTimeError: the comparison's time is over.
        """
        left_s = self._seconds_left()
        within_s = self._answer_within_s if left_s is None else min(self._answer_within_s, max(0.0, left_s))
        try:
            if not self._connection.poll(None if math.isinf(within_s) else within_s):
                raise self._hung() if within_s == self._answer_within_s else OutOfTimeError
            return ANSWERS.decode(self._connection.recv_bytes())
        except (EOFError, OSError):
            raise self._ended() from None
        except msgspec.DecodeError as error:
            raise RivalError(
                f"{self.label} answers in another protocol: {error}", "use the same version of perflab in head and base"
            ) from None

    def _ended(self) -> SideEndedError:
        try:
            status = self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            end_group(self._process)
            return SideEndedError(
                f"{self.label}: its process closed its connection to this session and was ended; it said:\n"
                f"{self.last_output()}",
                "close no file descriptors in tests but your own: a case was running that did, or a library of its",
            )
        said = f"was killed by signal {-status}" if status < 0 else f"ended (exit status {status})"
        return SideEndedError(
            f"{self.label}: its process {said} before it had measured; its output:\n{self.last_output()}",
            f"first make the cases run there: pytest -m perf in {self._directory}",
        )

    def _hung(self) -> SideEndedError:
        said = self.last_output()
        end_group(self._process)
        return SideEndedError(
            f"{self.label}: its process hung and was stopped: no answer for {self._answer_within_s:g} s; "
            f"its output:\n{said}",
            f"run the case alone: pytest -m perf in {self._directory}",
            hung=True,
        )

    def last_output(self) -> str:
        """Return the last lines of the process's output, indented."""
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        return "\n".join(f"    {line}" for line in text.splitlines()[-_LINES_SHOWN:])

    def dismiss(self) -> None:
        """Ask the process to tear down its fixtures and end by itself; ``close`` waits up to _PATIENCE_S for that."""
        with contextlib.suppress(OSError):
            send(self._connection, Bye())
            self._patience_s = _PATIENCE_S

    def close(self) -> None:
        """End the process and everything that it started. A process that was not dismissed is ended at once."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._patience_s)
        self._connection.close()
        end_group(self._process)
        self._output.close()


def _process(start: Start, ancestor: Ancestor | None, side: int, output: int) -> Forked | subprocess.Popen[bytes]:
    if ancestor is not None:
        return ancestor.fork(start, SOCKET_VARIABLE, side, output)
    return subprocess.Popen(
        with_lifeline(start.command),
        cwd=start.directory,
        env={**start.environment, SOCKET_VARIABLE: str(side)},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        pass_fds=[side],
        start_new_session=True,  # Ctrl-C in the terminal goes to the session alone, which then ends this process
    )
