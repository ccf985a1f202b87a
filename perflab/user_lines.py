"""Finds the line of the user's code that asked for something.

Python's own library is not the user's: ``contextlib`` stands between a function and what it decorates. What is
installed beside it is, but for PyTorch: a model is often a package.
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
    """The innermost line, from a frame on, that is not PyTorch's, Python's or ours: ``train.py:12``; or ``""``.

    ``only``: look at that frame alone. ``until``: look no further than to a frame of that code.
    """
    while frame is not None and frame.f_code is not until:
        shown = shown_file(frame.f_code.co_filename)
        if shown is not None:
            return f"{shown}:{frame.f_lineno}"
        frame = None if only else frame.f_back
    return ""


MOST_CALLERS = 8
"""Lines of a stack."""
CALLERS = 2
"""Of a line, in a text; results files have all of them."""


def with_callers(line: str, stack: Sequence[str], callers: int = CALLERS) -> str:
    """A line and so many that called it: ``net.py:9 < train.py:5``. ``stack`` begins with the line, or is empty."""
    return " < ".join(stack[: callers + 1] or [line])


def stack_of(frame: FrameType | None, *, until: CodeType | None = None) -> tuple[str, ...]:
    """The user's lines from a frame on, the innermost first, up to the code of ours that called him: ``net.py:9``."""
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
    """The line from a frame on, and those that called it; within ``torch.utils.checkpoint``, from that call on."""
    above = frame
    while above is not None and above.f_code is not until:
        code, above = above.f_code, above.f_back
        if code.co_name == "checkpoint" and code.co_filename.endswith("utils/checkpoint.py"):
            frame = above
    lines = stack_of(frame, until=until)
    return with_callers(lines[0], lines) if lines else ""


_LIKE_A_USERS = ("lab", "attention")
_PACKAGES = ("site-packages/", "dist-packages/")
"""Folders of Python's own library that hold what others wrote."""


@cache
def shown_file(filename: str) -> str | None:
    """The user's file as it is named, from the working directory on; None: it is PyTorch's, Python's or ours."""
    if filename.startswith(("<", *_not_the_code())) or _is_pythons(filename):
        return None
    with contextlib.suppress(ValueError):
        return Path(filename).relative_to(Path.cwd()).as_posix()
    return filename


def _is_pythons(filename: str) -> bool:
    library = f"{sysconfig.get_path('stdlib')}/"
    return filename.startswith(library) and not filename.removeprefix(library).startswith(_PACKAGES)


@cache
def _not_the_code() -> tuple[str, ...]:
    """Folders of PyTorch and of this package, whose lab counts as a user."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return (f"{Path(spec.origin).parent}/", *_ours())


@cache
def _ours() -> tuple[str, ...]:
    package = Path(__file__).parent
    rooms = (one for one in package.iterdir() if one.is_dir() and one.name not in _LIKE_A_USERS)
    return tuple(f"{folder}/" for folder in (*rooms, package.parent / "nocuda"))
