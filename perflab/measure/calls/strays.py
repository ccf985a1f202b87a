"""Finds what a call leaves behind: forked children that return from it, and threads that run on after it.

A child of a fork is fine as long as it ends in the callable, as children of multiprocessing do. A child that returns
would run the tests a second time: it is ended at once, and its parent learns of the return through a byte of shared
memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from perflab.base.errors import UsageError
from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_REMEDY = "end the child where its work ends, with os._exit(0); multiprocessing does so"
_ENDING_S = 0.2
"""Seconds that a thread without work, such as one of a closed pool, may take to end on a busy machine."""
_ENDING_USES_S = 0.002
"""Seconds of processor time that a thread without work may use until it ends."""
_GLANCE_S = 0.0001
_LOOK_S = 0.005
_LOOKS = 3
"""Number of looks at a thread: on a busy machine it may still be ending its work during the first look."""
_BUSY_SHARE = 0.5
_CLOCK_OF_A_THREAD = 4 | 2
"""Bits of a thread's clock number: ``CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`` (linux/posix-timers.h)."""


class _Home:
    """State of the running test: its process, its name, its workload, and whether a forked child has returned."""

    process = 0
    case = ""
    workload: Workload | None = None
    child_returned: bytearray | mmap.mmap = bytearray(1)
    """Shared with the children of a process whose cases are guarded."""


@contextlib.contextmanager
def one_process(case: str) -> Iterator[None]:
    """Guard a phase of a case: a forked child is ended before it leaves the block.

    Raises:
        UsageError: in the process itself, if a forked child continued the test.
    """
    if _Home.process != os.getpid():
        _Home.child_returned = mmap.mmap(-1, 1)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_in_child)
    _Home.process, _Home.case = os.getpid(), case
    _Home.child_returned[0] = 0
    try:
        yield
    finally:
        _leave_if_forked()
    refuse_forks()


@contextlib.contextmanager
def calling(workload: Workload) -> Iterator[None]:
    """Guard the calls of a workload: a forked child that returns is ended at its next call or at the block's end.

    Raises:
        UsageError: in the process itself, if a forked child returned.
    """
    _leave_if_forked()
    _Home.workload = workload
    try:
        yield
    finally:
        _leave_if_forked()
        _Home.workload = None
    refuse_forks()


def refuse_forks() -> None:
    """End this process if it is a forked child that returned; in the parent of such a child, refuse the case.

    Raises:
        UsageError: a child has returned.
    """
    _leave_if_forked()
    if _Home.child_returned[0]:
        _Home.child_returned[0] = 0  # report it once
        raise UsageError(f"{_Home.case}: it forks, and the child continues the test too", _REMEDY)


def _leave_if_forked() -> None:
    """End this process at once, with a message, if it is a forked child of the process that runs the test."""
    if _Home.process in (0, os.getpid()):
        return
    was_told = _Home.child_returned[0]
    _Home.child_returned[0] = 1
    if not was_told:
        said = f"perf: {_Home.case}: a forked child (process {os.getpid()}) returned into the test run, and was ended"
        with contextlib.suppress(OSError):
            os.write(2, f"{said}\n  -> {_REMEDY}\n".encode("utf-8", "replace"))
    os._exit(1)


def _in_child() -> None:
    """End a forked child at its next call of the workload: in the middle of a sample, that call would fork again."""
    if _Home.workload is not None:
        _Home.workload.replace_calls(lambda *_args, **_kwargs: _leave_if_forked())


class BetweenSamples:
    """The ``Progress`` callback between the samples of a measurement: checks the threads, and shows progress.

    Args:
        progress: shows what is being done.
        ran_on: receives the names of threads that ran on after a call had returned: threads that each call starts anew,
            and any thread that computes on after the last call. The cause for which a thread waits cannot be seen.
    """

    def __init__(self, progress: Callable[[str], None], ran_on: dict[str, None]) -> None:
        self._progress = progress
        self._ran_on = ran_on
        self._others = set(threading.enumerate())
        """Threads that belong to no single call: started before the first call, or by a call for all later ones."""
        self._looks = 0
        self._waiting: set[str] = set()
        """Names of threads that one call left behind without work: a pool may have grown."""

    def __call__(self, what: str) -> None:
        """Check for forks and running threads, and show progress."""
        refuse_forks()
        self._looks += 1
        started = set(threading.enumerate()) - self._others
        if started and self._looks > 2:  # the first two looks are before and after the first call
            waiting, computing = _running_on(started)
            left = {f"thread {thread.name!r}" for thread in waiting}
            if left and self._waiting:  # the second time: each call leaves threads behind
                self._ran_on |= dict.fromkeys(sorted(self._waiting | left))
            self._waiting |= left
            self._ran_on |= {f"thread {thread.name!r}": None for thread in computing}
            started = waiting | computing
        self._others |= started
        if what == "memory":  # the samples are over
            self._ran_on |= {f"thread {thread.name!r}": None for thread in _computing()}
        self._progress(what)


def _running_on(threads: set[threading.Thread]) -> tuple[set[threading.Thread], set[threading.Thread]]:
    """Split threads into those that do not end and those that compute; leave out threads that end in time."""
    before = {thread: _used_s(thread) for thread in threads}
    deadline_s = time.monotonic() + _ENDING_S
    computing: set[threading.Thread] = set()
    while threads - computing and time.monotonic() < deadline_s:
        time.sleep(_GLANCE_S)
        threads = {thread for thread in threads if thread.is_alive()}
        computing |= {thread for thread in threads if _used_s(thread) - before[thread] > _ENDING_USES_S}
    return threads - computing, computing


def _computing() -> list[threading.Thread]:
    """Return other Python threads that use processor time although no call runs; empty except on Linux."""
    if not sys.platform.startswith("linux"):
        return []
    found = [thread for thread in threading.enumerate() if thread is not threading.current_thread()]
    for _ in range(_LOOKS):
        before = {thread: _used_s(thread) for thread in found}
        time.sleep(_LOOK_S if found else 0.0)
        found = [thread for thread in found if _used_s(thread) - before[thread] > _BUSY_SHARE * _LOOK_S]
    return found


def _used_s(thread: threading.Thread) -> float:
    """Return the thread's processor time in seconds; 0 if the thread has ended or not begun.

    The clock's number is computed as Linux does: ``pthread_getcpuclockid`` may crash on a thread that has ended.
    """
    try:
        return time.clock_gettime((~(thread.native_id or 0) << 3) | _CLOCK_OF_A_THREAD)
    except OSError:  # the thread has ended, or has not begun
        return 0.0
