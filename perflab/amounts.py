"""Checks numbers that user code gives, while an error can still name the argument."""

from __future__ import annotations

from numbers import Real
from typing import Any

from perflab.errors import UsageError

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_MOST = 1e30
"""Units of work, or seconds: what is more is a mistake, and its rate might be no number."""


def positive(call: str, amount: Any, wanted: str, scale: float = 1.0, *, or_none: bool = False) -> float:
    """A positive number, times ``scale``, as JSON can hold it.

    Args:
        call: how it was given, up to the number, for the error.
        amount: what was given; numbers of NumPy will do.
        wanted: what to give instead.
        scale: such as nanoseconds in a second.
        or_none: whether 0 will do too.

    Raises:
        UsageError: it is none, or is too large for a float.
    """
    if not _is_number(amount):
        raise UsageError(f"{call}...) got {type(amount).__name__!r}", wanted)
    if not 0 < amount <= _MOST and not (or_none and amount == 0):
        shown = _in_bits(amount) if isinstance(amount, int) and abs(amount) > _MOST else repr(amount)
        raise UsageError(f"{call}{shown})", wanted)
    return float(amount) * scale


def _is_number(amount: Any) -> bool:
    return isinstance(amount, Real) and not isinstance(amount, bool)


def _in_bits(amount: int) -> str:
    """Of an int whose digits nobody counts, and Python may refuse to."""
    return f"an int of {amount.bit_length()} bits"
