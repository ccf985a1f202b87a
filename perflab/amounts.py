"""Checks numbers that user code gives, while an error can still name the argument."""

from __future__ import annotations

from typing import Any

from perflab.errors import UsageError

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_MOST = 1e30
"""Units of work, or seconds: what is more is a mistake, and its rate might be no number."""


def positive(call: str, amount: Any, wanted: str, scale: float = 1.0, *, or_none: bool = False) -> float:
    """A positive number, times ``scale``, as JSON can hold it.

    Args:
        call: how it was given, up to the number, for the error.
        amount: what was given.
        wanted: what to give instead.
        scale: such as nanoseconds in a second.
        or_none: whether 0 will do too.

    Raises:
        UsageError: it is none, or is too large for a float.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise UsageError(f"{call}...) got {type(amount).__name__!r}", wanted)
    if not 0 < amount <= _MOST and not (or_none and amount == 0):
        shown = repr(amount) if isinstance(amount, float) or abs(amount) <= _MOST else _in_bits(amount)
        raise UsageError(f"{call}{shown})", wanted)
    return float(amount) * scale


def _in_bits(amount: int) -> str:
    """Of an int whose digits nobody counts, and Python may refuse to."""
    return f"an int of {amount.bit_length()} bits"
