"""Reads and writes baseline files, with errors that name the place."""

from __future__ import annotations

import contextlib
import json
import math
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from perflab.data import speakable, speakable_throughout
from perflab.environment import EXACT
from perflab.errors import BaselineError
from perflab.files import read_regular, write_whole
from perflab.reading import decoded
from perflab.store.write_lock import LOCK_NAME, locked

T = TypeVar("T")
Named = TypeVar("Named")
PREDICTED = "predicted-"
"""How folders of predicted baselines begin; what follows is the GPU. Environments are named for a device."""


def read_checked(
    path: Path,
    kind: type[T],
    schema: int,
    *,
    what: str,
    remedy: str,
    upgrade: Callable[[Any], None] | None = None,
) -> T | None:
    """A file's content as ``kind``; None if there is no such file.

    Args:
        path: the file.
        kind: what it must hold, field by field.
        schema: the newest version that is understood.
        what: what such a file is called, for errors.
        remedy: what to do about one that is not.
        upgrade: turns what an older schema had, as plain data, into what ``schema`` has.

    Raises:
        BaselineError: the file cannot be read, is no JSON, or is not one of ours.
    """
    try:
        raw = read_regular(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(f"cannot read the {what} file {path}: {error.strerror}", f"check it; {remedy}") from error
    return decoded(
        raw,
        kind,
        newest=schema,
        file=f"{what} file {path}",
        wanted=f"a perflab {what} file",
        remedy=remedy,
        error=BaselineError,
        upgrade=upgrade,
    )


@contextlib.contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Keep other processes from writing into a directory of baselines, which is made if need be.

    Who reads inside of the block what it will write again loses nothing that another process wrote before.

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
    """Make sure that baselines could be saved, before anybody waits for a measurement.

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
    """Write the whole file, or leave what is there.

    Raises:
        BaselineError: it cannot be written.
    """
    try:
        write_whole(path, text.encode("utf-8"))
    except OSError as error:
        raise unwritable(path, error) from error


def delete_file(path: Path) -> None:
    """Delete a file, and its folder if it held no others.

    Raises:
        BaselineError: it cannot be deleted.
    """
    try:
        path.unlink()
    except OSError as error:
        raise unwritable(path, error) from error
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def writable(value: object) -> object:
    """A parameter as JSON can hold it: infinities and halves of a character as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return speakable(value) if isinstance(value, str) else value


def named(values: Iterable[Named], name_of: Callable[[Named], str]) -> dict[str, Named]:
    """Values by short names; where two would have the same name, with ``+`` behind it."""
    names: dict[str, Named] = {}
    for value in values:
        name = name_of(value)
        while names.get(name, value) != value:
            name += "+"
        names[name] = value
    return names


def as_json(value: object) -> str:
    """On one line, with sorted keys."""
    return json.dumps(speakable_throughout(value), sort_keys=True, ensure_ascii=False, allow_nan=False)


def is_exact_file(path: Path) -> bool:
    """Whether a file of a baselines directory is one of exact quantities, by its place."""
    return path.parent.name.startswith(f"{EXACT}-")


def unwritable(path: Path, error: OSError) -> BaselineError:
    """What to tell of a place that cannot be written to."""
    return BaselineError(
        f"cannot write baselines to {path}: {error.strerror}",
        "name a writable directory with --perf-baselines=DIR",
    )
