"""Makes glibc keep freed memory while measuring: whether it returns blocks differs between processes.

glibc gives memory at the top of its heap back as soon as enough of it is free, and maps large blocks anew each time.
Whether a tensor's block lies at the top depends on the layout of the heap, which differs from process to process.
Seen: the same chain of ``tanh`` over 4 MB took 5.1 ms in some processes, without a page fault, and 7.3 to 10 ms in
others, with 1,922 of them in each call. That is no property of the code. So memory that was freed is kept, as it is in
a long-running process whose heap has grown.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys

# Parameters of mallopt(3), and their values; _KEEP_BYTES and _LARGEST_MMAP_THRESHOLD are the largest that are allowed.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_KEEP_BYTES = 2**31 - 1
_PAD_BYTES = 64 << 20
_LARGEST_MMAP_THRESHOLD = 32 << 20
"""Size in bytes above which blocks are mapped anew at every call, in every process alike."""


@functools.cache
def keep_freed_memory() -> bool:
    """Make this process keep the memory that it frees from now on; return whether the allocator accepted that.

    Only glibc is configured, because other allocators have rules of their own.
    """
    if not sys.platform.startswith("linux"):
        return False
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        return all(
            mallopt(parameter, value) == 1
            for parameter, value in (
                (_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD),
                (_M_TRIM_THRESHOLD, _KEEP_BYTES),
                (_M_TOP_PAD, _PAD_BYTES),
            )
        )
    return False
