"""Reads what ``torch.compile`` made and did, if it is loaded. Only ``load_compiler`` loads it, which takes seconds.

``torch.compiler`` is the public interface, and has none of this.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType

from perflab.internals.lookup import TORCH, attribute

_COUNT = "count graph breaks and recompilations"


@dataclass(frozen=True)
class CompilerState:
    """Dynamo's counters at one moment; zero and empty if Dynamo is not loaded."""

    graph_breaks: int = 0
    frames_seen: int = 0
    """Frames that Dynamo was given to compile, successfully or not."""
    compilations: Mapping[int, int] | None = field(default_factory=dict)
    """How often each frame was compiled, by frame number; None if this version of PyTorch does not report it, so that
    graph breaks are left out."""
    off: str | None = None
    """The reason why no counter is known; None if the counters are known."""


def dynamo_is_loaded() -> bool:
    """Whether there may be compiled code. Asking ``torch.compiler`` for its stance would load the whole compiler."""
    return "torch._dynamo" in sys.modules


def load_compiler() -> None:
    """Load Dynamo, as a dispatch mode does at its first operator; this takes seconds, which forks are then spared."""
    importlib.import_module("torch._dynamo")


def dynamo_counters() -> CompilerState:
    """Return Dynamo's present counters.

    ``torch._dynamo.explain`` is documented, but compiles anew to report graph breaks.
    """
    utils, convert = sys.modules.get("torch._dynamo.utils"), sys.modules.get("torch._dynamo.convert_frame")
    if utils is None or convert is None:
        return CompilerState()
    counters = attribute(TORCH, utils, "counters", _COUNT)
    compilations = getattr(convert, "FRAME_COMPILE_COUNTER", None)
    return CompilerState(
        graph_breaks=sum(counters.get("graph_break", {}).values()),
        frames_seen=counters.get("frames", {}).get("total", 0),
        compilations=dict(compilations) if compilations is not None else None,
    )


def is_error_of_compiler(error: BaseException) -> bool:
    """Whether an error is the compiler's, by the module of its class; ``torch.compiler`` names no error."""
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))


def is_compiled(value: object) -> bool:
    """Whether ``torch.compile`` made a function or module, or ``Module.compile`` the module's call, as marks show."""
    from torch import nn

    if not isinstance(value, FunctionType | nn.Module):
        return False
    own = vars(value)
    is_marked = "_torchdynamo_orig_callable" in own or own.get("_compiled_call_impl") is not None
    return is_marked or type(value).__name__ == "OptimizedModule"
