"""The base of all records: frozen data that checks its types when read. Imports no other module of perflab."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

Positive = Annotated[float, msgspec.Meta(gt=0)]
"""A time that can be compared: its ratios and logarithms exist."""
Amount = Annotated[int, msgspec.Meta(ge=0)]
"""A number of bytes, or another count."""
Layers = Annotated[int, msgspec.Meta(ge=1)]
"""The number of equal layers that one entry stands for, 1 or more."""
Share = Annotated[float, msgspec.Meta(ge=0)]
"""A spread, in a unit or as a share: zero or more."""
Parameters = dict[str, str | int | float | bool | None]
"""A case's parameters in pytest; a value that is not plain data is replaced by its text."""


class Data(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Base of all records: frozen, and strict about what it reads."""


Changed = TypeVar("Changed", bound=Data)


def changed(data: Changed, **fields: Any) -> Changed:
    """Return a copy of the data with some fields changed."""
    return msgspec.structs.replace(data, **fields)


def to_plain(data: Data) -> Any:
    """Turn a record into dicts, lists and scalars, fit for JSON and for crossing processes."""
    plain = msgspec.to_builtins(data)
    try:
        msgspec.json.encode(data)
    except UnicodeEncodeError:
        return speakable_throughout(plain)
    return plain


def to_json(data: Data) -> bytes:
    """Return the record as JSON on one line."""
    try:
        return msgspec.json.encode(data)
    except UnicodeEncodeError:
        return msgspec.json.encode(to_plain(data))


def to_readable_json(data: Data) -> str:
    """Return the record as indented JSON, for people and other programs; it ends with a newline."""
    return msgspec.json.format(to_json(data), indent=1).decode("utf-8") + "\n"


def speakable(text: str) -> str:
    """Return the text in a form that UTF-8 can hold: lone surrogates, as in undecodable file names, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def speakable_throughout(plain: Any) -> Any:
    """Return plain data with each text in a form that UTF-8 can hold."""
    if isinstance(plain, str):
        return speakable(plain)
    if isinstance(plain, dict):
        return {speakable_throughout(name): speakable_throughout(value) for name, value in plain.items()}
    return [speakable_throughout(one) for one in plain] if isinstance(plain, list | tuple) else plain


def with_texts(data: Changed, change: Callable[[str], str]) -> Changed:
    """Return the data with ``change`` applied to each text in it, keys included; ``data`` itself if no text changes."""
    found: Changed = _with_texts(data, change)
    return found


def _with_texts(value: Any, change: Callable[[str], str]) -> Any:
    if type(value) is str:
        return change(value)
    if isinstance(value, Data):
        old = {name: getattr(value, name) for name in value.__struct_fields__}
        new = {name: _with_texts(one, change) for name, one in old.items()}
        differs = any(new[name] is not old[name] for name in old)
        return msgspec.structs.replace(value, **new) if differs else value
    if isinstance(value, dict):
        pairs = {_with_texts(name, change): _with_texts(one, change) for name, one in value.items()}
        return pairs if pairs != value else value
    if isinstance(value, list) and value and not isinstance(value[0], int | float):
        ones = [_with_texts(one, change) for one in value]
        return ones if any(new is not old for new, old in zip(ones, value, strict=True)) else value
    return value
