"""Bytes of the tensors that a callable has in its hands: what its arguments and closures reach."""

from __future__ import annotations

import contextlib
import dis
import gc
import sys
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), type, types.ModuleType)
_NOT_THE_CASE = ("_pytest", "pytest", "pluggy", "perflab.plugin")
"""Packages of the test run itself: through them everything in the session could be reached."""


def held_bytes(roots: tuple[Any, ...], device: torch.device) -> int:
    """Sum of the storages on ``device`` that the roots reach, each counted once.

    Followed are containers, attributes of objects, gradients, partial arguments, bound instances, closures,
    defaults, and the globals that a function names. Not followed are modules and classes, so that a case is not
    charged for what only happens to be alive in the process.
    """
    import torch

    storages: dict[int, int] = {}
    seen: set[int] = set()
    pending: list[Any] = list(roots)
    keep: list[Any] = []  # objects made on the way stay alive, so that an id is never met twice
    while pending:
        value = pending.pop()
        if isinstance(value, _LEAVES) or id(value) in seen:
            continue
        seen.add(id(value))
        keep.append(value)
        if isinstance(value, torch.Tensor):
            pending.extend(_note_tensor(value, device, storages))
        else:
            pending.extend(_neighbours(value))
    return sum(storages.values())


def _note_tensor(tensor: torch.Tensor, device: torch.device, storages: dict[int, int]) -> list[Any]:
    import torch

    if _is_there(tensor, device) and tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage.nbytes()
    return [tensor.grad] if tensor.is_leaf and tensor.grad is not None else []


def _is_there(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether the tensor takes memory on that device; a fake tensor takes none anywhere."""
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(tensor, fake.FakeTensor):
        return False
    return tensor.device.type == device.type and device.index in (None, tensor.device.index)


def _neighbours(value: Any) -> Iterable[Any]:
    if isinstance(value, types.FunctionType):
        return _of_function(value)
    if (type(value).__module__ or "").startswith(_NOT_THE_CASE):
        return ()
    # What the collector knows of any other object: items, attributes, slots, a method's instance, a partial's
    # arguments, whatever C type it is.
    return gc.get_referents(value)


def _of_function(function: types.FunctionType) -> list[Any]:
    """Closure, defaults, and the globals that its code loads; its whole module is not in its hands."""
    found: list[Any] = [function.__defaults__, function.__kwdefaults__, function.__dict__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # a cell that nothing was put into yet
            found.append(cell.cell_contents)
    found += [function.__globals__[name] for name in _loaded_globals(function.__code__) if name in function.__globals__]
    return found


def _loaded_globals(code: types.CodeType) -> set[str]:
    """Names that the code, or a function or comprehension inside it, loads as globals."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _loaded_globals(constant)
    return names
