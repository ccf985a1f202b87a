"""Reads and writes baseline files, with errors that name the place; locks a directory, so that one process writes.

The package filelock, used elsewhere, does not fit: it leaves its lock file behind, and these directories are committed.
A lock file in the temporary folder does not fit either: batch systems give each job such a folder of its own, and
machines do not share it.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from perflab.base.data import speakable, speakable_throughout
from perflab.base.errors import BaselineError
from perflab.base.files import remove_if_abandoned, write_whole
from perflab.base.reading import FileKind
from perflab.results.environment import EXACT

T = TypeVar("T")
Named = TypeVar("Named")
PREDICTED = "predicted-"
"""Prefix of the folders of predicted baselines, before the GPU; the folders of environments begin with a device."""
LOCK_NAME = ".lock"


def read_checked(path: Path, kind: type[T], schema: int, *, what: str, remedy: str) -> T | None:
    """Return a file's content as ``kind``; None if there is no such file.

    Args:
        path: the file.
        kind: the type that the file must hold, field by field.
        schema: the version of the format that is understood.
        what: the name of this kind of file, for errors.
        remedy: advice, for errors, about a file of another kind or schema.

    Raises:
        BaselineError: the file cannot be read, is no JSON, or is not one of ours.
    """
    return FileKind(
        content=kind,
        schema=schema,
        what=what,
        wanted=f"a perflab {what} file",
        check=f"check it; {remedy}",
        remedy=remedy,
        error=BaselineError,
    ).read(path)


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Keep other processes from writing into a directory of baselines, which is made if necessary.

    Code that reads inside of the block what it writes there loses nothing that another process wrote before.

    Raises:
        BaselineError: the directory cannot be made or written to.
    """
    with contextlib.ExitStack() as stack:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            stack.enter_context(locked(directory))
        except IsADirectoryError as error:
            raise BaselineError(
                f"cannot write baselines to {directory}: {directory / LOCK_NAME} is a directory, not a lock file",
                "remove it, or name another directory with --perf-baselines=DIR",
            ) from error
        except OSError as error:
            raise unwritable(directory, error) from error
        yield


def check_writable(directory: Path) -> None:
    """Check that baselines can be saved, before anybody waits for a measurement.

    Raises:
        BaselineError: the directory cannot be made or written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise unwritable(directory, error) from error


def write_text(path: Path, text: str) -> None:
    """Write the whole file, or leave the old file unchanged.

    Raises:
        BaselineError: the file cannot be written.
    """
    try:
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise unwritable(path, error) from error


def delete_file(path: Path) -> None:
    """Delete a file, and its folder if it held no others.

    Raises:
        BaselineError: the file cannot be deleted.
    """
    try:
        path.unlink()
    except OSError as error:
        raise unwritable(path, error) from error
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def writable(value: object) -> object:
    """Return a parameter as JSON can hold it: non-finite numbers, and halves of a character, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return speakable(value) if isinstance(value, str) else value


def named(values: Iterable[Named], name_of: Callable[[Named], str]) -> dict[str, Named]:
    """Return values by short names; a name that another value has already gets a ``+`` at its end."""
    names: dict[str, Named] = {}
    for value in values:
        name = name_of(value)
        while names.get(name, value) != value:
            name += "+"
        names[name] = value
    return names


def as_json(value: object) -> str:
    """Return a value as JSON on one line, with sorted keys."""
    return json.dumps(speakable_throughout(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def is_exact_file(path: Path) -> bool:
    """Whether a file of a baselines directory holds exact quantities, by the name of its folder."""
    return path.parent.name.startswith(f"{EXACT}-")


def unwritable(path: Path, error: OSError) -> BaselineError:
    """Return the error for a path that cannot be written to."""
    return BaselineError(
        f"cannot write baselines to {path}: {error.strerror}", "name a writable directory with --perf-baselines=DIR"
    )


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory, which must exist, for the length of the block; wait for the process that holds the lock.

    If the file system knows no locks, the block runs without one.

    Raises:
        OSError: the lock file cannot be made.
    """
    path = directory / LOCK_NAME
    handle = _acquire(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()  # while the lock is held: a waiting process finds the file gone, and begins anew
        os.close(handle)


def forget_dead_lock(directory: Path) -> None:
    """Remove the lock file that a killed process left, so that nobody commits it; a lock file that is held stays."""
    remove_if_abandoned(directory / LOCK_NAME, young_s=0.0)


def _acquire(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(handle)
            if os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)  # the locked file is not the one that other processes see by now


def _lock(handle: int) -> None:
    if sys.platform != "win32":
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
