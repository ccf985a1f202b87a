"""Finds the user's call site: the line of the user's code that asked for something.

Python's standard library is not user code: ``contextlib`` stands between a decorator and its function. Installed
packages other than PyTorch count as user code, since a model is often a package.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sysconfig
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import CodeType, FrameType


def line_of(frame: FrameType | None, *, only: bool = False, until: CodeType | None = None) -> str:
    """Return the innermost line of user code from a frame on: ``train.py:12``; ``""`` if there is none.

    Lines of PyTorch, Python and perflab are skipped. ``only``: look only at ``frame``. ``until``: stop at a frame of
    this code.
    """
    while frame is not None and frame.f_code is not until:
        shown = shown_file(frame.f_code.co_filename)
        if shown is not None:
            return f"{shown}:{frame.f_lineno}"
        frame = None if only else frame.f_back
    return ""


MOST_CALLERS = 8
"""Largest number of lines in a call stack."""
CALLERS = 2
"""Number of a line's callers that a text shows; results files have the whole call stack."""


def with_callers(line: str, stack: Sequence[str], callers: int = CALLERS) -> str:
    """Format a line and its callers: ``net.py:9 < train.py:5``. ``stack`` starts with ``line``, or is empty."""
    return " < ".join(stack[: callers + 1] or [line])


def stack_of(frame: FrameType | None, *, until: CodeType | None = None) -> tuple[str, ...]:
    """Return the user's call stack from a frame on, innermost line first, up to the perflab code that called it."""
    found: list[str] = []
    while frame is not None and frame.f_code is not until and len(found) < MOST_CALLERS:
        filename = frame.f_code.co_filename
        if found and filename.startswith(_ours()):
            break
        shown = shown_file(filename)
        if shown is not None:
            found.append(f"{shown}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(found)


def called_from(frame: FrameType | None, *, until: CodeType) -> str:
    """Format the call site from a frame on with its callers; within ``torch.utils.checkpoint``, that call's site."""
    above = frame
    while above is not None and above.f_code is not until:
        code, above = above.f_code, above.f_back
        if code.co_name == "checkpoint" and code.co_filename.endswith("utils/checkpoint.py"):
            frame = above
    lines = stack_of(frame, until=until)
    return with_callers(lines[0], lines) if lines else ""


_LIKE_A_USERS = ("lab", "attention")
_PACKAGES = ("site-packages/", "dist-packages/")
"""Folders in Python's standard library that hold installed packages."""


@cache
def shown_file(filename: str) -> str | None:
    """Return a user's file relative to the working directory if it lies there; None for PyTorch, Python and perflab."""
    library = f"{sysconfig.get_path('stdlib')}/"
    is_pythons = filename.startswith(library) and not filename.removeprefix(library).startswith(_PACKAGES)
    if is_pythons or filename.startswith(("<", *_not_the_code())):
        return None
    with contextlib.suppress(ValueError):
        return Path(filename).relative_to(Path.cwd()).as_posix()
    return filename


@cache
def _not_the_code() -> tuple[str, ...]:
    """Return the folders of PyTorch and perflab, except perflab's lab and attention, which count as user code."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return (f"{Path(spec.origin).parent}/", *_ours())


@cache
def own_rooms() -> tuple[Path, ...]:
    """Return the folders of perflab, except perflab's lab and attention, which count as user code."""
    return tuple(one for one in Path(__file__).parents[1].iterdir() if one.is_dir() and one.name not in _LIKE_A_USERS)


@cache
def _ours() -> tuple[str, ...]:
    return tuple(f"{folder}/" for folder in (*own_rooms(), Path(__file__).parents[2] / "nocuda"))
