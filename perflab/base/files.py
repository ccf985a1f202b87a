"""Reads files without blocking, writes them whole, and removes files that killed runs left.

A temporary file is locked for as long as its writer lives, so that another process can distinguish a leftover from a
file in use. Imports no other module of perflab.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.part")
_YOUNG_S = 60.0
"""Age in seconds below which a temporary file may not be locked by its writer yet."""
_WITHOUT_LOCKS_S = 24 * 3600.0
"""Age in seconds from which a file has no writer, on a file system without locks."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading. A named pipe or a device is an error, and is not waited for.

    Raises:
        OSError: the file cannot be opened.
    """
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _refuse_irregular(os.fstat(handle).st_mode, path)
    except BaseException:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_regular(path: Path) -> bytes:
    """Return the content of a file, opened with ``open_regular``.

    Raises:
        OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        return file.read()


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary file and rename it: a reader finds the old file or the new one, never a part.

    A symbolic link stays, and its target is written. The temporary file is in the target's folder, so that the rename
    stays within a file system. Leftovers of killed writers of the same file are removed.

    Raises:
        OSError: the file cannot be written, or a directory, a pipe or a device is in its place.
    """
    target = Path(os.path.realpath(path)) if path.is_symlink() else path
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    mode = None  # the permissions of the file to replace
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(target).st_mode
        _refuse_irregular(mode, target)
    for leftover in temporaries(target.parent, target.name):
        remove_if_abandoned(leftover)
    temporary, handle = _begin(target)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            if os.name == "nt":  # Windows cannot rename an open file
                file.close()
            temporary.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def sweep(folder: Path) -> None:
    """Remove temporary files of killed writers from a folder and its direct subfolders."""
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        folders = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    for place in (folder, *folders):
        for leftover in temporaries(place):
            remove_if_abandoned(leftover)


def try_lock(handle: int) -> bool | None:
    """Lock an open file unless another process has; return whether it is locked, None if locks are unavailable."""
    if sys.platform == "win32":
        return None
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


@contextlib.contextmanager
def abandoned(path: Path, young_s: float = _YOUNG_S) -> Iterator[bool]:
    """Yield whether a file or folder is abandoned: its owner locks it for as long as the owner lives.

    Within the block no other process can take it, so it may be removed there: it is locked, and still the one that has
    this name. A process that waits for it finds it removed.

    Args:
        path: the file or folder.
        young_s: a file that changed within this many seconds counts as in use: its owner may not have locked it yet.
    """
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        yield False
        return
    try:
        age_s = time.time() - os.fstat(handle).st_mtime
        free = age_s >= young_s and try_lock(handle)
        free = age_s >= _WITHOUT_LOCKS_S if free is None else free
        is_there = False  # opened before locked: another file may have the name by now
        with contextlib.suppress(OSError):
            is_there = os.path.samestat(os.fstat(handle), os.lstat(path))
        yield bool(free and is_there)
    finally:
        os.close(handle)


def remove_if_abandoned(path: Path, young_s: float = _YOUNG_S) -> None:
    """Remove a file if it is abandoned, while no other process can take it; see ``abandoned``."""
    with abandoned(path, young_s) as is_free, contextlib.suppress(OSError):
        if is_free:
            path.unlink()


def _begin(target: Path) -> tuple[Path, int]:
    """Create a temporary file beside the target; return its path and its open, locked handle."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = target.with_name(f".{target.name}.{secrets.token_hex(6)}.part")
        try:
            handle = os.open(temporary, flags, 0o666)
        except FileExistsError:
            continue
        try_lock(handle)
        return temporary, handle


def _refuse_irregular(mode: int, path: Path) -> None:
    """Refuse what is no file, given its mode.

    Raises:
        OSError: it is a directory, a pipe, a socket or a device.
    """
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        kind = "a pipe" if stat.S_ISFIFO(mode) else "a socket" if stat.S_ISSOCK(mode) else "a device"
        raise OSError(errno.EINVAL, f"it is {kind}, not a file", str(path))


def temporaries(folder: Path, name: str | None = None) -> Iterator[Path]:
    """Yield perflab's temporary files in a folder: all, or those of the target ``name``."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError:
        return
    for one in names:
        if _TEMPORARY.fullmatch(one) and (name is None or one[1 : -len(".0123456789ab.part")] == name):
            yield folder / one


def shared_end(one: str, other: str) -> int:
    """Return the number of trailing parts that two paths share."""
    pairs = zip(reversed(one.split("/")), reversed(other.split("/")), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
