"""Runs calls with an NVTX range for each operator, module and line, for Nsight Systems."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from perflab.attribution.places import Places, module_names
from perflab.base.reachable import reachable
from perflab.measure.machine.devices import synchronize
from perflab.profiles.events import COMPILED_REGION
from perflab.profiles.recording import recording

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

AT = "perflab: at "
"""The beginning of a range's name; the module and the line follow, separated by ``BETWEEN``."""
BETWEEN = " | "


class NamedPlaces(Places):
    """Places whose ranges have the module and the line in their names, since another process reads the names."""

    def mark(self, line: str, stack: tuple[str, ...] = ()) -> str:
        """Return the name of a range for a line of the module that runs."""
        return f"{AT}{self.module}{BETWEEN}{line}"


def run_with_operator_ranges(workload: Workload, device: torch.device, calls: int) -> None:
    """Call the workload with PyTorch's own ranges, which carry each operator's name, shapes and autograd number.

    A workload with compiled code gets no ranges for modules and lines: they would make PyTorch compile it again.
    """
    from torch.autograd.profiler import emit_nvtx

    marking = NamedPlaces(module_names(reachable(workload.roots))).marking
    with recording("cpu") as profiler:
        workload.run()
    if any(event.name.startswith(COMPILED_REGION) for event in profiler.function_events):
        marking = contextlib.nullcontext  # type: ignore[assignment]
    workload.make_ready(calls)
    with emit_nvtx(record_shapes=True), marking():  # type: ignore[no-untyped-call]
        for _ in range(calls):
            workload.run()
        synchronize(device)
