"""Records the allocations of a block or a call to a file, for ``memory_snapshot`` and ``--perf-snapshots``.

Recorders know sizes and stacks. The objects that the code holds know what a block is for, and the names of modules.
These objects are asked at the beginning, at the end, and between phases (``histories``), and the answers are written
into the file: on CUDA behind the end of PyTorch's pickle, where no other reader looks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.internals.of_torch.machine import mark_cuda_memory
from perflab.measure.machine.devices import as_out_of_memory, collector_off
from perflab.measure.memory.histories import MemorySnapshot, cpu_history, cuda_history

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload


@contextlib.contextmanager
def record_memory(
    path: Path, device: torch.device, roots: Callable[[], tuple[Any, ...]] = tuple
) -> Iterator[MemorySnapshot]:
    """Record every allocation and free on ``device`` during the block.

    Args:
        path: where to write, without the ending: ``.pickle`` on CUDA (PyTorch's memory snapshot), ``.json`` on a
            CPU (``cpu_history``).
        device: the device to watch.
        roots: returns the objects that the code holds, by which memory blocks and modules are known.

    Raises:
        OSError: the file cannot be written.
        UnansweredError: the device has no history of its memory.
    """
    snapshot = MemorySnapshot(_file(path, device))
    record = cpu_history if backend_of(device).is_host else cuda_history
    with record(snapshot, roots, device):
        yield snapshot


def record_call(workload: Workload, path: Path, device: torch.device, *, runs_out: bool = False) -> MemorySnapshot:
    """Record one call, with its phases as stages; ``path`` as in ``record_memory``. On a CPU, a call precedes it.

    ``runs_out``: the call is expected to run out of memory, and is recorded up to that point; on a CPU it is then the
    only call.

    Raises:
        OSError: the file cannot be written.
    """
    snapshot = MemorySnapshot(_file(path, device))
    on_host = backend_of(device).is_host
    workload.make_ready(2 if on_host and not runs_out else 1)
    if not on_host:
        recording = cuda_history(snapshot, lambda: workload.roots, device)
    else:
        before = None if runs_out else workload.run
        recording = cpu_history(snapshot, lambda: workload.roots, device, before=before)
    with collector_off(), recording as looks, _stages(workload.spans, device, looks.look) as next_stage:
        try:
            result = workload.run(next_stage)
        except (RuntimeError, MemoryError) as error:
            if not runs_out or as_out_of_memory(error) is None:
                raise
        else:
            looks.look_at_result(result)
            del result
    return snapshot


def _file(path: Path, device: torch.device) -> Path:
    backend = backend_of(device)
    backend.refuse(Quantity.HISTORY, "record it on a CPU or under CUDA")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(path.name + (".json" if backend.is_host else ".pickle"))


@contextlib.contextmanager
def _stages(names: tuple[str, ...], device: torch.device, look: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Mark the stages of a call in the device's recording, one after another.

    Yield a function that ends the current stage, calls ``look``, and begins the next stage.
    """
    import torch

    left = iter(names)
    on_host = backend_of(device).is_host
    with contextlib.ExitStack() as stack:

        def begin() -> None:
            name = next(left, "")
            if not on_host:
                mark_cuda_memory(name)
                if name:
                    stack.callback(mark_cuda_memory, "")
            elif name:
                stack.enter_context(torch.profiler.record_function(name))

        def end() -> None:
            stack.close()
            look()
            begin()

        begin()
        yield end
