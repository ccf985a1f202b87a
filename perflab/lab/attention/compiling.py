"""torch.compile for one configuration at a time, so that nothing is given up silently.

Dynamo keeps what it compiled with a function's code, up to `recompile_limit` (8) versions; where a grid has more
shapes, the next one runs uncompiled without a word. So each configuration gets a copy of the function with a code
object of its own, compiled whole (`fullgraph`) and for its very shape (`dynamic=False`): past the limit that raises.
Within a configuration there are few versions: with and without gradients, other strides.
"""

import os
import shutil
import types
from collections.abc import Callable
from typing import Any

import torch


def compiled_apart(function: types.FunctionType, **options: Any) -> Callable[..., Any]:
    """A copy of `function` that shares no compiled code with any other; compiled when it is first called."""
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    compiled: Callable[..., Any] = torch.compile(copy, fullgraph=True, dynamic=False, **options)
    return compiled


def require_compiler(device: torch.device, *, name: str, instead: str) -> None:
    """RuntimeError where PyTorch's compiler would need a C++ compiler that is not there."""
    if device.type != "cpu":
        return
    asked = os.environ.get("CXX")
    if not any(shutil.which(compiler) for compiler in ([asked] if asked else ["g++", "clang++"])):
        raise RuntimeError(
            f"{name} compiles C++ for tensors on a CPU, and there is no {asked or 'g++ or clang++'}: "
            f"install one, name one in CXX, or choose {instead}"
        )
