"""Stops forked children that return from the measured callable: they would run the tests a second time.

A child of a fork is fine as long as it ends in the callable, as children of multiprocessing do. A child that returns is
ended at once, and its parent learns of the return through a byte of shared memory.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator

from perflab.base.errors import UsageError
from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_REMEDY = "end the child where its work ends, with os._exit(0); multiprocessing does so"


class _Home:
    """State of the running test: its process, its name, its workload, and whether a forked child has returned."""

    process = 0
    case = ""
    workload: Workload | None = None
    child_returned = mmap.mmap(-1, 1)


@contextlib.contextmanager
def one_process(case: str) -> Iterator[None]:
    """Guard a phase of a case: a forked child is ended before it leaves the block.

    Raises:
        UsageError: in the process itself, if a forked child continued the test.
    """
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
