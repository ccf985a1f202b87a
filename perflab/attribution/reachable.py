"""The objects that a callable reaches by its arguments and closures, and blocks in which the collector frees none."""

from __future__ import annotations

import contextlib
import dis
import gc
import inspect
import types
from collections.abc import Iterable, Iterator
from typing import Any

from perflab.internals.of_torch.loaders import batches_out_of_turn

_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType)
_NOT_THE_CASE = ("_pytest", "pytest", "pluggy", "perflab.plugin")
"""Packages of the test run itself, which are not followed: through them the whole session is reachable."""


def reachable(roots: tuple[Any, ...]) -> Iterator[Any]:
    """Yield every object that the roots reach, each once, tensors included.

    The search follows containers, attributes of objects, gradients, partial arguments, bound instances, closures,
    defaults, and the globals that a function names. It does not follow modules and classes, so that a case is not
    charged for objects that only happen to be alive in the process; nor what a ``DataLoader`` has received out of turn
    from its workers, which depends on how these were scheduled.
    """
    import torch

    seen: set[int] = set()
    pending: list[Any] = list(roots)
    keep: list[Any] = []  # objects made on the way stay alive, so that an id is never met twice
    while pending:
        value = pending.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        keep.append(value)
        yield value
        if isinstance(value, torch.Tensor):
            if value.is_leaf and value.grad is not None:
                pending.append(value.grad)
        else:
            seen.update(map(id, batches_out_of_turn(value)))
            pending.extend(_neighbours(value))


def in_hands_of(frame: types.FrameType) -> tuple[Any, ...]:
    """Return the objects that a running function refers to: its locals, and the globals that its code loads."""
    names = _loaded_globals(frame.f_code)
    found = frame.f_locals
    held = (*found.values(), *(frame.f_globals[name] for name in names if name in frame.f_globals))
    if type(found) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        found.clear()  # before Python 3.13 a copy that the frame keeps: it would keep released objects alive
    return held


def _neighbours(value: Any) -> Iterable[Any]:
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if (type(value).__module__ or "").startswith(_NOT_THE_CASE):
        return ()
    # The garbage collector knows the referents of any other object, whatever C type it is: items, attributes, slots,
    # a method's instance, a partial's arguments.
    return gc.get_referents(value)


def _of_function(function: types.FunctionType) -> list[Any]:
    """Return a function's closure, defaults, attributes, and the globals that its code loads, but not its module."""
    found: list[Any] = [function.__defaults__, function.__kwdefaults__, function.__dict__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    found += [function.__globals__[name] for name in _loaded_globals(function.__code__) if name in function.__globals__]
    return found


def _loaded_globals(code: types.CodeType) -> set[str]:
    """Return the names that the code, or a function or comprehension inside it, loads as globals."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _loaded_globals(constant)
    return names


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """Run the block with the garbage collector off: a collection frees tensors and unloads Triton modules any time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
