"""Reads what torch.compile did for a case from Dynamo's counters, if Dynamo is loaded.

- ``graph_breaks``: how often Dynamo had to split a function while it compiled, from the case's set-up on. It is
  known only where everything that the counted call enters was compiled by then: what an earlier test compiled broke
  there, and would be missing here.
- ``recompiles``: frames that Dynamo compiled during the counted call. In the steady state that is none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from perflab.internals import switched_off
from perflab.torch_internals.compiler import dynamo_counters

_REGION = re.compile(r"(?:!\d+/)?(\d+)/(\d+)")
"""A compilation as Dynamo names it: frame and number of its compilation, with compiled autograd's number before."""


@dataclass(frozen=True)
class CompilerState:
    """Dynamo's counters at one moment; all nothing where it is not loaded."""

    graph_breaks: int = 0
    frames_seen: int = 0
    """Frames that Dynamo was given to compile, successfully or not."""
    compilations: Mapping[int, int] | None = field(default_factory=dict)
    """How often each frame was compiled, by its number; None where this version of PyTorch does not say."""
    off: str | None = None
    """Why nothing is known."""


def compiler_state() -> CompilerState:
    """The counters as they are now."""
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
    """The counts of one call; none of a call that has nothing to do with torch.compile.

    Args:
        regions: what the call entered, as ``frame/compilation``.
        frames: how many frames Dynamo was given during the call.
        before: its counters before the case was set up.
        after: its counters now.
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
        return True  # torch._dynamo.reset() since: numbers begin anew, and all that is there is younger
    frame, compilation = int(match[1]), int(match[2])
    return compilation >= before.compilations.get(frame, 0)
