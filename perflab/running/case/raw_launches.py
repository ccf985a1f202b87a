"""Handles raw Triton launches without a GPU: skips the case under the interpreter, else refuses it with a remedy.

Without a GPU a launch ends in an error of Triton's about drivers, or about addresses if tensors are fake. In the
interpreter, which ``TRITON_INTERPRET=1`` selects when Triton is imported, the time of a launch is meaningless. This
module does not import Triton: a case that launches kernels has loaded it.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perflab.base.errors import UsageError
from perflab.internals.of_triton import NO_GPU, interpreter_has_run, interpreter_is_loaded, interpreter_replaced

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


def line_of_launch(error: BaseException | None) -> str | None:
    """Return the source line of the kernel launch that caused an error: ``kernels.py:12: `scale[grid](x)` ``.

    None if the error did not come from a launch.
    """
    triton = getattr(sys.modules.get("triton"), "__file__", None)
    while error is not None and triton is not None:
        launching = None
        for frame in traceback.extract_tb(error.__traceback__):
            if Path(frame.filename).is_relative_to(Path(triton).parent):
                return _told(launching) if launching is not None else None
            launching = frame
        error = error.__cause__ or error.__context__
    return None


def _told(frame: traceback.FrameSummary) -> str:
    path = Path(frame.filename)
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"{shown}:{frame.lineno}: `{frame.line}`"


@contextlib.contextmanager
def only_compiled_kernels(case: str) -> Iterator[None]:
    """Skip or refuse, around the measuring of a case, kernel launches that do not run on a GPU.

    Raises:
        pytest.skip.Exception: Triton's interpreter runs a kernel of the case.
        UsageError: the case launches a kernel, and there is no GPU.
    """
    with kernels_have_a_gpu(case), _nothing_interpreted():
        yield


@contextlib.contextmanager
def kernels_have_a_gpu(case: str) -> Iterator[None]:
    """Refuse, around a call of a case, kernel launches without a GPU; launches in the interpreter are allowed.

    Raises:
        UsageError: the case launches a kernel, and there is no GPU.
    """
    try:
        yield
    except RuntimeError as error:
        where = line_of_launch(error) if NO_GPU in str(error) else None
        if where is None:
            raise
        raise UsageError(
            f"{case}: {where} launches a Triton kernel, but there is no GPU to run it",
            "skip it where there is none (@pytest.mark.skipif(not torch.cuda.is_available(), ...)); set "
            "TRITON_INTERPRET=1 before Triton is imported to run it, untimed; `perflab kernels` compiles it here",
        ) from None


@contextlib.contextmanager
def _nothing_interpreted() -> Iterator[None]:
    """Skip the case at its first launch in the interpreter; or after the block, if the block itself loads the
    interpreter."""
    if interpreter_is_loaded():
        with interpreter_replaced(_skip):
            yield
        return
    yield
    if interpreter_is_loaded() and interpreter_has_run():
        _skip()


def _skip(*_arguments: Any, **_keywords: Any) -> None:
    pytest.skip("in Triton's interpreter, so its time means nothing")
