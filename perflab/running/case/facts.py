"""Checks the facts that a case notes beside its time and memory, at once, so that errors point to the test's line."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perflab.base.data import Parameters, speakable
from perflab.base.errors import UsageError
from perflab.tables.view import STANDARD

_WANTED = "note a str, an int, a float, a bool or None; of a tensor of one element its .item()"
_BITS = 64
"""The largest number of bits of an integer in a results file, sign included."""


def checked_facts(given: Mapping[str, Any]) -> Parameters:
    """Return the facts as plain data. NaN and infinities become text, as in parameters, since JSON cannot hold them.

    Raises:
        UsageError: a name is not an identifier, or is the name of a standard column; a value is not plain data.
    """
    return {_checked_name(name, value): _plain(name, value) for name, value in given.items()}


def _checked_name(name: str, value: Any) -> str:
    if name in STANDARD:
        raise UsageError(
            f"perf.note({name}={value!r}): tables of studies have a column {name!r} already",
            f"call the fact something else, such as noted_{name}",
        )
    if not name.isidentifier():
        raise UsageError(
            f"perf.note(**{{{name!r}: {value!r}}}): {name!r} cannot be a column's name",
            "name facts as Python names variables: setup_s, loss",
        )
    return name


def _plain(name: str, value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return speakable(str(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, int):
        if int(value).bit_length() >= _BITS:
            raise UsageError(f"perf.note({name}=...): an int of more than {_BITS - 1} bits", "note it as a float")
        return int(value)
    raise UsageError(f"perf.note({name}=...) got {type(value).__name__!r}", _WANTED)
