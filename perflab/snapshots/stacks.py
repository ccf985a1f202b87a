"""Which line of a stack is the user's, and how a stack is shown. Pure."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable
from functools import lru_cache

from perflab.snapshots.model import Frame, Stack

MOST_FRAMES = 5
"""Of a stack that is shown."""
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
    """Whether a file is no part of Python, PyTorch, what is installed, or perflab's harness."""
    return _NOT_THE_USER_S.search(file) is None


def user_frame(stack: Stack) -> Frame | None:
    """The innermost frame that is the user's; where all are libraries', the innermost of Python."""
    first = None
    for frame in stack:
        if is_user_s(frame.file):
            return frame
        if first is None and frame.file.endswith(".py"):
            first = frame
    return first or (stack[0] if stack else None)


Thread = tuple[str, str]
"""File and function of the outermost call of Python, by which threads are told apart."""


def root_of(stack: Stack) -> Thread | None:
    """Where the thread of a stack begins; None where there is no call of Python."""
    for frame in reversed(stack):
        if frame.file.endswith(".py") or frame.file.startswith("<"):
            return frame.file, frame.function
    return None


def common_folder(stacks: Iterable[Stack]) -> str:
    """The folder that all of the user's files lie in, with a slash; empty where paths are relative, or share none."""
    files = {frame.file for stack in stacks for frame in stack if is_user_s(frame.file)}
    if not files or not all(file.startswith("/") for file in files):
        return ""
    folder = os.path.commonpath([os.path.dirname(file) for file in files])
    return folder.rstrip("/") + "/" if folder != "/" else ""


def line_of(stack: Stack, folder: str = "") -> str:
    """``model.py:190``, without the folder that all files lie in; empty where nothing is known."""
    frame = user_frame(stack)
    if frame is None or not frame.file:
        return ""
    if not is_user_s(frame.file) and not frame.file.endswith(".py"):  # C++ alone, as in autograd's threads
        operator = next((found[1] for one in stack if (found := _OPERATOR.search(one.function))), "")
        return f"aten::{operator} (C++)" if operator else f"{frame.function} (C++)" if frame.function else ""
    file = frame.file.removeprefix(folder)
    return f"{file}:{frame.line}" if frame.line else file


def shown_stack(stack: Stack) -> str:
    """The user's calls, the innermost first: ``model.py:190 forward < train.py:12 main``."""
    frames = [frame for frame in stack if is_user_s(frame.file)]
    if not frames and not any(frame.file.endswith(".py") for frame in stack[:1]) and len(stack) > 1:
        return line_of(stack)
    frames = frames or list(stack)
    calls = [_call(frame) for frame in frames[:MOST_FRAMES]]
    return " < ".join(calls) + (" < …" if len(frames) > MOST_FRAMES else "")


def other_calls(stack: Stack) -> list[str]:
    """The calls that ``line_of`` does not name: the user's that led there, then those of libraries."""
    named = user_frame(stack)
    frames = [frame for frame in stack if frame is not named]
    return [_call(frame) for frame in sorted(frames, key=lambda frame: not is_user_s(frame.file))]


def _call(frame: Frame) -> str:
    place = f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} " if frame.file else ""
    return f"{place}{frame.function}".strip()
