"""What all records are made of: frozen data that is strict about what it reads. Imports nothing of ours."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
"""A time that can be compared: ratios and logarithms are taken of it."""
Parameters = dict[str, str | int | float | bool | None]
"""A case's parameters as pytest has them; values that are no plain data stand as their text."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base of all records: frozen, and strict about what it reads."""


Changed = TypeVar("Changed", bound=Data)


def changed(data: Changed, **fields: Any) -> Changed:
    """The same data with some fields changed."""
    return msgspec.structs.replace(data, **fields)


def to_plain(data: Data) -> Any:
    """Turn a record into dicts, lists and scalars, fit for JSON and for crossing processes."""
    return msgspec.to_builtins(data)
