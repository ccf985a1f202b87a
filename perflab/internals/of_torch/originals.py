"""Whether the functions of PyTorch that a measurement relies on are PyTorch's own, and are answered by nobody else."""

from __future__ import annotations

import sys
import types
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.base.errors import InternalsError, ReplacedError
from perflab.internals.lookup import TORCH, lookup

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

_ON_ALL = ("equal", "isnan", "accelerator.synchronize")
_ON_CUDA = (
    "cuda.synchronize",
    "cuda.current_stream",
    "cuda.Event.record",
    "cuda.Event.elapsed_time",
    "cuda.Event.synchronize",
)
_MODES = "torch.utils._python_dispatch"
_TO = "see who answers for PyTorch's functions"
_OF_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def modes_on() -> list[type]:
    """Return the classes of the modes that answer for PyTorch's functions and operators now, lowest first.

    A default device's mode is not among them. Which modes are on is not public; without the private names none is told.
    """
    stacks, device_mode = [], None
    with suppress(InternalsError):
        device_mode = lookup(TORCH, "torch.utils._device:DeviceContext", _TO)
        for name in ("torch.overrides:_get_current_function_mode_stack", f"{_MODES}:_get_current_dispatch_mode_stack"):
            stacks.append(lookup(TORCH, name, _TO))
    return [type(one) for stack in stacks for one in stack() if type(one) is not device_mode]


def is_own(kind: type) -> bool:
    """Whether a class is PyTorch's own: found by its name in a module of PyTorch's."""
    module = sys.modules.get(kind.__module__)
    return kind.__module__.startswith("torch.") and getattr(module, kind.__qualname__, None) is kind


def named(kinds: Sequence[type]) -> str:
    """Return the names of classes, with their modules, as text."""
    return ", ".join(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


def check_originals(device: torch.device, modes: Sequence[type]) -> None:
    """Refuse a measurement in a process where something has replaced what the measurement relies on.

    A function of C is PyTorch's by its type. One of Python is by its module and the file of its code.

    Args:
        device: the device of the work.
        modes: the modes that were on before the work was called for the first time.

    Raises:
        ReplacedError: a function is not PyTorch's, or the work has left a mode on.
    """
    if left := [one for one in modes_on() if one not in modes]:
        raise ReplacedError(
            f"the work has left a mode on, {named(left)}, which answers for PyTorch's functions",
            "leave each mode before the call ends: with mode: ...",
        )
    torch = sys.modules["torch"]
    home = Path(str(torch.__file__)).parent
    for name in (*_ON_ALL, *(_ON_CUDA if device.type == "cuda" else ())):
        found: Any = torch
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is not None and not isinstance(found, _OF_C) and not _is_of(found, home, name):
            raise ReplacedError(
                f"torch.{name} is not PyTorch's any more: it was replaced by "
                f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', type(found).__name__)}",
                "do not replace what times and checks the work: its numbers would be anybody's",
            )


def _is_of(function: Any, home: Path, name: str) -> bool:
    function = getattr(function, "__wrapped__", function)
    code = getattr(function, "__code__", None)
    return code is not None and home in Path(code.co_filename).parents and code.co_name == name.rpartition(".")[2]
