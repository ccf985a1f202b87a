"""Reads perflab's JSON files, with errors that name the place.

msgspec checks each field against its type. Two things that msgspec accepts are damage too: a key that occurs twice in
an object, and numbers that are unusable in computations.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import msgspec

from perflab.base.errors import PerflabError
from perflab.base.files import read_regular

T = TypeVar("T")
MOST_INT = 2**63 - 1
MOST_FLOAT = 1e100
"""Largest accepted float, and inverse of the smallest: squares and ratios of numbers in this range are finite."""
_OF_THE_USER = "parameters"
"""The key of a case's own values, which may be any numbers: they are shown, but not used in computations."""


class _Header(msgspec.Struct):
    schema: int


class _DamageError(ValueError):
    """An error in the content of valid JSON; its text describes the damage."""


@dataclass(frozen=True, kw_only=True)
class FileKind(Generic[T]):
    """A kind of perflab's JSON files: its content, and the words of the errors about such a file."""

    content: type[T]
    """The type that a file's content must match, field by field."""
    schema: int
    """The version of the format that is understood."""
    what: str = ""
    """The kind's name before a path, such as ``baseline``; empty: errors name the path alone."""
    wanted: str
    """The kind of file that is expected: ``a perflab baseline file``."""
    check: str
    """The remedy for a file that cannot be read."""
    remedy: str
    """The remedy for a file that is damaged or of another kind."""
    error: type[PerflabError]
    """The class of errors to raise."""

    def read(self, path: Path) -> T | None:
        """Return a file's content; None if there is no such file.

        Raises:
            PerflabError: of the class ``error``: the file cannot be read, or ``decoded`` refuses it.
        """
        try:
            return self.decoded(self.raw(path), path)
        except FileNotFoundError:
            return None

    def raw(self, path: Path) -> bytes:
        """Return the bytes of a file.

        Raises:
            FileNotFoundError: there is no such file.
            PerflabError: of the class ``error``: the file cannot be read.
        """
        try:
            return read_regular(path)
        except FileNotFoundError:
            raise
        except OSError as problem:
            named = f"the {self.what} file {path}" if self.what else str(path)
            raise self.error(f"cannot read {named}: {problem.strerror}", self.check) from problem

    def decoded(self, raw: bytes, path: Path) -> T:
        """Return the content of a file that has these bytes.

        Raises:
            PerflabError: of the class ``error``: the file is no JSON, is no such file of perflab, or is damaged.
        """
        error, remedy = self.error, self.remedy
        file = f"{self.what} file {path}" if self.what else str(path)
        try:
            text = raw.decode("utf-8")
            tree = json.loads(text, parse_constant=_no_number, object_pairs_hook=_no_key_twice)
            written = msgspec.json.decode(text, type=_Header).schema
            if written > self.schema:
                raise error(f"{file} was written by a newer perflab", "upgrade perflab")
            if written < self.schema:
                raise error(f"{file} has schema {written}, and perflab reads schema {self.schema} only", remedy)
            found = msgspec.json.decode(text, type=self.content)
            for place in _absurd_numbers(tree, "$"):
                raise _DamageError(place)
            return found
        except UnicodeDecodeError as problem:
            raise error(f"{file} is damaged: not UTF-8 at byte {problem.start}", remedy) from problem
        except json.JSONDecodeError as problem:
            # json's errors have a line and a column, msgspec's only an offset
            place = f"line {problem.lineno}, column {problem.colno}: {problem.msg}"
            raise error(f"{file} is damaged at {place}", remedy) from problem
        except _DamageError as problem:
            raise error(f"{file} is damaged: {problem}", remedy) from problem
        except (msgspec.DecodeError, RecursionError) as problem:
            raise error(f"{file} is not {self.wanted}: {problem}", remedy) from problem
        except ValueError as problem:  # an integer with more digits than Python accepts
            raise error(f"{file} is damaged: a number in it is too long: {problem}", remedy) from problem


def refuse_key_twice(raw: bytes) -> None:
    """Raise ValueError if a key occurs twice in an object of a JSON text; msgspec would silently take the last one.

    Keys are counted before and after reading, which is faster than a check of each object.
    """
    kept = msgspec.json.encode(msgspec.json.decode(raw))
    if b"\\u00" in raw or msgspec.json.format(raw, indent=-1).count(b'":') != kept.count(b'":'):
        json.loads(raw, object_pairs_hook=_no_key_twice)


def _no_number(constant: str) -> NoReturn:
    raise _DamageError(f"{constant} is not a number")


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _DamageError(f"the key {twice!r} occurs twice in one object")
    return found


def _absurd_numbers(value: Any, place: str) -> Iterator[str]:
    """Yield a description of each number that is out of range, infinite or not a number."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name != _OF_THE_USER or not isinstance(one, dict):
                yield from _absurd_numbers(one, f"{place}.{name}")
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from _absurd_numbers(one, f"{place}[{number}]")
    elif isinstance(value, float):
        if not math.isfinite(value) or abs(value) > MOST_FLOAT or 0 < abs(value) < 1 / MOST_FLOAT:
            yield f"the number at {place} is out of range: {value}"
    elif isinstance(value, int) and abs(value) > MOST_INT:
        yield f"the number at {place} is out of range: one of {len(str(abs(value)))} digits"
