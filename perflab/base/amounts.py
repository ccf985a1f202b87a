"""Checks numbers and functions from user code early, so that an error can name the argument."""

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
        is_huge = isinstance(amount, int) and abs(amount) > _MOST  # Python may refuse to write its digits
        raise UsageError(f"{call}{f'an int of {amount.bit_length()} bits' if is_huge else repr(amount)})", wanted)
    return float(amount) * scale


def _is_number(amount: Any) -> bool:
    return isinstance(amount, Real) and not isinstance(amount, bool)


def refuse_uncallable(call: str, value: object, remedy: str) -> None:
    """Refuse a value that is to be called and cannot be. ``call``: the call that gave it, for the error.

    Raises:
        UsageError: the value cannot be called.
    """
    if not callable(value):
        raise UsageError(f"{call} got {type(value).__name__!r}, which cannot be called", remedy)


def refuse_no_count(call: str, value: object, remedy: str) -> None:
    """Refuse a value that is no int of 1 or more. ``call``: the call with the value, for the error.

    Raises:
        UsageError: the value is no such int.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(call, remedy)
