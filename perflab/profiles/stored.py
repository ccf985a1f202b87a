"""Packs a profile with all of its rows into one line of text, as a baseline stores it, and unpacks it. Pure.

As JSON, a profile of some hundred rows takes 30 to 60 kB. The rows are much alike, so compressed they take a tenth.
"""

from __future__ import annotations

import base64
import binascii
import zlib

import msgspec

from perflab.base.data import changed, to_json
from perflab.profiles.parts import launches_and_waits
from perflab.results.profile import Profile

_DIGITS = 3
"""Significant digits of stored times: further digits differ from save to save and cost half of the bytes."""
_MOST_BYTES = 1 << 24
"""The greatest size of unpacked JSON in bytes: a damaged or hostile file must not fill the memory."""


def packed(profile: Profile) -> str:
    """Return the profile as compressed JSON in base64.

    FLOPs and those calls of CUDA that are not counted by metrics are left out; times are shortened to a few digits.
    """
    rows = [changed(row, time_ns=_short(row.time_ns), spread_ns=_short(row.spread_ns), flops=0) for row in profile.rows]
    calls = [changed(one, time_ns=_short(one.time_ns)) for one in launches_and_waits(profile.cuda_calls)]
    plain = to_json(changed(profile, rows=rows, cuda_calls=calls))
    return base64.b64encode(zlib.compress(plain, 9)).decode("ascii")


def unpacked(text: str) -> Profile | None:
    """Return the profile that ``packed`` made a text of; None for any other text."""
    try:
        plain = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _MOST_BYTES)
        return msgspec.json.decode(plain, type=Profile)
    except (binascii.Error, zlib.error, msgspec.MsgspecError):
        return None


def _short(time_ns: float) -> float:
    return float(f"{time_ns:.{_DIGITS}g}")
