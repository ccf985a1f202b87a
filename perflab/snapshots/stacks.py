"""Which line of a stack is the user's, and what a stack says of a block. Pure."""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from perflab.snapshots.model import UNKNOWN, Frame, Stack

_NOT_THE_USER_S = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages|lib/python3[.\d]*)/"
    r"|(?:^|/)torch/(?:nn|optim|autograd|utils|_\w+|cuda|distributed|amp|profiler)/|(?:^|/)torch/\w+\.py$"
    r"|(?:^|/)perflab/(?:measure|measured|predicted|plugin|compared)/"
    r"|^<|^\?\?|\.(?:cpp|cc|cxx|c|cu|cuh|h|hpp)$|\.[sS]$|\.so(?:[.\d]*)$|^$|importlib"
    r"|(?:^|/)bin/[\w.-]+$"
)
_OPTIMIZER = re.compile(r"(?:^|/)torch/optim/\w+\.py$")
_STATE_MAKERS = ("_init_group", "init_state", "_init_state")
_MODULES = re.compile(r"(?:^|/)torch/nn/(?:modules/\w+|parameter)\.py$")
_PARAMETER_MAKERS = ("_apply", "convert", "to_empty", "<lambda>", "__init__", "reset_parameters", "__new__")
_SEED = "_make_grads"
"""Makes the gradient that a backward begins with, which is let go when it has returned."""
_BACKWARD = ("_engine_run_backward", "run_backward")
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::")
_ENGINE = "torch::autograd::Engine"
_WORKSPACE = ("getCurrentCUDABlasHandle", "getCUDABlasLtWorkspace", "cublasCreate", "getCUDABlasLtHandle")


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


@dataclass(frozen=True)
class Facts:
    """What a stack tells of a block that it gave or took."""

    is_known: bool
    is_workspace: bool
    is_optimizer: bool
    is_state: bool
    is_backward: bool
    is_seed: bool
    makes_parameters: bool


def facts_of(stack: Stack) -> Facts:
    """What is to be seen in a stack, Python's frames or C++'s."""
    optimizer = [frame.function for frame in stack if _OPTIMIZER.search(frame.file)]
    innermost = next((frame for frame in stack if frame.file.endswith(".py")), None)
    return Facts(
        is_known=bool(stack),
        is_workspace=any(maker in frame.function for frame in stack for maker in _WORKSPACE),
        is_optimizer=bool(optimizer),
        is_state=any(name in _STATE_MAKERS for name in optimizer),
        is_backward=any(frame.function in _BACKWARD or _ENGINE in frame.function for frame in stack),
        is_seed=any(frame.function == _SEED for frame in stack),
        makes_parameters=innermost is not None
        and _MODULES.search(innermost.file) is not None
        and innermost.function in _PARAMETER_MAKERS,
    )


def deduced_category(given: Facts, taken: Facts, *, is_freed: bool) -> str:
    """What a block is for, as far as it follows from who gave it and who took it.

    What a forward made and a backward let go was kept for it: ``activations``. What a backward made and left is
    ``gradients``. What was made and let go on the same side is ``temporaries``. The rest is not known.
    """
    if given.is_workspace:
        return "workspace"
    if given.is_state:
        return "optimizer state"
    if given.is_optimizer or given.is_seed:
        return "temporaries"
    if given.is_backward:
        if is_freed and taken.is_backward:
            return "temporaries"
        # Of a marked backward without a stack, what is never let go may also be what a library keeps for itself.
        return "gradients" if given.is_known or is_freed else UNKNOWN
    if not given.is_known:
        return UNKNOWN
    if taken.is_backward:
        return "activations"
    if is_freed:
        return "temporaries" if taken.is_known else UNKNOWN
    return "parameters" if given.makes_parameters else UNKNOWN
