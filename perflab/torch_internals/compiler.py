"""What ``torch.compile`` made and did. Read where it is loaded; nothing here loads it, which takes seconds.

``torch.compiler`` is its public face, and has none of this.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from perflab.internals import TORCH, attribute

_COUNT = "count graph breaks and recompilations"


@dataclass(frozen=True)
class DynamoCounters:
    """Of this process so far."""

    graph_breaks: int
    frames_seen: int
    compilations: Mapping[int, int] | None
    """How often each frame was compiled. Evidence: without it (None) graph breaks are not counted, and are left out."""


def dynamo_is_loaded() -> bool:
    """Whether there may be compiled code. Asking ``torch.compiler`` for its stance would load all of it."""
    return "torch._dynamo" in sys.modules


def load_compiler() -> None:
    """Load what a dispatch mode takes along when it first calls an operator: seconds, which forks then do not spend."""
    importlib.import_module("torch._dynamo")


def dynamo_counters() -> DynamoCounters | None:
    """Dynamo's counters; None where it is not loaded, and has counted nothing.

    ``torch._dynamo.explain`` is documented, and compiles anew to say it.
    """
    utils, convert = sys.modules.get("torch._dynamo.utils"), sys.modules.get("torch._dynamo.convert_frame")
    if utils is None or convert is None:
        return None
    counters = attribute(TORCH, utils, "counters", _COUNT)
    compilations = getattr(convert, "FRAME_COMPILE_COUNTER", None)
    return DynamoCounters(
        graph_breaks=sum(counters.get("graph_break", {}).values()),
        frames_seen=counters.get("frames", {}).get("total", 0),
        compilations=dict(compilations) if compilations is not None else None,
    )


def has_compiled_marker(value: object) -> bool:
    """Whether ``torch.compile`` made a function or module. Evidence for a remark: a marker that is gone is no error."""
    return hasattr(value, "_torchdynamo_orig_callable") or hasattr(value, "_orig_mod")
