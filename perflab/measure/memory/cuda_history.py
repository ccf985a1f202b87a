"""Records PyTorch's history of CUDA memory during a block of code, and appends perflab's notes to the file.

The notes say what lay at an address and which module ran, and when. A moment is the number of allocations and frees so
far, which the allocator counts, so no clocks are compared.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.internals.of_torch.machine import dump_cuda_memory, record_cuda_memory, stop_recording_cuda_memory
from perflab.measure.machine.devices import synchronize
from perflab.measure.memory.known_blocks import History, KnownBlocks, Looks

if TYPE_CHECKING:
    import torch
    from torch import nn

MAX_EVENTS = 1_000_000
"""Number of allocations and frees that the recorder keeps; a training step of the largest lab model makes fewer."""
NOTES = b"\nperflab notes 1\n"
"""Separator between PyTorch's pickle, whose readers stop at its end, and our notes (``perflab.snapshots.notes``)."""


@contextlib.contextmanager
def cuda_history(path: Path, roots: Callable[[], tuple[Any, ...]], device: torch.device) -> Iterator[History]:
    """Record CUDA memory during the block of code, and write the history to ``path`` at the end.

    Args:
        path: the file.
        roots: returns the objects that the code holds.
        device: the GPU.

    Raises:
        OSError: the file cannot be written.
    """
    import torch

    known = KnownBlocks(roots(), device)
    synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    start_bytes = torch.cuda.memory_allocated(device)
    record_cuda_memory(MAX_EVENTS, device)
    begin = _events_so_far(device)

    def so_far() -> int:
        return _events_so_far(device) - begin

    moments = [0]
    modules: list[tuple[int, str]] = []
    history = History(Looks(known, lambda _: moments.append(so_far()), [known.held]))
    try:
        with _modules_noted(known, lambda name: modules.append((so_far(), name))):
            yield history
        synchronize(device)
        history.looks.look_anew(KnownBlocks(roots(), device))
        moments.append(so_far())
        history.peak_bytes = torch.cuda.max_memory_allocated(device) - start_bytes
        events = so_far()
        dump_cuda_memory(str(path))
    finally:
        stop_recording_cuda_memory(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    notes = {"device": index, "events": events, "modules": modules, **history.looks.as_notes(moments)}
    with path.open("ab") as file:
        file.write(NOTES + json.dumps(notes).encode("ascii"))


def _events_so_far(device: torch.device) -> int:
    """Return how many blocks the allocator has given out and taken back: the number of events of its recorder."""
    import torch

    stats = torch.cuda.memory_stats_as_nested_dict(device)  # flat ones take ten times as long
    return int(stats["allocation"]["all"]["allocated"] + stats["active"]["all"]["freed"])


@contextlib.contextmanager
def _modules_noted(known: KnownBlocks, note: Callable[[str], None]) -> Iterator[None]:
    """Call ``note`` with the name of the innermost running module whenever it changes; empty if none runs.

    Compiled code is not observed, because hooks on modules would make it compile again.
    """
    from torch import nn

    if known.is_compiled:
        yield
        return
    running: list[tuple[nn.Module, str]] = []

    def enter(module: nn.Module, _: Any) -> None:
        running.append((module, known.names.get(id(module)) or type(module).__name__))
        note(running[-1][1])

    def leave(module: nn.Module, _args: Any, _result: Any) -> None:
        while running and running.pop()[0] is not module:
            pass  # modules within this one that an error has left come first
        note(running[-1][1] if running else "")

    hooks = (
        nn.modules.module.register_module_forward_pre_hook(enter),
        nn.modules.module.register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
