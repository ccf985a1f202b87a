"""Counts the user-space instructions of one call with Linux's ``perf_event_open``.

In one thread the counts differ by about 0.1 % between processes, on a busy machine too. PyTorch's threads spin while
they wait for each other, which on a busy machine multiplies the count: with several threads nothing is counted. Nothing
is counted either without such a counter (other systems, most virtual machines and containers).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Callable

_SYSCALL = {"x86_64": 298, "aarch64": 241}
"""System-call number of ``perf_event_open`` by architecture; the C library has no function for this call."""
_HARDWARE, _INSTRUCTIONS = 0, 1
"""``PERF_TYPE_HARDWARE``, ``PERF_COUNT_HW_INSTRUCTIONS``."""
_FORMAT = 1 | 2
"""``PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING``: the times differ if the counter was shared."""
_FLAGS = 1 << 0 | 1 << 1 | 1 << 5 | 1 << 6
"""``disabled``, ``inherit`` (threads that the call begins), ``exclude_kernel``, ``exclude_hv``."""
_CLOSE_ON_EXEC = 8
_ENABLE, _DISABLE = 0x2400, 0x2401
_ATTRIBUTES = struct.Struct("=IIQQQQQIIQQ")
"""``struct perf_event_attr`` as of Linux 2.6.33, 72 bytes: type, size, config, sample period, sample type, read
format, flags, wake-up, breakpoint type, two words of further configuration."""


def instructions_are_counted() -> bool:
    """Whether this machine counts instructions for this process, and PyTorch works in one thread."""
    import torch

    if torch.get_num_threads() > 1:
        return False
    counter = _open(os.getpid(), _HARDWARE, _INSTRUCTIONS)
    if counter is None:
        return False
    os.close(counter)
    return True


def count_events(call: Callable[[], object], kind: int = _HARDWARE, event: int = _INSTRUCTIONS) -> int | None:
    """Run ``call`` and return how many events all threads of this process had meanwhile.

    Returns:
        None if events are not counted, or if the counter was shared, which makes the number an estimate.

    Raises:
        Exception: whatever the call raises.
    """
    counters = [_open(thread, kind, event) for thread in _threads()]
    opened = [counter for counter in counters if counter is not None]
    try:
        if not opened or len(opened) < len(counters):
            call()
            return None
        import fcntl

        for counter in opened:
            fcntl.ioctl(counter, _ENABLE, 0)
        call()
        for counter in opened:
            fcntl.ioctl(counter, _DISABLE, 0)
        readings = [struct.unpack("=QQQ", os.read(counter, 24)) for counter in opened]
    finally:
        for counter in opened:
            os.close(counter)
    if any(enabled_ns != running_ns for _count, enabled_ns, running_ns in readings):
        return None
    counts: list[int] = [count for count, _enabled_ns, _running_ns in readings]
    return sum(counts)


def _threads() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc/self/task")]
    return []


def _open(thread: int, kind: int, event: int) -> int | None:
    number = _SYSCALL.get(platform.machine())
    if not sys.platform.startswith("linux") or number is None:
        return None
    attributes = _ATTRIBUTES.pack(kind, _ATTRIBUTES.size, event, 0, 0, _FORMAT, _FLAGS, 0, 0, 0, 0)
    any_processor, no_group = -1, -1
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_char_p(attributes),
        ctypes.c_int(thread),
        ctypes.c_int(any_processor),
        ctypes.c_int(no_group),
        ctypes.c_ulong(_CLOSE_ON_EXEC),
    )
    return descriptor if descriptor >= 0 else None
