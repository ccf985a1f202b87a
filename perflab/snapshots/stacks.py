"""Finds the user's line in a call stack, and formats call stacks. Pure."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable
from functools import lru_cache

from perflab.snapshots.model import Frame, Stack

MOST_FRAMES = 5
"""The most frames of a call stack that are shown."""
_NOT_THE_USER_S = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python3[.\d]*)/"
    r"|(?:^|/)torch/(?:nn|optim|autograd|utils|_\w+|cuda|distributed|amp|profiler)/|(?:^|/)torch/\w+\.py$"
    r"|(?:^|/)perflab/(?:measure|measured|predicted|plugin|compared)/"
    r"|^<|^\?\?|\.(?:cpp|cc|cxx|c|cu|cuh|h|hpp)$|\.[sS]$|\.so(?:[.\d]*)$|^$|importlib"
    r"|(?:^|/)bin/[\w.-]+(?<!\.py)$"
)
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::")


@lru_cache(maxsize=100_000)
def is_user_s(file: str) -> bool:
    """Whether a file is the user's: outside of Python, PyTorch, installed packages and perflab's harness."""
    return _NOT_THE_USER_S.search(file) is None


def user_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of the user's code; without one, the innermost frame of Python, else of C++.

    None: the stack is empty.
    """
    first = None
    for frame in stack:
        if is_user_s(frame.file):
            return frame
        if first is None and frame.file.endswith(".py"):
            first = frame
    return first or (stack[0] if stack else None)


Thread = tuple[str, str]
"""The identity of a thread: file and function of its outermost call of Python."""


def root_of(stack: Stack) -> Thread | None:
    """Return the file and function with which a stack's thread begins; None if the stack has no call of Python."""
    for frame in reversed(stack):
        if frame.file.endswith(".py") or frame.file.startswith("<"):
            return frame.file, frame.function
    return None


def common_folder(stacks: Iterable[Stack]) -> str:
    """Return the folder that holds all of the user's files, with a slash; empty if paths are relative or share none."""
    files = {frame.file for stack in stacks for frame in stack if is_user_s(frame.file)}
    if not files or not all(file.startswith("/") for file in files):
        return ""
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    return folder.rstrip("/") + "/" if folder != "/" else ""


def line_of(stack: Stack, folder: str = "") -> str:
    """Return the user's line, such as ``model.py:190``, relative to ``folder``; empty if no line is known.

    For a stack of C++ frames alone, return the operator or the function, such as ``aten::add (C++)``.
    """
    frame = user_frame(stack)
    if frame is None or not frame.file:
        return ""
    if not is_user_s(frame.file) and not frame.file.endswith(".py"):  # only C++ frames, as in autograd's threads
        operator = next((found[1] for one in stack if (found := _OPERATOR.search(one.function))), "")
        return f"aten::{operator} (C++)" if operator else f"{frame.function} (C++)" if frame.function else ""
    file = frame.file.removeprefix(folder)
    return f"{file}:{frame.line}" if frame.line else file


def shown_stack(stack: Stack) -> str:
    """Format the user's calls, the innermost first: ``model.py:190 forward < train.py:12 main``."""
    frames = [frame for frame in stack if is_user_s(frame.file)]
    if not frames and not any(frame.file.endswith(".py") for frame in stack[:1]) and len(stack) > 1:
        return line_of(stack)
    frames = frames or list(stack)
    calls = [_call(frame) for frame in frames[:MOST_FRAMES]]
    return " < ".join(calls) + (" < …" if len(frames) > MOST_FRAMES else "")


def other_calls(stack: Stack) -> list[str]:
    """Return the calls that ``line_of`` does not name: the user's other calls, then those of libraries."""
    named = user_frame(stack)
    frames = [frame for frame in stack if frame is not named]
    return [_call(frame) for frame in sorted(frames, key=lambda frame: not is_user_s(frame.file))]


def _call(frame: Frame) -> str:
    place = f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} " if frame.file else ""
    return f"{place}{frame.function}".strip()
