"""Baseline files as such: read with checks that name the place, and written whole. What is in them, others know."""

from __future__ import annotations

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from perflab.errors import BaselineError
from perflab.gate.locked import locked

T = TypeVar("T")
PREDICTED = "predicted-"
"""How folders of predicted baselines begin; what follows is the GPU. Environments are named for a device."""


class _Header(msgspec.Struct):
    schema: int


def read_checked(path: Path, kind: type[T], schema: int, *, what: str, remedy: str) -> T | None:
    """A file's content as ``kind``; None if there is no such file.

    Args:
        path: the file.
        kind: what it must hold, field by field.
        schema: the newest version that is understood.
        what: what such a file is called, for errors.
        remedy: what to do about one that is not.

    Raises:
        BaselineError: the file cannot be read, is no JSON, or is not one of ours.
    """
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BaselineError(f"cannot read the {what} file {path}: {error.strerror}", "check its rights") from error
    try:
        text = raw.decode("utf-8")
        json.loads(text, parse_constant=_no_number)  # its errors carry a line and a column, msgspec's an offset
        if msgspec.json.decode(text, type=_Header).schema > schema:
            raise BaselineError(f"{path} was written by a newer perflab", "upgrade perflab")
        return msgspec.json.decode(text, type=kind)
    except UnicodeDecodeError as error:
        raise BaselineError(f"{what} file {path} is damaged: not UTF-8 at byte {error.start}", remedy) from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise BaselineError(f"{what} file {path} is damaged at {place}", remedy) from error
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise BaselineError(f"{path} is not a perflab {what} file: {error}", remedy) from error


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
        except OSError as error:
            raise unwritable(directory, error) from error
        yield


def write_whole(path: Path, text: str) -> None:
    """Write to a temporary file and rename: a reader meets the old file or the new one, never half.

    Raises:
        BaselineError: it cannot be written.
    """
    temporary: Path | None = None
    try:
        content = text.encode("utf-8")  # first, so that what can go wrong with it leaves no file behind
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


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
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else value


def as_json(value: object) -> str:
    """On one line, with sorted keys."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)


def is_predicted_file(path: Path) -> bool:
    """Whether a file of a baselines directory is one of predictions, by its place."""
    return path.parent.name.startswith(PREDICTED)


def unwritable(path: Path, error: OSError) -> BaselineError:
    """What to tell of a place that cannot be written to."""
    return BaselineError(
        f"cannot write baselines to {path}: {error.strerror}",
        "name a writable directory with --perf-baselines=DIR; what was measured stands in .perflab/",
    )


def _no_number(constant: str) -> float:
    raise ValueError(f"{constant} is no number")
