"""Errors of processes that run callables, and the one that ends a judgement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from perflab.processes.peer import Ending, How
from perflab.untrusted.messages import Raised
from perflab.untrusted.records import SUSPICIONS, Finding, Reason

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


class EndedError(Exception):
    """The process of a callable has ended, hangs, or answers in another protocol."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.told)
        self.ending = ending


class RaisedError(Exception):
    """The callable has raised."""

    def __init__(self, told: Raised) -> None:
        super().__init__(f"{told.kind}: {told.text}")
        self.told = told


class UnfitError(Exception):
    """The output of a callable is no plain tensor, or not where it should be: the text says which."""


class LooseError(UnfitError):
    """The process of a callable has not given up what it was told to, as seen from outside."""


class RefusedError(Exception):
    """Ends a judgement: the candidate is wrong or suspicious."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason, self.text = reason, text
        self.finding = Finding.SUSPICIOUS if reason in SUSPICIONS else Finding.WRONG


@contextlib.contextmanager
def refusing(reason: Reason = Reason.RAISED, *, called: bool = True) -> Iterator[None]:
    """Turn what a candidate's process does into the end of the judgement.

    Args:
        reason: what an error means. A first call may compile, or raise as any other.
        called: whether the candidate is called, and not only imported.
    """
    try:
        yield
    except RaisedError as error:
        why = Reason.RAISED if called and not error.told.of_compiler else reason
        why = Reason.OUT_OF_MEMORY if error.told.out_of_memory else why
        told = error.told.traceback
        if error.told.text not in told:  # its end alone was kept, which a long text fills
            told = f"{error}\n{told}"
        raise RefusedError(why, told) from None
    except EndedError as error:
        ending = error.ending
        why = Reason.HUNG if ending.how is How.HUNG else Reason.CRASHED
        lines = [f"its process {ending.told}", *ending.last_lines(20)]
        raise RefusedError(why, "\n".join(lines)) from None
    except LooseError as error:
        raise RefusedError(Reason.LOOSE, str(error)) from None
    except UnfitError as error:
        raise RefusedError(Reason.FORM, str(error)) from None
