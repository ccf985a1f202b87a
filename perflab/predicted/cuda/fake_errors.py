"""Explains why code cannot run on fake tensors: the operator, the line and the remedy.

Such code reads numbers, which fake tensors do not have, or calls an operator whose result's shape is unknown: the
operator has no fake implementation, or one that supports fewer dtypes than CUDA's kernel.
"""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import torch

from perflab.base.errors import with_causes
from perflab.internals.of_torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    OpOverload,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from perflab.internals.of_torch.dispatch import schema_of

_TORCH = Path(torch.__file__).parent
_PERFLAB = Path(__file__).parents[2]
_LAB = _PERFLAB / "lab"
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))
_INSTALLED = Path(sysconfig.get_path("purelib"))
_TRITON = _TORCH.parent / "triton"

_MACHINERY = (
    *(f"{_TORCH}/{folder}/" for folder in ("_subclasses", "_dynamo", "_decomp", "_prims", "_prims_common", "_refs")),
    *(f"{_TORCH}/{name}.py" for name in ("_compile", "_meta_registrations", "_ops", "overrides")),
    *(f"{_TORCH}/utils/{name}.py" for name in ("_stats", "_python_dispatch")),
    f"{Path(__file__).parents[1]}/",
)
_LOADERS = f"{_TORCH}/utils/data/"
_HIGHER_ORDER = re.compile(r"no rule registered for HigherOrderOperator (\w+)")
_WANTS_NUMBERS = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
)
_SAYS_SO = (
    ".numpy() is not supported for tensor subclasses",
    "Cannot access data pointer of",
    "unsupported format string passed to FakeTensor",
    "Can't pickle local object 'WeakValueDictionary",
    "Could not guard on data-dependent expression",
    "Could not extract specialized integer from data-dependent expression",
)
"""Parts of the messages of other errors that are raised when code reads numbers or an address: ``numpy()``,
``data_ptr()``, ``f"{loss:.2f}"``, ``torch.save``, and sizes that depend on values."""


_NO_FAKE = (
    re.compile(r'"\w+" not implemented for '),
    re.compile(r"no fake impl registered"),
    re.compile(r"Could not run '\S+' with arguments from the 'Meta' backend"),
)
"""PyTorch's messages for an operator whose result's shape is unknown, in general or for the given arguments."""


def unpredictable(error: BaseException) -> str | None:
    """Return the operator that fake tensors cannot run, the reason, and the line if known; None for other errors.

    ``train.py:17: `torch.histc(...)`: aten::histc has no fake implementation``.
    """
    for one in with_causes(error):
        if isinstance(one, UnsupportedOperatorException):
            said = f"{_named(one.func)} has no fake implementation"
        elif any(words.search(str(one)) for words in _NO_FAKE):
            reason = " ".join(str(one).split("\n")[0].split())
            said = f"{_named(_operator_of(one))} cannot tell its result's shape: {reason}"
        else:
            continue
        where = next(filter(None, map(_innermost_line, reversed(list(with_causes(error))))), "")
        return f"{where}: {said}" if where else said
    return None


def _operator_of(error: BaseException) -> object:
    """Return the operator in the innermost frame of PyTorch's machinery that has one; None if no frame has."""
    found: object = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for name in ("func", "op"):
            value = frame.f_locals.get(name)
            if isinstance(value, OpOverload) and frame.f_code.co_filename.startswith(_MACHINERY):
                found = value
    return found


def _named(operator: object) -> str:
    return str(schema_of(operator).name) if isinstance(operator, OpOverload) else "an operator"


def what_needs_numbers(error: BaseException) -> str | None:
    """Return the user's line that asked a fake tensor for its numbers: ``train.py:17: `loss.item()` ``.

    None for any other error, and if no line is the user's. The line is that of the traceback's innermost frame outside
    of PyTorch, Triton, the standard library and this package, whose lab counts as a user. The path is relative to the
    working directory if it lies below that directory.
    """
    chain = list(with_causes(error))
    for depth, one in enumerate(chain, start=1):
        if _is_about_numbers(one):
            # PyTorch may have caught this error in its own code, and raised another one at the user's line.
            return next(filter(None, map(_innermost_line, reversed(chain[:depth]))), None)
    return None


def operator_of_a_loader(error: BaseException) -> str | None:
    """Return the operator by which a loader of ``torch.utils.data`` asked for numbers; None for any other error."""
    for one in with_causes(error):
        if _is_about_numbers(one) and any(file.startswith(_LOADERS) for file in _files(one.__traceback__)):
            return _named(getattr(one, "func", None))
    return None


def higher_order_operator(error: BaseException) -> str | None:
    """Return the higher-order operator (``flex_attention``) that an error is about; None for any other error.

    What such an operator does is decided by the compiler.
    """
    found = _HIGHER_ORDER.search(str(error)) if isinstance(error, NotImplementedError) else None
    return found[1] if found is not None else None


def without_machinery(error: BaseException) -> BaseException:
    """Cut the error's traceback where the machinery of fake tensors begins, and return the error.

    With real tensors the traceback would end at that point.
    """
    last, entry = None, error.__traceback__
    while entry is not None:
        filename = entry.tb_frame.f_code.co_filename
        if _is_the_users(filename) or (last is not None and not filename.startswith(_MACHINERY)):
            last = entry
        elif last is not None and not any(map(_is_the_users, _files(entry.tb_next))):
            last.tb_next = None
            break
        entry = entry.tb_next
    return error


def _files(entry: TracebackType | None) -> Iterator[str]:
    """Yield the file of each frame from this entry of a traceback inwards."""
    return (frame.f_code.co_filename for frame, _ in traceback.walk_tb(entry))


def _is_about_numbers(error: BaseException) -> bool:
    return isinstance(error, _WANTS_NUMBERS) or any(words in str(error) for words in _SAYS_SO)


def _innermost_line(error: BaseException) -> str | None:
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _is_the_users(frame.filename):
            path = Path(frame.filename)
            if path.is_relative_to(Path.cwd()):
                path = path.relative_to(Path.cwd())
            return f"{path}:{frame.lineno}: `{frame.line}`" if frame.line else f"{path}:{frame.lineno}"
    return None


def _is_the_users(filename: str) -> bool:
    path = Path(filename)
    if filename.startswith("<") or path.is_relative_to(_TORCH) or path.is_relative_to(_TRITON):
        return False
    if path.is_relative_to(_PERFLAB):
        return path.is_relative_to(_LAB)
    return path.is_relative_to(_INSTALLED) or not path.is_relative_to(_STANDARD_LIBRARY)
