"""A profile as one line of text, in which a baseline keeps all of its rows, and back. Pure.

As JSON a profile of some hundred rows takes 30 to 60 kB; its rows are much alike, so compressed it takes a tenth.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from perflab.data import changed, to_json
from perflab.profiles.parts import launches_and_waits
from perflab.profiles.records import Profile

_DIGITS = 3
"""Significant digits of stored times: further ones differ from save to save and cost half of the bytes."""
_MOST_BYTES = 1 << 24
"""Of unpacked JSON: a damaged or hostile file must not fill the memory."""


def packed(profile: Profile) -> str:
    """The profile without FLOPs, with short times, and of CUDA's calls those that are counted, as base64."""
    rows = [changed(row, time_ns=_short(row.time_ns), spread_ns=_short(row.spread_ns), flops=0) for row in profile.rows]
    calls = [changed(one, time_ns=_short(one.time_ns)) for one in launches_and_waits(profile.cuda_calls)]
    plain = to_json(changed(profile, rows=rows, cuda_calls=calls))
    return base64.b64encode(zlib.compress(plain, 9)).decode("ascii")


def unpacked(text: object) -> Profile | None:
    """The profile that `packed` made this text of; None for anything else, as older versions stored it."""
    if not isinstance(text, str):
        return None
    try:
        plain = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        return msgspec.json.decode(plain, type=Profile)
    except (binascii.Error, zlib.error, msgspec.MsgspecError):
        return None


def _short(time_ns: float) -> float:
    return float(f"{time_ns:.{_DIGITS}g}")
