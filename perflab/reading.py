"""Reads JSON files of ours, with errors that name the place.

msgspec holds each field against its type. What it lets pass, though no file of ours has it, is damage too: a key that
stands twice, and numbers that nothing can be computed with.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import msgspec

from perflab.errors import PerflabError

T = TypeVar("T")
MOST_INT = 2**63 - 1
MOST_FLOAT = 1e100
"""Squares and ratios of numbers up to this, and down to its inverse, are numbers."""
_OF_THE_USER = "parameters"
"""A case's own values are shown, and never computed with: these may be any."""


class _Header(msgspec.Struct):
    schema: int


class _DamageError(ValueError):
    """What is wrong with a text that is JSON."""


def decoded(
    raw: bytes,
    kind: type[T],
    *,
    newest: int,
    file: str,
    wanted: str,
    remedy: str,
    error: type[PerflabError],
    upgrade: Callable[[Any], None] | None = None,
) -> T:
    """A file's content as ``kind``.

    Args:
        raw: what stands in the file.
        kind: what it must hold, field by field.
        newest: the newest schema that is understood.
        file: what the file is called in errors, its path included.
        wanted: what it should have been: ``a perflab baseline file``.
        remedy: what to do about one that is not.
        error: what is raised.
        upgrade: turns what an older schema had, as plain data, into what ``newest`` has.

    Raises:
        PerflabError: of the class ``error``: it is no JSON, is not one of ours, or is damaged.
    """
    try:
        text = raw.decode("utf-8")
        tree = json.loads(text, parse_constant=_no_number, object_pairs_hook=_no_key_twice)
        schema = msgspec.json.decode(text, type=_Header).schema
        if schema > newest:
            raise error(f"{file} was written by a newer perflab", "upgrade perflab")
        if schema < newest and upgrade is not None:
            upgrade(tree)
            text = json.dumps(tree)
        found = msgspec.json.decode(text, type=kind)
        for place in _absurd_numbers(tree, "$"):
            raise _DamageError(place)
        return found
    except UnicodeDecodeError as problem:
        raise error(f"{file} is damaged: not UTF-8 at byte {problem.start}", remedy) from problem
    except json.JSONDecodeError as problem:
        # its errors carry a line and a column, msgspec's an offset
        place = f"line {problem.lineno}, column {problem.colno}: {problem.msg}"
        raise error(f"{file} is damaged at {place}", remedy) from problem
    except _DamageError as problem:
        raise error(f"{file} is damaged: {problem}", remedy) from problem
    except (msgspec.DecodeError, RecursionError) as problem:
        raise error(f"{file} is not {wanted}: {problem}", remedy) from problem
    except ValueError as problem:  # an integer of more digits than Python reads
        raise error(f"{file} is damaged: a number in it is too long: {problem}", remedy) from problem


def refuse_key_twice(raw: bytes) -> None:
    """Raise ValueError if a key stands twice in an object of a JSON text, of which msgspec would take the last.

    Keys are counted before and after reading, which is faster than to look at each object.
    """
    kept = msgspec.json.encode(msgspec.json.decode(raw))
    if b"\\u00" in raw or msgspec.json.format(raw, indent=-1).count(b'":') != kept.count(b'":'):
        json.loads(raw, object_pairs_hook=_no_key_twice)


def rename_key(tree: Any, old: str, new: str) -> None:
    """Rename a key of plain data wherever it stands with an object below it, for files that were written before."""
    if isinstance(tree, dict):
        if isinstance(tree.get(old), dict):
            tree[new] = tree.pop(old)
        for one in tree.values():
            rename_key(one, old, new)
    elif isinstance(tree, list):
        for one in tree:
            rename_key(one, old, new)


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
    """What is wrong with each number that nothing can be computed with."""
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
