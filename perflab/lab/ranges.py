"""NVTX ranges around parts of the lab, for Nsight Systems; nothing at all unless they are asked for.

They are asked for by `PERFLAB_NVTX=1` in the environment, as `perflab nsys` sets it, before this is imported.
"""

import functools
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
ASKED = os.environ.get("PERFLAB_NVTX", "") not in ("", "0")


def ranged(name: str) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Open a range around each call of a function, on CUDA; the function itself where none is asked for.

    It is a start/end range: what other threads do meanwhile belongs to it. Code that is being compiled has none.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        if not ASKED:
            return function

        @functools.wraps(function)
        def call(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
            if torch.compiler.is_compiling() or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                return function(*args, **kwargs)
            handle = torch.cuda.nvtx.range_start(name)
            try:
                return function(*args, **kwargs)
            finally:
                torch.cuda.nvtx.range_end(handle)

        return call

    return decorate
