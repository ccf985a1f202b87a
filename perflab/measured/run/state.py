"""The measured tier's part of a running case's state, and the reasons why a case cannot be measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.base.errors import SettingError, UsageError
from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.internals.of_torch.compiler import CompilerState
from perflab.measure.counts.counter import compiler_state
from perflab.results.measurement import Measurement, OutOfMemory
from perflab.results.records import Environment
from perflab.settings.settings import Settings

if TYPE_CHECKING:
    import torch

    from perflab.running.case.perf import CaseState

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours


@dataclass
class Learned:
    """The measurements of a case; an instance lives from the item's set-up to its last report."""

    environment: Environment | None = None
    measurement: Measurement | None = None
    out_of_memory: OutOfMemory | None = None
    snapshot: Path | None = None
    """The file of the memory snapshot of one call; None if the run records none."""
    ran_on: dict[str, None] = field(default_factory=dict)
    """Names of threads that ran on after a call had returned."""
    compiler: CompilerState = field(default_factory=compiler_state)
    """The state of torch.compile before the case was set up."""


def no_work(state: CaseState) -> UsageError:
    """Return the error for a callable that is as fast as an empty one, and note the problem in ``state``."""
    state.problem = "no work"
    return UsageError(
        f"{state.case}: the measured callable does no work, it is as fast as an empty one",
        "measure a callable that does something: perf(fn, *args), not perf(lambda: None)",
    )


def no_time(state: CaseState) -> UsageError:
    """Return the error for a measured time of zero or less."""
    return UsageError(f"{state.case}: the clock did not move while it was measured", "measure more work in a call")


def no_graph_for(case: str, settings: Settings, device: torch.device) -> str | None:
    """Return why a case is skipped on this device; None if it is measured.

    Raises:
        SettingError: an option or ini key asks for graphs, so every case would be skipped.
    """
    if not settings.cuda_graph or backend_of(device).tells(Quantity.GRAPHS):
        return None
    if settings.graph_by_mark:
        return "a CUDA graph needs a GPU"
    raise SettingError(
        f"--perf-cuda-graph (perf_cuda_graph) needs CUDA: {case} is measured on {device}",
        "leave it out there, or mark what is to have a graph, @pytest.mark.perf(cuda_graph=True): such cases alone "
        "are skipped without a GPU; cache='cold' works on every device",
    )
