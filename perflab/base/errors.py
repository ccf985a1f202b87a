"""Errors with remedies: the input, what was expected, and what to do. Imports no other module of perflab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class InShort(NamedTuple):
    """A problem in one line, and the process whose it is."""

    what: str
    whose: str = ""
    """The process's role in a comparison; empty where the problem is no process's."""

    def __str__(self) -> str:
        return f"{self.whose}: {self.what}" if self.whose else self.what


class PerflabError(Exception):
    """An error with a remedy. Its text is complete: the caller prints it, and no traceback is needed.

    Args:
        problem: the input and why it is not accepted, in one sentence.
        remedy: what to do next, in the imperative.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        super().__init__(f"{problem}\n  -> {remedy}")
        self.problem = problem
        self.remedy = remedy

    @property
    def in_short(self) -> InShort:
        """The problem's last line, which has the error where another program's output is quoted."""
        return InShort(self.problem.strip().rpartition("\n")[2])


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it, the latest first."""
    seen = set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


class SettingError(PerflabError):
    """An option, ini key or marker argument that cannot be used."""


class DeviceError(PerflabError):
    """A device that does not exist."""


class BaselineError(PerflabError):
    """A baseline file that cannot be read or written. The file is left unchanged."""


class UsageError(PerflabError):
    """A fixture or function used in a way that cannot give a measurement."""


class CaptureError(PerflabError):
    """A callable that cannot be captured in a CUDA graph."""


class ClockError(PerflabError):
    """Two clocks that measured different times for the same interval."""


class ReplacedError(ClockError):
    """A function on which a measurement relies that is not the original one."""


class ResultsError(PerflabError):
    """Timed calls that left other results than untimed calls of the same arguments."""


class WrongResultError(ResultsError):
    """Results that are not those of the reference that a case has stated."""


class FreshProcessError(PerflabError):
    """A measurement in a fresh process that gave no result."""


class RivalError(PerflabError):
    """The other side of an A/B comparison cannot be found, or does not run."""


class DocumentError(PerflabError):
    """A results file that cannot be read or written."""


class SideEndedError(RivalError):
    """A process of an A/B comparison ended while it was needed.

    Args:
        role: the process's role in the comparison.
        what: what happened to the process.
        remedy: as for ``PerflabError``.
        output: the last lines that the process printed, each indented.
        hung: whether the process gave no answer and was ended.
    """

    def __init__(self, role: str, what: str, remedy: str, *, output: str, hung: bool = False) -> None:
        super().__init__(f"{role}: {what}; its output:\n{output}", remedy)
        self.role = role
        self.what = what
        self.output = output
        self.hung = hung

    @property
    def in_short(self) -> InShort:
        """The problem without the process's output."""
        return InShort(self.what, self.role)


class KernelError(PerflabError):
    """A registration of kernels, or an architecture, that cannot be compiled."""


class SnapshotError(PerflabError):
    """A memory snapshot that cannot be read: foreign, damaged, or not plain data."""


class PredictionError(PerflabError):
    """A callable that cannot be run on fake tensors."""


class InternalsError(PerflabError):
    """A version of PyTorch or Triton without an internal name that perflab needs."""


class UnansweredError(InternalsError):
    """A quantity that the device in use does not report; what needs it is off and says so, as for a missing name."""
