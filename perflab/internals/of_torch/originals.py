"""Whether the functions of PyTorch that a measurement relies on are PyTorch's own, and nobody's replacement."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.base.errors import ReplacedError

if TYPE_CHECKING:
    import torch

_ON_ALL = ("equal", "isnan", "accelerator.synchronize")
_ON_CUDA = (
    "cuda.synchronize",
    "cuda.current_stream",
    "cuda.Event.record",
    "cuda.Event.elapsed_time",
    "cuda.Event.synchronize",
)
_OF_C = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)


def check_originals(device: torch.device) -> None:
    """Refuse a measurement in a process where something has replaced what the measurement relies on.

    A function of C is PyTorch's by its type. One of Python is by its module and the file of its code.

    Raises:
        ReplacedError: a function is not PyTorch's.
    """
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
