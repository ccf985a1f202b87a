"""Watches a piece of work: interrupts it when it gives no sign of life, and gives up if that fails.

Three things are tried, since work hangs in three ways. Python code in the main thread is interrupted by a signal, whose
handler raises; so is C code that heeds signals, such as Python's own locks. C code that heeds no signal is left to
``give_up``, on the watching thread. C code that keeps the interpreter's lock lets no Python run at all: such code is
left to another process, which ``leave`` informs beforehand.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

THREAD = "perflab-watchdog"
_SIGNAL: Any = getattr(signal, "SIGVTALRM", None)
"""Signal that interrupts watched work; None if the system has none. Most programs leave this signal free:
``SIGALRM`` is pytest-timeout's, ``SIGUSR1`` the user's."""
_NOT_THE_CASE = ("_pytest", "pytest", "pluggy", "runpy", "perflab.plugin", "perflab.measure", "xdist", "execnet")
_DEBUGGERS = ("pydevd", "bdb", "pdb", "debugpy", "_pydevd_bundle")

Interrupt = Callable[[str], NoReturn]
"""Function that receives the stacks of all threads, and raises the exception that ends the work."""
GiveUp = Callable[[str], object]
"""Function that receives the stacks of all threads, on the watching thread. The process ends when it returns."""
Leave = Callable[[float | None], object]
"""Function that receives the seconds until its next call, at most, unless no Python runs here; None: maybe never."""


class Watchdog:
    """Watches the work in ``watching`` blocks. The watching thread sleeps until a limit is over.

    Args:
        grace_s: seconds that interrupted work may take to end.
        leave: tells another process until when the work is watched.
    """

    def __init__(self, grace_s: float, leave: Leave) -> None:
        """Create a watchdog that watches nothing yet."""
        self._grace_s = grace_s
        self._leave = leave
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._limit_s = float("inf")
        self._deadline_s: float | None = None
        """Time at which the limit is over, by ``time.monotonic``; None while nothing is watched."""
        self._timer_set_s = 0.0
        self._interrupt: Interrupt | None = None
        self._give_up: GiveUp | None = None
        self._stacks: str | None = None
        """Stacks of all threads when the work was interrupted; None if it was not."""

    @contextlib.contextmanager
    def watching(self, limit_s: float, interrupt: Interrupt, give_up: GiveUp) -> Iterator[None]:
        """Watch the block, unless a debugger is active. Only a block in the main thread can be interrupted."""
        # Stepping through the code of a case takes as long as it takes.
        tracer = sys.gettrace()
        if tracer is not None and (getattr(tracer, "__module__", None) or "").split(".")[0] in _DEBUGGERS:
            yield
            return
        process, before = os.getpid(), None
        in_main = threading.current_thread() is threading.main_thread() and _SIGNAL is not None
        self._interrupt, self._give_up, self._stacks = interrupt if in_main else None, give_up, None
        if in_main:
            before = signal.signal(_SIGNAL, self._on_signal)
        try:
            self.extend(limit_s)
            yield
        finally:
            self._deadline_s = self._give_up = None
            if os.getpid() == process:
                self._leave(None)
                if in_main:
                    with self._changed:  # a signal that is on its way arrives while our handler is installed
                        time.sleep(0)
                    signal.signal(_SIGNAL, before)

    def beat(self) -> None:
        """Note a sign of life: the limit begins anew. The call costs next to nothing, and wakes no thread."""
        if self._deadline_s is None or self._stacks is not None:
            return
        now_s = time.monotonic()
        self._deadline_s = now_s + self._limit_s
        if now_s - self._timer_set_s > self._limit_s / 2:
            self._set_timer(now_s)

    def extend(self, limit_s: float) -> None:
        """Give the work ``limit_s`` seconds from now on, and after each sign of life."""
        self._limit_s = limit_s
        now_s = time.monotonic()
        self._set_timer(now_s)
        with self._changed:
            self._deadline_s = now_s + limit_s
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name=THREAD, daemon=True)
                self._thread.start()
            self._changed.notify()

    def pause(self) -> None:
        """Watch nothing until ``resume``: the work waits for other work, which is watched elsewhere."""
        self._deadline_s = None  # the thread finds out when it wakes up
        self._leave(None)

    def resume(self) -> None:
        """Go on watching, if something is being watched; the limit begins anew."""
        if self._give_up is not None:
            self.extend(self._limit_s)

    def _set_timer(self, now_s: float) -> None:
        self._timer_set_s = now_s
        # A sign of life sets the timer anew only after half of the limit, since this wakes another process.
        self._leave(min(1.5 * self._limit_s + 2 * self._grace_s, threading.TIMEOUT_MAX))

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        if self._stacks is not None and self._deadline_s is not None and self._interrupt is not None:
            self._interrupt(self._stacks)

    def _watch(self) -> None:
        with self._changed:
            while True:
                left_s = float("inf") if self._deadline_s is None else self._deadline_s - time.monotonic()
                if left_s > 0:
                    self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
                elif self._interrupt is not None and self._stacks is None:
                    self._stacks = stacks_of_all_threads()
                    self._deadline_s = time.monotonic() + min(self._grace_s, self._limit_s)
                    signal.pthread_kill(threading.main_thread().ident or 0, _SIGNAL)
                else:
                    break
            try:
                if self._give_up is not None:
                    self._give_up(self._stacks or stacks_of_all_threads())
            finally:
                os._exit(1)


def stacks_of_all_threads() -> str:
    """Return the stack of each Python thread of this process as text, without frames of the test run itself."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    blocks = []
    for number, innermost in sys._current_frames().items():
        stack = [
            (frame, line)
            for frame, line in traceback.walk_stack(innermost)
            if not str(frame.f_globals.get("__name__", "")).startswith(_NOT_THE_CASE)
        ]
        lines = traceback.StackSummary.extract(iter(stack[::-1])).format()
        if lines and names.get(number) != THREAD:
            blocks.append(f"thread {names.get(number, str(number))!r}:\n{''.join(lines).rstrip()}")
    return "\n".join(blocks)
