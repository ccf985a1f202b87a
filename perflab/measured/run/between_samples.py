"""Checks between samples: the case is alive, has not forked, and leaves no work to other threads."""

from __future__ import annotations

import sys
import threading
import time

from perflab.measure.forks import refuse_forks
from perflab.measure.sampling import Progress

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_ENDING_S = 0.2
"""What a thread with nothing more to do may take to end on a busy machine, such as those of a pool that is gone."""
_ENDING_USES_S = 0.002
"""Processor time that it may take meanwhile."""
_GLANCE_S = 0.0001
_LOOK_S = 0.005
_LOOKS = 3
"""On a busy machine a thread may still be at the last words of its work as the first look begins."""
_BUSY_SHARE = 0.5
_CLOCK_OF_A_THREAD = 4 | 2
"""``CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`` (linux/posix-timers.h)."""


class BetweenSamples:
    """Shows progress, as it is called for between the samples of a measurement; see there for when.

    Args:
        progress: told what is being done.
        ran_on: gets the names of threads that ran on when a call had returned: those that a call has started, each
            time anew, and any that computes on after the last one. What a thread waits for cannot be seen.
    """

    def __init__(self, progress: Progress, ran_on: dict[str, None]) -> None:
        self._progress = progress
        self._ran_on = ran_on
        self._others = set(threading.enumerate())
        """Threads that are no call's: from before the first, and what the first left for all others."""
        self._looks = 0
        self._waiting: set[str] = set()
        """Threads that one call left behind without work to do: a pool may have grown."""

    def __call__(self, what: str) -> None:
        """Look, and show."""
        refuse_forks()
        self._looks += 1
        started = set(threading.enumerate()) - self._others
        if started and self._looks > 2:  # before the first call, and after it
            waiting, computing = _running_on(started)
            left = {f"thread {thread.name!r}" for thread in waiting}
            if left and self._waiting:  # for the second time: each call leaves some
                self._ran_on |= dict.fromkeys(sorted(self._waiting | left))
            self._waiting |= left
            self._ran_on |= {f"thread {thread.name!r}": None for thread in computing}
            started = waiting | computing
        self._others |= started
        if what == "memory":  # the samples are over
            self._ran_on |= {f"thread {thread.name!r}": None for thread in _computing()}
        self._progress(what)


def _running_on(threads: set[threading.Thread]) -> tuple[set[threading.Thread], set[threading.Thread]]:
    """Those that do not end, and those that compute."""
    before = {thread: _used_s(thread) for thread in threads}
    deadline_s = time.monotonic() + _ENDING_S
    computing: set[threading.Thread] = set()
    while threads - computing and time.monotonic() < deadline_s:
        time.sleep(_GLANCE_S)
        threads = {thread for thread in threads if thread.is_alive()}
        computing |= {thread for thread in threads if _used_s(thread) - before[thread] > _ENDING_USES_S}
    return threads - computing, computing


def _computing() -> list[threading.Thread]:
    """Threads of Python's, this one left out, that take processor time though nothing is called."""
    if not sys.platform.startswith("linux"):
        return []
    found = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    for _ in range(_LOOKS):
        before = {thread: _used_s(thread) for thread in found}
        time.sleep(_LOOK_S if found else 0.0)
        found = [thread for thread in found if _used_s(thread) - before[thread] > _BUSY_SHARE * _LOOK_S]
    return found


def _used_s(thread: threading.Thread) -> float:
    """By Linux's own number of its clock: ``pthread_getcpuclockid`` may crash on a thread that has ended."""
    try:
        return time.clock_gettime((~(thread.native_id or 0) << 3) | _CLOCK_OF_A_THREAD)
    except OSError:  # it has ended, or has not begun
        return 0.0
