"""Finds the line of the user's code that asked for something."""

from __future__ import annotations

import contextlib
import importlib.util
from functools import cache
from pathlib import Path
from types import FrameType


def line_of(frame: FrameType | None, *, only: bool = False) -> str:
    """The innermost line, from a frame on, that is neither PyTorch's nor ours: ``train.py:12``; or ``""``.

    ``only``: look at that frame alone.
    """
    while frame is not None:
        shown = _shown(frame.f_code.co_filename)
        if shown is not None:
            return f"{shown}:{frame.f_lineno}"
        frame = None if only else frame.f_back
    return ""


_LIKE_A_USERS = ("lab", "attention")


@cache
def _shown(filename: str) -> str | None:
    if filename.startswith(_not_the_code()) or filename.startswith("<"):
        return None
    with contextlib.suppress(ValueError):
        return Path(filename).relative_to(Path.cwd()).as_posix()
    return filename


@cache
def _not_the_code() -> tuple[str, ...]:
    """Folders of PyTorch and of this package, whose lab counts as a user."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    package = Path(__file__).parent
    rooms = (one for one in package.iterdir() if one.is_dir() and one.name not in _LIKE_A_USERS)
    return tuple(f"{folder}/" for folder in (Path(spec.origin).parent, *rooms, package.parent / "nocuda"))
