"""The channel between a started process and the process that started it: typed messages over a socket.

A message is one JSON text, whose record's name stands under ``type``. These functions serve the started process; the
other end is a ``Peer``.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import signal
from multiprocessing.connection import Connection
from typing import TypeVar

import msgspec

from perflab.base.data import Data, to_json

SOCKET_VARIABLE = "PERFLAB_SOCKET"
"""The environment variable that gives a started process the number of its socket."""
STACKS_SIGNAL: signal.Signals | None = getattr(signal, "SIGUSR2", None)
"""The signal that asks a started process to print the stacks of its threads."""


class Alive(Data, frozen=True, tag=True):
    """A sign of life: the process that sends it may be silent for so many seconds without counting as hung."""

    for_s: float


Question = TypeVar("Question")


def send(connection: Connection, message: Data) -> None:
    """Send a message.

    Raises:
        OSError: the other end is gone.
    """
    connection.send_bytes(to_json(message))


@functools.cache
def to_parent() -> Connection:
    """Return the connection to the process that started this one, out of reach of programs that this one starts."""
    number = int(os.environ.pop(SOCKET_VARIABLE))
    os.set_inheritable(number, False)
    return Connection(number)


def say(message: Data) -> None:
    """Send a message to the process that started this one.

    Raises:
        OSError: that process is gone.
    """
    send(to_parent(), message)


def hear(questions: msgspec.json.Decoder[Question]) -> Question:
    """Wait for the next question of the process that started this one, and return it.

    Raises:
        EOFError, OSError: that process is gone.
    """
    return questions.decode(to_parent().recv_bytes())


def show_stacks_when_asked(stderr: int) -> None:
    """Make this process print its threads' stacks to a file descriptor when the process that started it asks for them.

    A copy of the descriptor is kept: a test runner may redirect it. Python's lock is not needed: C code that holds it
    does not prevent that.
    """
    if STACKS_SIGNAL is not None:
        faulthandler.register(STACKS_SIGNAL, file=os.dup(stderr), all_threads=True)
