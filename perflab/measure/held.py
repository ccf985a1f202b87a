"""Bytes of the tensors that a callable has in its hands: what its arguments and closures reach."""

from __future__ import annotations

import functools
import inspect
import types
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

    if tensor.device.type == device.type and tensor.layout is torch.strided:
        storage = tensor.untyped_storage()
        if storage.nbytes():
            storages[storage.data_ptr()] = storage.nbytes()
    return [tensor.grad] if tensor.is_leaf and tensor.grad is not None else []


def _neighbours(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        used = inspect.getclosurevars(value)
        return [*used.nonlocals.values(), *used.globals.values(), value.__defaults__, value.__kwdefaults__]
    if (type(value).__module__ or "").startswith(_NOT_THE_CASE):
        return []
    found = list(getattr(value, "__dict__", {}).values())
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if not name.startswith("__"):
                found.append(getattr(value, name, None))
    return found
