"""What perflab needs of PyTorch and Triton that is no part of their public interface: found, or an error that names it.

Such names come and go without notice, and a patch that finds nothing to patch would leave numbers wrong that are called
exact. Every use stands in ``perflab.torch_internals`` or ``perflab.triton_internals``, and says what it is for. What is
gone or has changed switches off the feature that needs it, by name (``switched_off``), and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any, ParamSpec, TypeVar

from perflab.errors import InternalsError

_ABSENT = object()
_CALLS_USERS = "measure.workload"
"""Calls what may be a C function of somebody's, whose errors then have no line but ours."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Checked:
    """The versions of a package that its internals were checked with. ``pyproject.toml`` declares the oldest alone."""

    package: str
    oldest: tuple[int, int]
    newest: tuple[int, int]

    @property
    def span(self) -> str:
        """``2.11 to 2.13``."""
        return f"{_dotted(self.oldest)} to {_dotted(self.newest)}"

    @property
    def version(self) -> str | None:
        """What is installed, whether it is loaded or not; None where nothing is."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def covers(self, version: str) -> bool:
        """Whether a version is in the range; what has no number is not."""
        numbers = re.match(r"(\d+)\.(\d+)", version)
        return numbers is not None and self.oldest <= (int(numbers[1]), int(numbers[2])) <= self.newest


TORCH = Checked("torch", (2, 11), (2, 13))
"""2.13.0: all tests. 2.11.0 and 2.12.0: every name was looked up in the installed files, nothing was run."""
TRITON = Checked("triton", (3, 6), (3, 9))
"""3.9.0: all tests. 3.6.0, 3.7.0 and 3.8.0: every name was looked up in the installed files, nothing was run."""


def version_warnings(*packages: Checked) -> list[str]:
    """A line for each of them that is installed in a version that was not checked; nothing is loaded for that."""
    return [
        f"warning: perflab was checked with {one.package} {one.span}, and {version} is installed: a feature whose "
        "internals changed is off and says so; predictions and counts may differ"
        for one in packages
        if (version := one.version) is not None and not one.covers(version)
    ]


def missing(checked: Checked, name: str, to: str) -> InternalsError:
    """The error of a name that this version does not have. ``to``: what perflab does with it."""
    return _error(checked, f"has no {name}, which perflab needs to {to}")


def _error(checked: Checked, said: str) -> InternalsError:
    before = (checked.newest[0], checked.newest[1] + 1)
    requirement = f"{checked.package}>={_dotted(checked.oldest)},<{_dotted(before)}"  # as pip takes it
    return InternalsError(
        f"{checked.package} {checked.version or '(not installed)'} {said}; perflab was checked with {checked.span}",
        f"all else runs; for this, install a version that was checked: pip install '{requirement}'",
    )


def switched_off(error: BaseException) -> InternalsError | None:
    """Why a feature is off, if what ended it is an internal that is gone or has changed; None of any other error.

    In a version that was checked nothing has changed: there an error in perflab's own lines is one of perflab's.
    """
    if isinstance(error, InternalsError):
        return error
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if not isinstance(error, AttributeError | TypeError) or not frames:
        return None
    package, _, module = str(frames[-1].f_globals.get("__name__")).partition(".")
    if package != "perflab" or module.startswith("lab.") or module == _CALLS_USERS:
        return None
    candidates = (TRITON, TORCH) if "triton" in module else (TORCH, TRITON)
    newer = next((one for one in candidates if one.version is not None and not one.covers(one.version)), None)
    return _error(newer, f"has changed ({error})") if newer is not None else None


def attribute(checked: Checked, owner: Any, name: str, to: str) -> Any:
    """``owner.name``, of an object or a module that is at hand.

    Raises:
        InternalsError: it has none.
    """
    found = getattr(owner, name, _ABSENT)
    if found is _ABSENT:
        kind = getattr(owner, "__name__", None) or type(owner).__name__
        raise missing(checked, f"{kind}.{name}", to)
    return found


def lookup(checked: Checked, path: str, to: str) -> Any:
    """What stands at ``torch.optim.optimizer:Optimizer.step``: a module, which is loaded, and a name within.

    Raises:
        InternalsError: there is no such module or name.
    """
    module, _, names = path.partition(":")
    found: Any = sys.modules.get(module)
    try:
        if found is None:
            found = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ModuleNotFoundError, AttributeError):
        raise missing(checked, path.replace(":", "."), to) from None
    return found


def needs(checked: Checked, *paths: str, to: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Looks for these names (as ``lookup`` does) before each call of a function that uses them.

    So the function is written plainly, and ends in an ``InternalsError`` that says ``to`` do what it is needed.
    """

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def checking(*arguments: _P.args, **keywords: _P.kwargs) -> _R:
            for path in paths:
                lookup(checked, path, to)
            return function(*arguments, **keywords)

        return checking

    return decorate


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
