"""What the library has counted in this process, and who is told of it as it happens."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path

from nocuda.errors import NocudaError
from nocuda.launch import ACTIVE


class Seen(IntFlag):
    """What an observer can be told of; ``src/nocuda.h`` has the same numbers."""

    SYNCHRONISATION = 1
    """The host waits for the device."""
    COPY = 2
    LAUNCH = 4
    UNKNOWN = 8
    """A function that has no body was called for the first time."""


HOST = -1
"""The host's number as the source or the target of a copy."""

Observer = Callable[[Seen, str, int, int, int], None]
"""Called with what was seen, the function or kernel, bytes, source and target (a device's number, or ``HOST``)."""
_CObserver = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_ulonglong, ctypes.c_int, ctypes.c_int)


@dataclass(frozen=True)
class Counts:
    """What was called since the process began, or since ``Library.reset``."""

    launches: int
    """Kernels, in replayed graphs too."""
    replayed: int
    """Of these, in graphs."""
    kernels: dict[str, int]
    """Launches by kernel, as it is registered (mangled); those in graphs are not among them."""
    calls: dict[str, int]
    """By function of CUDA's."""
    copies: dict[str, tuple[int, int]]
    """How many, and bytes, by way: ``host to device``."""
    synchronisations: int
    """Calls in which the host waited for the device."""
    peak_bytes: list[int]
    """Of each device, the most memory that was taken of it."""
    unknown: list[str]
    """Functions without a body that were called or looked up since the process began, in that order."""


def read_counts(path: Path) -> Counts:
    """What a process wrote, as it ended, to ``NOCUDA_REPORT`` with its number."""
    read = json.loads(path.read_text())
    copies = {way: (calls, size) for way, (calls, size) in read.pop("copies").items()}
    return Counts(copies=copies, **read)


class Library:
    """The library of this process."""

    def __init__(self, path: str) -> None:
        self._c = ctypes.CDLL(path)
        self._c.nocuda_launches.restype = ctypes.c_ulong
        self._c.nocuda_calls.restype = ctypes.c_ulong
        self._c.nocuda_observe.argtypes = [ctypes.c_uint, _CObserver]
        self._observers: tuple[tuple[Seen, Observer], ...] = ()
        self._function: object = None

    @property
    def launches(self) -> int:
        """Kernels launched so far."""
        return int(self._c.nocuda_launches())

    def calls(self, function: str) -> int:
        """How often a function of CUDA's was called."""
        return int(self._c.nocuda_calls(function.encode()))

    def reset(self) -> None:
        """Count from zero. Memory is not touched."""
        self._c.nocuda_reset()

    def counts(self) -> Counts:
        """Everything that was counted."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "counts.json"
            self._c.nocuda_write(os.fsencode(path))
            return read_counts(path)

    @contextmanager
    def observing(self, mask: Seen, observer: Observer) -> Iterator[None]:
        """Tell ``observer`` of what happens within, from whatever thread it happens in. What it raises is lost."""
        before = self._observers
        self._observe((*before, (mask, observer)))
        try:
            yield
        finally:
            self._observe(before)

    def _observe(self, observers: tuple[tuple[Seen, Observer], ...]) -> None:
        def tell(what: int, name: bytes, size: int, source: int, target: int) -> None:
            seen = Seen(what)
            for mask, observer in observers:
                if seen & mask:
                    observer(seen, name.decode(), size, source, target)

        masks = Seen(0)
        for mask, _ in observers:
            masks |= mask
        function = _CObserver(tell) if observers else _CObserver()
        self._c.nocuda_observe(int(masks), function)
        self._observers, self._function = observers, function  # C has the function's address


@functools.cache
def demangled(kernel: str) -> str:
    """A kernel's name as C++ writes it, where that can be had; else as it is."""
    try:
        runtime = ctypes.CDLL("libstdc++.so.6")
    except OSError:
        return kernel
    runtime.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = runtime.__cxa_demangle(kernel.encode(), None, None, ctypes.byref(status))
    if not found:
        return kernel
    text = ctypes.cast(found, ctypes.c_char_p).value or b""
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text.decode()


@functools.cache
def library() -> Library:
    """The library that this process was started with.

    Raises:
        NocudaError: it was started without one.
    """
    path = os.environ.get(ACTIVE)
    if path is None:
        raise NocudaError("nocuda is not active in this process", "start it with `python -m nocuda run -- COMMAND`")
    return Library(path)
