"""What a case may note beside its time and memory: checked when it is noted, while the test can still name it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from perflab.data import Parameters, speakable
from perflab.errors import UsageError
from perflab.report.view import STANDARD

_WANTED = "note a str, an int, a float, a bool or None; of a tensor of one element its .item()"
_BITS = 64
"""What integers of a results file may have."""


def checked_facts(given: Mapping[str, Any]) -> Parameters:
    """Facts as plain data. NaN and infinities become text, as in parameters: JSON has no numbers for them.

    Raises:
        UsageError: a name that is no identifier, or is a standard column's; a value that is no plain data.
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
