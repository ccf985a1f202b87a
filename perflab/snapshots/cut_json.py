"""JSON that may end too early: its keys with their values, as far as they are whole. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

_SPACE, _BETWEEN = re.compile(r"\s*"), re.compile(r"[\s,:]*")


def what_is_there(text: bytes) -> tuple[Any, int]:
    """What the JSON says, and the character at which it ends too early; 0: it is whole."""
    try:
        return json.loads(text), 0
    except json.JSONDecodeError:
        return _whole_items(text.decode("utf-8", "replace"))


def _whole_items(text: str) -> tuple[dict[str, Any], int]:
    """The keys with their values as far as they are whole; of the list that is cut off, its whole items."""
    decode, content = json.JSONDecoder().raw_decode, dict[str, Any]()
    start = position = _behind(text, _SPACE, 0) + 1
    key = ""
    while True:
        try:
            key, end = decode(text, _behind(text, _BETWEEN, position))
            start = _behind(text, _BETWEEN, end)
            content[key], position = decode(text, start)
        except json.JSONDecodeError:
            break
    if text[start : start + 1] != "[" or key in content:
        return content, position
    items: list[Any] = []
    position = start + 1
    while True:
        try:
            item, end = decode(text, _behind(text, _BETWEEN, position))
        except json.JSONDecodeError:
            content[key] = items
            return content, position
        items.append(item)
        position = end


def _behind(text: str, what: re.Pattern[str], position: int) -> int:
    found = what.match(text, position)
    assert found is not None
    return found.end()
