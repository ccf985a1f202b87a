"""What calls are refused with, for golden files: the kind of the error and its text."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def refusal_of(call: Callable[[], object]) -> str:
    """Return the kind and the text of the error that a call raises.

    Raises:
        AssertionError: the call was not refused.
    """
    try:
        call()
    except Exception as error:  # any kind; the golden file has the one that is right
        return f"{type(error).__name__}: {error}"
    raise AssertionError("nothing was refused")


def refusals_of(call: Callable[..., object], *, of: Iterable[object]) -> dict[str, str]:
    """Return the refusal of each of these arguments, by the argument as text."""
    return {str(one): refusal_of(lambda one=one: call(one)) for one in of}
