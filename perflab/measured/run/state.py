"""What a running case has learned that is measured: the measured tier's part of its state."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from perflab.measure.compiling import CompilerState, compiler_state
from perflab.measure.records import Measurement, OutOfMemory
from perflab.records import Environment


@dataclass
class Learned:
    """Lives from the item's set-up to its last report."""

    environment: Environment | None = None
    measurement: Measurement | None = None
    out_of_memory: OutOfMemory | None = None
    snapshot: Path | None = None
    """The memory snapshot of one call, where the run records them."""
    ran_on: dict[str, None] = field(default_factory=dict)
    """Threads that ran on when a call had returned."""
    compiler: CompilerState = field(default_factory=compiler_state)
    """What torch.compile had done before the case was set up."""
