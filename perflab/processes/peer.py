"""Starts a process, asks it typed questions, and waits for its typed answers with a time limit.

The same mechanism serves fresh processes, the sides of an A/B comparison, the ancestors of these, compilers, ranks, and
untrusted candidates, whose signs of life do not count. The started process uses ``channel.py``. A process that dies,
closes its connection, answers in another protocol or hangs is ended with all that it has started; what happened is an
``Ending``, which the caller turns into an error.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import send_handle
from typing import Generic, NoReturn, Self, TypeVar

import msgspec

from perflab.base.data import Data
from perflab.processes.channel import SOCKET_VARIABLE, STACKS_SIGNAL, Alive, send
from perflab.processes.child import Child, Launch, Start, launch
from perflab.units import format_ns

_CLOSING_S = 5.0
"""The time in seconds that a process may take to end after it has closed its connection."""
_LEAVING_S = 10.0
"""The time in seconds that a process which was told to end may take for that."""
_STACKS_S = 1.0
"""The time in seconds that a hanging process may take to print its stacks."""
_MOST_BYTES = 1 << 30
"""The size of an answer in bytes, at most."""
_SLICE_S = 0.5
"""The time in seconds between two looks at a process, where the system does not report its end."""

Question = TypeVar("Question", bound=Data)
Answer = TypeVar("Answer")


class How(enum.Enum):
    """The ways in which a conversation with a process ends."""

    ENDED = enum.auto()
    """The process ended, by itself or by a signal."""
    CLOSED = enum.auto()
    """The process closed its connection and went on, and was ended."""
    HUNG = enum.auto()
    """The process gave no answer in time and no sign of life that counts, and was ended."""
    FOREIGN = enum.auto()
    """The process answered what is no answer here."""
    UNSTARTED = enum.auto()
    """The system did not start the process."""
    OUT_OF_TIME = enum.auto()
    """The time of the whole run was over."""


@dataclass(frozen=True)
class Ending:
    """How a conversation with a process ended."""

    how: How
    status: int | None = None
    """The exit status, or minus the number of the signal that killed the process; None if it did not end by itself."""
    silent_s: float = 0.0
    """The time in seconds that a process which hung was given for an answer or a sign of life."""
    lasted_s: float = 0.0
    """The time in seconds since the process was started."""
    output: bytes = b""
    """The text that the process had printed on either stream."""
    latest: bytes = b""
    """The part of the output that was printed after the last question."""
    stacks: bytes = b""
    """The stacks of a process that hung, the innermost call first; empty if it could not print them."""
    problem: str = ""
    """The reason why an answer cannot be decoded, or the process not be started."""

    @property
    def told(self) -> str:
        """The event, as the predicate of a sentence whose subject is the process."""
        if self.how is How.HUNG:
            return f"hung and was stopped: no answer for {format_ns(1e9 * self.silent_s)}"
        if self.how is How.CLOSED:
            return "closed its connection to this session and was ended"
        if self.how is How.FOREIGN:
            return f"answers in another protocol: {self.problem}"
        if self.how is How.UNSTARTED:
            return f"could not be started: {self.problem}"
        if self.how is How.OUT_OF_TIME:
            return f"was stopped after {format_ns(1e9 * self.lasted_s)}, since the run's time was over"
        assert self.status is not None
        return f"was killed by signal {-self.status}" if self.status < 0 else f"ended (exit status {self.status})"

    def last_lines(self, most: int) -> list[str]:
        """Return the last lines of the output, and the first ones of the stacks."""
        output, stacks = (text.decode("utf-8", "replace").splitlines() for text in (self.output, self.stacks))
        return output[-most:] + stacks[:most]


class Peer(Generic[Question, Answer]):
    """A process to talk with, a context manager: ``close``, or leaving the ``with`` block, ends the process."""

    def __init__(
        self,
        start: Start,
        answers: msgspec.json.Decoder[Answer | Alive],
        ended: Callable[[Ending], Exception],
        *,
        silent_s: float,
        seconds_left: Callable[[], float | None] = lambda: None,
        launch: Launch = launch,
        is_trusted: bool = True,
    ) -> None:
        """Start the process without waiting until it is ready.

        Args:
            start: the command, environment and directory of the process.
            answers: decodes the answers.
            ended: returns the error that is raised when the conversation has ended.
            silent_s: a process that is silent for longer is ended; infinite: never.
            seconds_left: returns the time left for the whole run, which limits every wait; None: no limit.
            launch: starts the process.
            is_trusted: whether signs of life prolong the wait. Otherwise a process hangs whose answer is not there,
                whole, ``silent_s`` after the question, whatever it sends meanwhile.

        Raises:
            OSError: the process cannot be started.
        """
        self._answers = answers
        self._error = ended
        self._silent_s = silent_s
        self._seconds_left = seconds_left
        self._leaves_within_s = 0.0
        self._asked_at = 0
        self._is_trusted = is_trusted
        self._due_s = math.inf
        """The time at which an answer of a process that is not trusted is overdue; infinite while none is asked for."""
        self._is_over = threading.Event()
        self._began_s = time.monotonic()
        ours, theirs = socket.socketpair()
        self._connection = Connection(ours.detach())
        number = theirs.fileno()
        variables = {**start.environment, SOCKET_VARIABLE: str(number)}
        try:
            self._child = Child(Start(start.role, start.command, variables, start.directory), [number], launch)
        except BaseException:
            self._connection.close()
            raise
        finally:
            theirs.close()
        self.role = start.role
        self.pid = self._child.pid
        if not is_trusted:
            threading.Thread(target=self._watch, daemon=True, name=f"limit of {start.role}").start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: object) -> None:
        if kind is None and self._leaves_within_s:
            self._child.wait(self._leaves_within_s)
        self._is_over.set()
        self._connection.close()
        self._child.__exit__(kind, value, traceback)

    def ask(self, question: Question, *descriptors: int) -> None:
        """Send a question to the process, and file descriptors after it.

        Raises:
            Exception: the process has ended; the error is the one that ``ended`` returns.
        """
        self._asked_at = len(self._child.output())
        self._due_s = math.inf if self._is_trusted else time.monotonic() + self._silent_s
        try:
            send(self._connection, question)
            for one in descriptors:
                send_handle(self._connection, one, self.pid)
        except OSError:
            self._raise_end()

    def answer(self) -> Answer:
        """Wait for an answer of the process, and return it.

        Raises:
            Exception: the conversation has ended; the error is the one that ``ended`` returns.
        """
        until_s = min(time.monotonic() + self._silent_s, self._due_s)
        while self._wait(until_s):
            try:
                message = self._answers.decode(self._connection.recv_bytes(_MOST_BYTES))
            except (EOFError, OSError):
                self._raise_end()
            except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, MemoryError) as error:
                self._raise(Ending(How.FOREIGN, problem=str(error)))
            if not isinstance(message, Alive):
                self._due_s = math.inf
                return message
            until_s = min(time.monotonic() + message.for_s + self._silent_s, self._due_s)
        self._raise_end()

    def _wait(self, until_s: float) -> bool:
        """Wait for a message, and return whether there is one; False if the process has ended without another."""
        signals = [] if self._child.end_signal is None else [self._child.end_signal]
        while True:
            left_s = self._seconds_left()
            now_s = time.monotonic()
            limit_s = min(until_s - now_s, math.inf if left_s is None else left_s)
            slice_s = limit_s if signals else min(limit_s, _SLICE_S)
            ready = wait([self._connection, *signals], None if math.isinf(slice_s) else max(0.0, slice_s))
            if ready or self._child.wait(0.0) is not None:
                return self._connection in ready or self._connection.poll()
            if slice_s < limit_s:
                continue
            if limit_s < until_s - now_s:
                self._raise(Ending(How.OUT_OF_TIME))
            self._raise(Ending(How.HUNG, silent_s=self._silent_s))

    def _watch(self) -> None:
        """End the process when an answer is overdue, so that reading or sending half a message does not wait for it."""
        while not self._is_over.wait(_SLICE_S):
            if time.monotonic() > self._due_s + _SLICE_S:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)  # the thread that asked or reads waits for its end
                return

    def _raise_end(self) -> NoReturn:
        """Raise the error for a process that sends no more answers."""
        if time.monotonic() > self._due_s:
            self._raise(Ending(How.HUNG, silent_s=self._silent_s))
        status = self._child.wait(_CLOSING_S)
        self._raise(Ending(How.CLOSED if status is None else How.ENDED, status))

    def _raise(self, ending: Ending) -> NoReturn:
        """End the process, and raise the error for what happened."""
        self._due_s = math.inf  # its number may be another's soon, which is not to be killed
        lasted_s = time.monotonic() - self._began_s
        before = len(self._child.output())
        if ending.how is How.HUNG:
            self._print_stacks(before)
        self._child.end()
        output, stacks = self._child.output(), b""
        if ending.how is How.HUNG:
            output, stacks = output[:before], output[before:]
        latest = output[self._asked_at :]
        raise self._error(replace(ending, lasted_s=lasted_s, output=output, latest=latest, stacks=stacks)) from None

    def _print_stacks(self, before: int) -> None:
        """Make the hanging process, whose output has this length, print the stacks of its threads, if it can."""
        if STACKS_SIGNAL is None:
            return
        until_s = time.monotonic() + _STACKS_S
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, STACKS_SIGNAL)
        printed = before
        while time.monotonic() < until_s and self._child.wait(0.05) is None:  # a process without a handler ends
            size = len(self._child.output())
            if printed == size > before:
                return
            printed = size

    def stacks(self) -> bytes:
        """Return the stacks of the process's threads as they are now, the innermost call first; empty without any."""
        before = len(self._child.output())
        self._print_stacks(before)
        return self._child.output()[before:]

    def dismiss(self, farewell: Question) -> None:
        """Send a last question, and let the process end by itself; leaving the ``with`` block waits for that."""
        with contextlib.suppress(OSError):
            send(self._connection, farewell)
            self.leave()

    def leave(self) -> None:
        """Let a process that has given its last answer end by itself; leaving the ``with`` block waits for that."""
        self._leaves_within_s = _LEAVING_S

    def kill(self) -> None:
        """End the process now, from any thread; a thread that waits for its answer gets the error."""
        self._child.end()

    def close(self) -> None:
        """End the process and everything that it started. A process that was dismissed is waited for."""
        self.__exit__(None, None, None)
