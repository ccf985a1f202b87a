"""How hard the harness is attacked: a share of it with all other tests, and all of it under ``make attack``."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

SEED = 17
HOSTILE = (
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J",
    "<script>alert(1)</script><img src=x onerror=y>",
    "uno\ndos\r\ntres\u2028cuatro\x0bcinco\x85seis",
    "a|b||c`d``e```f",
    "**bold** _it_ ~~no~~ [link](http://x) ![image](y) $x$ # head",
    "- item",
    "@org/team someone@example.org https://example.org/x www.example.org",
    "1. item",
    "| a | b |\n|---|---|",
    "left\u202eright\u2066isolate\u200b",
    "null\x00 tab\t bell\x07 delete\x7f",
    "half \udc80 character",
    "&amp; &#124; &lt;b&gt;",
    "\\` \\| \\",
    "</details></summary><!-- comment",
    "",
    "   ",
    "x" * 500,
)


def times(few: int, many: int) -> int:
    """How often something is tried: in every run of the tests, and under ``make attack``."""
    return many if os.environ.get("PERFLAB_ATTACK") else few


def damaged(raw: bytes, how: random.Random) -> bytes:
    """A file as a disk, a merge or an editor may leave it behind: its bytes, its lines, or its numbers are others."""
    at = how.randrange(len(raw))
    to = min(len(raw), at + how.randrange(1, 40))
    lines = raw.splitlines(keepends=True)
    line = how.randrange(len(lines))
    kind = how.randrange(7)
    if kind == 0:
        return raw[:at]
    if kind == 1:
        return raw[:at] + bytes([raw[at] ^ (1 << how.randrange(8))]) + raw[at + 1 :]
    if kind == 2:
        return raw[:at] + raw[to:]
    if kind == 3:
        return raw[:at] + raw[at:to] + raw[at:]
    if kind == 4:
        return b"".join([*lines[:line], lines[line], *lines[line:]])
    if kind == 5:
        return b"".join([*lines[:line], *lines[line + 1 :]])
    return (
        raw[:at]
        + how.choice([b"-", b"1e400", b"9" * 400, b"NaN", b"null", b"\xff", b"0", b"{", b"[]", b'"'])
        + raw[to:]
    )


_ODD: tuple[Any, ...] = (None, True, -1, 0, 1, 2**63, 10**400, -1.5, 1e-310, 1e300, "", "x", [], {}, [[]], {"": None})


def changed_somewhere(tree: Any, how: random.Random) -> None:
    """Parsed JSON with one value taken away, emptied or made another one, in place."""
    container, key = how.choice(list(_places(tree)))
    kind = how.randrange(4)
    if kind == 0:
        del container[key]
    elif kind == 1 and isinstance(container[key], list | dict):
        container[key] = type(container[key])()
    elif kind == 2 and isinstance(container[key], int | float):
        container[key] = -container[key]
    else:
        container[key] = how.choice(_ODD)


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in pairs:
        yield tree, key
        yield from _places(value)
