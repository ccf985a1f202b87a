"""Raw Triton launches without a GPU: skipped under the interpreter, else refused with a remedy.

Without a GPU a launch ends in an error of Triton's about drivers, or about addresses where tensors are fake; and in the
interpreter, which ``TRITON_INTERPRET=1`` chooses when Triton is imported, it takes a time that says nothing. Triton is
not imported here: where a case launches, it is loaded.
"""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perflab.errors import UsageError
from perflab.triton_internals import NO_GPU, interpreter_has_run, interpreter_is_loaded, interpreter_replaced

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


def line_of_launch(error: BaseException | None) -> str | None:
    """The line that launched a kernel and ended in this error: ``kernels.py:12: `scale[grid](x)` ``; None: none did."""
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
    """Around the measuring of a case.

    Raises:
        pytest.skip.Exception: Triton's interpreter runs a kernel of it.
        UsageError: it launches a kernel, and there is no GPU.
    """
    with kernels_have_a_gpu(case), _nothing_interpreted():
        yield


@contextlib.contextmanager
def kernels_have_a_gpu(case: str) -> Iterator[None]:
    """Around a call of a case.

    Raises:
        UsageError: it launches a kernel, and there is no GPU.
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
    """Skip at the first launch in the interpreter; after the work, where that has loaded the interpreter itself."""
    if interpreter_is_loaded():
        with interpreter_replaced(_skip):
            yield
        return
    yield
    if interpreter_is_loaded() and interpreter_has_run():
        _skip()


def _skip(*_arguments: Any, **_keywords: Any) -> None:
    pytest.skip("in Triton's interpreter, so its time means nothing")
