"""Looks up private names of PyTorch and Triton that perflab needs; a missing one is an error that names it.

Private names come and go without notice, and a patch without a target would make numbers wrong that are called exact.
All uses are in ``perflab.internals.of_torch`` and ``perflab.internals.of_triton``, each with its purpose. A name that
is gone or has changed switches off only the feature that needs it (``switched_off``).
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

from perflab.base.errors import InternalsError

_ABSENT = object()
_CALLS_USERS = "measure.calls.workload"
"""The module that calls users' callables: an error of a user's C function has no traceback line but this module's."""
_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True)
class Checked:
    """The versions of a package whose internals were checked. ``pyproject.toml`` declares only the oldest one."""

    package: str
    oldest: tuple[int, int]
    newest: tuple[int, int]

    @property
    def span(self) -> str:
        """The checked versions as text: ``2.11 to 2.13``."""
        return f"{_dotted(self.oldest)} to {_dotted(self.newest)}"

    @property
    def version(self) -> str | None:
        """The installed version of the package, loaded or not; None if it is not installed."""
        try:
            return metadata.version(self.package)
        except metadata.PackageNotFoundError:
            return None

    def covers(self, version: str) -> bool:
        """Whether a version is in the checked range; False for a text without a version number."""
        numbers = re.match(r"(\d+)\.(\d+)", version)
        return numbers is not None and self.oldest <= (int(numbers[1]), int(numbers[2])) <= self.newest


TORCH = Checked("torch", (2, 11), (2, 13))
"""The checked versions of PyTorch. 2.13.0: all tests. 2.11.0: those of the harness (``make versions``). 2.12.0: every
name was looked up in the installed files, nothing was run."""
TRITON = Checked("triton", (3, 6), (3, 9))
"""The checked versions of Triton. 3.9.0: all tests. 3.6.0: those of the harness. 3.7.0 and 3.8.0: every name was looked
up in the installed files, nothing was run."""


def version_warnings(*packages: Checked) -> list[str]:
    """Return a warning for each package that is installed in an unchecked version. No package is loaded."""
    return [
        f"warning: perflab was checked with {one.package} {one.span}, and {version} is installed: a feature whose "
        "internals changed is off and says so; predictions and counts may differ"
        for one in packages
        if (version := one.version) is not None and not one.covers(version)
    ]


def missing(checked: Checked, name: str, to: str) -> InternalsError:
    """Return the error for a name that the installed version lacks. ``to``: what perflab needs it for, as a verb."""
    return _error(checked, f"has no {name}, which perflab needs to {to}")


def _error(checked: Checked, said: str) -> InternalsError:
    before = (checked.newest[0], checked.newest[1] + 1)
    requirement = f"{checked.package}>={_dotted(checked.oldest)},<{_dotted(before)}"  # in pip's syntax
    return InternalsError(
        f"{checked.package} {checked.version or '(not installed)'} {said}; perflab was checked with {checked.span}",
        f"all else runs; for this, install a version that was checked: pip install '{requirement}'",
    )


def switched_off(error: BaseException) -> InternalsError | None:
    """Return why a feature is off, if the error comes from an internal that is gone or has changed; None otherwise.

    In a checked version no internal has changed, so an error in perflab's own lines is a fault of perflab.
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
    """Return ``owner.name``, for an object or a loaded module.

    Raises:
        InternalsError: ``owner`` has no such attribute.
    """
    found = getattr(owner, name, _ABSENT)
    if found is _ABSENT:
        kind = getattr(owner, "__name__", None) or type(owner).__name__
        raise missing(checked, f"{kind}.{name}", to)
    return found


def lookup(checked: Checked, path: str, to: str) -> Any:
    """Import a module and return a name in it, by a path such as ``torch.optim.optimizer:Optimizer.step``.

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
    """Return a decorator that looks up names (as ``lookup`` does) before each call of the function that uses them.

    The function itself needs no checks: a missing name raises an ``InternalsError`` that states its purpose, ``to``.
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
