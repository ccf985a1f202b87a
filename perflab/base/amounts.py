"""Checks numbers from user code early, so that an error can name the argument."""

from __future__ import annotations

from numbers import Real
from typing import Any

from perflab.base.errors import UsageError

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_MOST = 1e30
"""The largest accepted number of units of work, or of seconds: a larger one is a mistake, and its rate may overflow."""


def positive(call: str, amount: Any, wanted: str, scale: float = 1.0, *, or_none: bool = False) -> float:
    """Return a positive number, times ``scale``, as a float that JSON can hold.

    Args:
        call: the call that gave the number, up to the number, for the error.
        amount: the number; NumPy's numbers are accepted.
        wanted: the remedy: what to give instead.
        scale: a factor, such as nanoseconds in a second.
        or_none: whether 0 is accepted too.

    Raises:
        UsageError: the amount is not a positive number, or is larger than 1e30.
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
    """Describe a huge int by its bits; Python may refuse to write its digits."""
    return f"an int of {amount.bit_length()} bits"
