"""Runs calls with an NVTX range for each operator, module and line, for Nsight Systems."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perflab.measure.devices import synchronize
from perflab.profiles.places import Places, module_names
from perflab.profiles.recording import recording
from perflab.reachable import reachable

if TYPE_CHECKING:
    import torch

    from perflab.measure.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

AT = "perflab: at "
"""How the ranges' names begin; the module and the line follow, with ``BETWEEN`` between them."""
BETWEEN = " | "


class NamedPlaces(Places):
    """Places whose ranges say themselves what they stand for: another process reads them."""

    def mark(self, line: str, stack: tuple[str, ...] = ()) -> str:
        """The name of a range for this line of the module that runs."""
        return f"{AT}{self.module}{BETWEEN}{line}"


def run_with_operator_ranges(workload: Workload, device: torch.device, calls: int) -> None:
    """Call the workload with PyTorch's own ranges, which carry each operator's name, shapes and autograd's number.

    Compiled code gets no ranges for modules and lines: they would have it compiled again.
    """
    from torch.autograd.profiler import emit_nvtx

    marking = NamedPlaces(module_names(reachable(workload.roots))).marking
    if _runs_compiled(workload):
        marking = contextlib.nullcontext  # type: ignore[assignment]
    workload.make_ready(calls)
    with emit_nvtx(record_shapes=True), marking():  # type: ignore[no-untyped-call]
        for _ in range(calls):
            workload.run()
        synchronize(device)


def _runs_compiled(workload: Workload) -> bool:
    with recording("cpu") as profiler:
        workload.run()
    return any(event.name.startswith("Torch-Compiled Region") for event in profiler.function_events)
