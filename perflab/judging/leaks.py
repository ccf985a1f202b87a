"""Formats the memory that a case keeps from call to call. Pure."""

from __future__ import annotations

from perflab.judging.out_of_memory import place
from perflab.results.measurement import Leak
from perflab.units import format_bytes, format_count

_MOST = 3
"""Number of places to name; the results file has all of them."""


def leak_text(leak: Leak) -> str:
    """Format a leak.

    ``memory held grows in each of 5 calls, by 4.00 KiB a call: 4.00 KiB of aten::mul (train.py:12); kept ...``.
    """
    grown_bytes = sum(leak.grown_bytes) // len(leak.grown_bytes)
    kept_bytes = max(grown_bytes, sum(part.size_bytes for part in leak.kept))  # with graphs, which Python does not see
    calls = format_count(len(leak.grown_bytes), "call")
    text = f"memory held grows in each of {calls}, by {format_bytes(kept_bytes)} a call"
    said = [f"{format_bytes(part.size_bytes)} of {place(part) or 'unknown origin'}" for part in leak.kept[:_MOST]]
    more = len(leak.kept) - _MOST
    said += [f"{format_count(more, 'smaller part')}"] if more > 0 else []
    keeper = next(filter(None, (one.place for one in leak.keepers)), "")
    return f"{text}{': ' * bool(said)}{', '.join(said)}{f'; kept {keeper}' if keeper else ''}"
