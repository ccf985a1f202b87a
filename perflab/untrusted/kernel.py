"""Another process as the kernel shows it: what it has started, the states of its threads, its filters, its memory."""

from __future__ import annotations

import contextlib
import ctypes
import time
from pathlib import Path

from perflab.untrusted.errors import UnfitError

DEAD, STILL = (b"Z", b"X"), (b"T", b"t", b"Z")
"""States of processes and threads, as in proc(5): ended ones, and those that do nothing more. X is still ending."""


class _Range(ctypes.Structure):
    _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]


def descendants(pid: int) -> list[int]:
    """Return the processes that a process has started, and those that they have, without dead ones."""
    found, pending = [], [pid]
    while pending:
        below = children(pending.pop())
        found += below
        pending += below
    return found


def children(pid: int) -> list[int]:
    """Return the live processes that a process has started, and the orphans of those if it adopts them."""
    found: list[int] = []
    for task in threads(pid):
        with contextlib.suppress(OSError):
            found += [int(one) for one in (task / "children").read_bytes().split()]
    return [one for one in found if not is_dead(one)]


def filters(pid: int) -> int | None:
    """Return how many seccomp filters each thread of a process has at least; None where the kernel does not say."""
    found: list[int] = []
    for task in threads(pid):
        with contextlib.suppress(OSError):
            lines = (task / "status").read_text(errors="replace").splitlines()
            found += [int(line.split()[1]) for line in lines if line.startswith("Seccomp_filters:")]
    return min(found, default=None)


def is_dead(pid: int) -> bool:
    """Whether all threads of a process have ended; its first one may have, and others not."""
    return all(state in DEAD for state in states(pid))


def states(pid: int) -> list[bytes]:
    """Return the letters of the states of a process's threads, as in proc(5)."""
    found = []
    for task in threads(pid):
        with contextlib.suppress(OSError, IndexError):  # ended meanwhile
            found.append((task / "stat").read_bytes().rpartition(b")")[2].split()[0])
    return found


def is_queued(pid: int) -> bool:
    """Whether a thread of a process that is not dead is on a core or queued for one, as far as the kernel shows it.

    A thread whose state is T works on until the scheduler takes it off, and may be preempted before: for milliseconds
    on a busy machine. While it is queued, ``wchan`` names no function in which it sleeps.
    """
    for task in threads(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "wchan").read_bytes() == b"0" and b") Z" not in (task / "stat").read_bytes():
                return True
    return False


def threads(pid: int) -> list[Path]:
    """Return the folders that the kernel shows for the threads of a process; none of one that is gone."""
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def read_memory(pid: int, at: int, size: int) -> bytearray:
    """Read another process's memory.

    Raises:
        PermissionError: the kernel refuses.
        UnfitError: there is no such memory.
    """
    data = bytearray(size)
    libc = ctypes.CDLL(None, use_errno=True)
    done = 0
    while done < size:
        ours = _Range(ctypes.addressof(ctypes.c_char.from_buffer(data, done)), size - done)
        theirs = _Range(at + done, size - done)
        got = libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        if got > 0:
            done += got
        elif ctypes.get_errno() == 1:
            raise PermissionError
        else:
            raise UnfitError("its output does not lie within the memory that it names")
    return data


def processor_ns(pid: int) -> int:
    """Return the processor time of all threads of a process in nanoseconds, ended threads included."""
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)  # CPUCLOCK_SCHED of the process, as in clock_getcpuclockid
    except OSError:
        return 0


def mapped_ranges(pid: int, name: str) -> list[tuple[int, int]]:
    """Return the addresses at which a process has mapped shared memory of this name: begins and ends.

    Raises:
        UnfitError: the process does not let its memory be looked at.
    """
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        raise UnfitError("its memory cannot be looked at") from None
    ranges = [line.split()[0].split("-") for line in lines if f"/memfd:{name}" in line]
    return [(int(low, 16), int(high, 16)) for low, high in ranges]
