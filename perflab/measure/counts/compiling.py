"""Reads what torch.compile did for a case from Dynamo's counters, if Dynamo is loaded.

- ``graph_breaks``: how often Dynamo had to split a function while it compiled, from the case's set-up on. The count is
  known only if everything that the counted call enters was compiled since that set-up: the breaks of code that an
  earlier test compiled were counted there, and would be missing here.
- ``recompiles``: frames that Dynamo compiled during the counted call; 0 in the steady state.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from perflab.internals.lookup import switched_off
from perflab.internals.of_torch.compiler import dynamo_counters

_REGION = re.compile(r"(?:!\d+/)?(\d+)/(\d+)")
"""Dynamo's name of a compilation: frame number and compilation number, with compiled autograd's number before them."""


@dataclass(frozen=True)
class CompilerState:
    """Dynamo's counters at one moment; zero and empty if Dynamo is not loaded."""

    graph_breaks: int = 0
    frames_seen: int = 0
    """Frames that Dynamo was given to compile, successfully or not."""
    compilations: Mapping[int, int] | None = field(default_factory=dict)
    """How often each frame was compiled, by frame number; None if this version of PyTorch does not report it."""
    off: str | None = None
    """The reason why no counter is known; None if the counters are known."""


def compiler_state() -> CompilerState:
    """Return Dynamo's current counters."""
    try:
        counters = dynamo_counters()
    except Exception as error:
        if (why := switched_off(error)) is None:
            raise
        return CompilerState(off=why.problem)
    if counters is None:
        return CompilerState()
    return CompilerState(counters.graph_breaks, counters.frames_seen, counters.compilations)


def counts_of_compiler(
    regions: Iterable[str], frames: int, before: CompilerState, after: CompilerState
) -> dict[str, int]:
    """Return the compiler's counts of one call; empty for a call that has nothing to do with torch.compile.

    Args:
        regions: the compiled regions that the call entered, as ``frame/compilation``.
        frames: how many frames Dynamo was given during the call.
        before: Dynamo's counters before the case was set up.
        after: Dynamo's counters now.
    """
    regions = list(regions)
    if not regions and not frames:
        return {}
    counts = {"recompiles": frames}
    broken = after.graph_breaks - before.graph_breaks
    if broken >= 0 and all(_is_own(region, before, after) for region in regions):
        counts["graph_breaks"] = broken
    return counts


def _is_own(region: str, before: CompilerState, after: CompilerState) -> bool:
    """Whether a region was compiled since ``before``."""
    match = _REGION.match(region)
    if match is None or before.compilations is None or after.compilations is None:
        return False
    if any(after.compilations.get(frame, 0) < count for frame, count in before.compilations.items()):
        return True  # torch._dynamo.reset() was called since: numbers begin anew, and every compilation is newer
    frame, compilation = int(match[1]), int(match[2])
    return compilation >= before.compilations.get(frame, 0)
