"""Records the history of memory during a block or a call to a file: the CPU's with PyTorch's profiler, CUDA's with its
recorder.

The CPU's file is JSON. The profiler may not report the free of a memory block that is older than the recording. Such a
block is written down if it survives to the end or its free was reported, and left out otherwise.

CUDA's file is PyTorch's, with perflab's notes appended, behind the end of its pickle, where no other reader looks: what
lay at an address and which module ran, and when. A moment is the number of allocations and frees so far, which the
allocator counts, so no clocks are compared.

Recorders know sizes and stacks. The objects that the code holds know which memory blocks are parameters, gradients or
optimizer state, and the names of modules. They are asked at the beginning, at the end, and between phases.
"""

from __future__ import annotations

import contextlib
import json
import weakref
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perflab.attribution.held import held_by_address, held_storages
from perflab.attribution.places import hooked, module_names
from perflab.attribution.reachable import collector_off, reachable
from perflab.base.event_lines import as_lines
from perflab.base.files import write_whole
from perflab.devices.backend import Quantity
from perflab.devices.kinds import backend_of
from perflab.internals.of_torch import machine
from perflab.internals.of_torch.compiler import is_compiled
from perflab.internals.of_torch.machine import mark_cuda_memory
from perflab.measure.machine.devices import as_out_of_memory, synchronize
from perflab.measure.memory.peak import CpuAllocations, cpu_allocations

if TYPE_CHECKING:
    import torch
    from torch import nn

    from perflab.measure.calls.workload import Workload
    from perflab.results.peak import PeakPart


class KnownBlocks:
    """The blocks that a callable holds: read before it runs, and for its modules and optimizers again in between.

    Nothing is kept alive: a gradient, an input or a model that the call lets go is freed in a recording, too.
    """

    def __init__(self, roots: tuple[Any, ...], device: torch.device) -> None:
        import torch

        found = list(reachable(roots))
        self.names = module_names(found, is_numbered=True)
        """Names of modules, such as ``blocks.3.attention``, by the module's ``id``."""
        self.held = held_by_address(found, self.names, device)
        """Blocks that exist before the call, by address."""
        self.is_compiled = any(map(is_compiled, found))
        self._device = device
        self._modules = [weakref.ref(one) for one in found if isinstance(one, torch.nn.Module)]
        self._optimizers = [weakref.ref(one) for one in found if isinstance(one, torch.optim.Optimizer)]

    def ask_again(self) -> None:
        """Read again what modules and optimizers hold, before the call that counts; inputs stay as first read."""
        self.held = {address: part for address, part in self.held.items() if part.category == "inputs"} | self.now()

    def now(self) -> dict[int, PeakPart]:
        """Return the blocks that modules and optimizers hold at this moment, by address."""
        return held_by_address(list(self._reached()), self.names, self._device)

    def storages(self, result: Any) -> dict[int, int]:
        """Return the sizes in bytes of a result's storages, by address."""
        return held_storages(reachable((result,)), self._device)

    def _reached(self) -> Iterator[Any]:
        modules = [module for kept in self._modules if (module := kept()) is not None]
        optimizers = [optimizer for kept in self._optimizers if (optimizer := kept()) is not None]
        yield from modules
        yield from optimizers
        for module in modules:
            yield from module.buffers(recurse=False)
            for parameter in module.parameters(recurse=False):
                yield from _with_gradient(parameter)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield from _with_gradient(parameter)
            for state in optimizer.state.values():
                yield from state.values() if isinstance(state, dict) else ()


@dataclass
class Looks:
    """The successive answers of the objects about their blocks, and a function that notes when each was given."""

    known: KnownBlocks
    mark: Callable[[int], None]
    """Function that is called with the number of each answer, from 0 on, once the answer has been given."""
    taken: list[Mapping[int, PeakPart]] = field(default_factory=list)
    result: tuple[int, Sequence[int]] | None = None
    """Number of the answer that was given while the call's result existed, and the addresses of the result."""

    def look(self) -> None:
        """Ask modules and optimizers what they hold; keep the answer and mark it."""
        self.taken.append(self.known.now())
        self.mark(len(self.taken) - 1)

    def look_anew(self, known: KnownBlocks) -> None:
        """Keep as an answer what the code holds at the end, without inputs: an unowned block may also be a result."""
        self.known.names = {**known.names, **self.known.names}
        self.taken.append({address: part for address, part in known.held.items() if part.category != "inputs"})

    def look_at_result(self, result: Any) -> None:
        """Ask while the call's result still exists, and keep the addresses of the result."""
        self.look()
        self.result = len(self.taken) - 1, [*self.known.storages(result)]

    def as_notes(self, moments: Sequence[int]) -> dict[str, Any]:
        """Return the answers in the form in which they are written, with the moment of each.

        ``looks`` are ``[moment, [[address, category, module], ...]]``; ``returned`` is ``[moment, [address, ...]]``.
        """
        looks = [
            [moment, [[address, part.category, part.module] for address, part in parts.items()]]
            for moment, parts in zip(moments, self.taken, strict=True)
        ]
        if self.result is None:
            return {"looks": looks}
        number, addresses = self.result
        return {"looks": looks, "returned": [moments[number], addresses]}


@dataclass
class MemorySnapshot:
    """The recording of a block's memory, complete once the block has ended."""

    path: Path
    """The file with the recorded history."""
    peak_bytes: int | None = None
    """Highest rise of live bytes above the level at the block's beginning; None until the block has ended."""


def _with_gradient(parameter: torch.Tensor) -> Iterator[torch.Tensor]:
    yield parameter
    if parameter.is_leaf and parameter.grad is not None:
        yield parameter.grad


_OURS = "perflab: "
"""Prefix of the names of perflab's own ranges, which are no marks of the user's."""
_LOOK = f"{_OURS}look "
"""Prefix of the names of the ranges that mark when the objects were asked."""
MAX_EVENTS = 1_000_000
"""Number of allocations and frees that the recorder keeps; a training step of the largest lab model makes fewer."""
NOTES = b"\nperflab notes 1\n"
"""Separator between PyTorch's pickle, whose readers stop at its end, and our notes (``perflab.snapshots.recorded``)."""


@contextlib.contextmanager
def cpu_history(
    snapshot: MemorySnapshot,
    roots: Callable[[], tuple[Any, ...]],
    device: torch.device,
    before: Callable[[], object] | None = None,
) -> Iterator[Looks]:
    """Record the CPU's memory during the block of code, and write the history to the snapshot's file at the end.

    Args:
        snapshot: the file, and where the peak goes.
        roots: returns the objects that the code holds.
        device: the CPU.
        before: called under the profiler before the recording, so that the profiler knows the memory that the code
            frees.

    Raises:
        OSError: the file cannot be written.
    """
    known = KnownBlocks(roots(), device)  # while the profiler notes each call of Python's, this takes seconds
    with cpu_allocations(with_stack=True) as allocations:
        if before is not None:
            before()
            known.ask_again()
        looks = Looks(known, _mark)
        with allocations.span():
            yield looks
    snapshot.peak_bytes = allocations.peak_bytes()
    at_the_end = KnownBlocks(roots(), device)
    looks.look_anew(at_the_end)
    head, events = _content(allocations, looks, at_the_end.held)
    write_whole(snapshot.path, b"".join(as_lines(head, events)))


def _mark(number: int) -> None:
    import torch

    with torch.profiler.record_function(f"{_LOOK}{number}"):
        pass


def _content(
    allocations: CpuAllocations, looks: Looks, left: Mapping[int, PeakPart]
) -> tuple[dict[str, Any], list[Any]]:
    """Return the file's header and events, in schema 3, or in schema 1 if the profiler's two lists of events differ.

    In schema 3 an event is ``[time_ns, bytes, block, place]``: bytes are negative for a free, ``block`` is the block's
    address, and ``place`` is the index in ``places`` of the code that requested or freed the block. ``before`` lists
    ``[block, bytes, place]`` of the blocks held at the beginning. ``looks`` and ``returned`` are the answers of the
    objects before an event (``Looks.as_notes``). ``let_go_unseen_bytes`` counts held bytes that were freed at an
    unknown time. In schema 1 an event is ``[time_ns, bytes]``, and the header has none of these fields.
    """
    begin_ns = allocations.begin_ns or 0
    events = [(time_ns, size) for time_ns, size in allocations.events if time_ns >= begin_ns]
    head = {"schema": 1, "device": "cpu", "peak_bytes": allocations.peak_bytes()}
    results = machine.kineto_results(allocations.profiler)
    seen = [one for one in machine.cpu_block_events(results, looks.known.names, _OURS) if one.time_ns >= begin_ns]
    if [(one.time_ns, one.size_bytes) for one in seen] != events:
        return head, events  # the profiler's two lists differ, so nobody can tell whose block is whose
    places: dict[tuple[Any, ...], int] = {}
    placed = []
    for one in seen:
        place = one.operator, one.module, one.mark, one.frames, ""
        placed.append((one.time_ns, one.size_bytes, one.address, places.setdefault(place, len(places))))
    held, unseen_bytes = _before(looks.known.held, seen, left)
    before = []
    for address, part in held.items():
        place = "", part.module, "", (), part.category
        before.append([address, part.size_bytes, places.setdefault(place, len(places))])
    listed = [
        {"operator": operator, "module": module, "phase": phase, "category": category, "frames": frames}
        for operator, module, phase, frames, category in places
    ]
    times = [one.time_ns for one in seen]
    moments = [*(bisect_right(times, time_ns) for time_ns in _looked_at(results)), len(times)]
    head |= {
        "schema": 3,
        "source": "perflab",
        "let_go_unseen_bytes": unseen_bytes,
        "places": listed,
        "before": before,
        **looks.as_notes(moments),
    }
    return head, placed


def _before(
    held: Mapping[int, PeakPart], seen: list[machine.CpuBlockEvent], left: Mapping[int, PeakPart]
) -> tuple[dict[int, PeakPart], int]:
    """Return the blocks that existed before, by address: blocks without events that still exist, and freed blocks.

    The second value is the bytes of held blocks whose free was not reported.
    """
    first: dict[int, int] = {}
    for one in seen:
        first.setdefault(one.address, one.size_bytes)
    stays = {address: part for address, part in left.items() if address not in first}
    goes = {address: part for address, part in held.items() if first.get(address, 0) < 0}
    unseen = (part.size_bytes for address, part in held.items() if address not in stays and address not in goes)
    return {**stays, **goes}, sum(unseen)


def _looked_at(results: Any) -> list[int]:
    """Return the times at which the objects' answers had been given, in nanoseconds of the profiler's clock, sorted."""
    return sorted(
        event.start_ns() for event in machine.host_events(results) if machine.event_name(event).startswith(_LOOK)
    )


@contextlib.contextmanager
def cuda_history(
    snapshot: MemorySnapshot, roots: Callable[[], tuple[Any, ...]], device: torch.device
) -> Iterator[Looks]:
    """Record CUDA memory during the block of code, and write the history to the snapshot's file at the end.

    Args:
        snapshot: the file, and where the peak goes.
        roots: returns the objects that the code holds.
        device: the GPU.

    Raises:
        OSError: the file cannot be written.
    """
    import torch

    known = KnownBlocks(roots(), device)
    synchronize(device)
    backend_of(device).await_autograd()
    torch.cuda.reset_peak_memory_stats(device)
    start_bytes = torch.cuda.memory_allocated(device)
    machine.record_cuda_memory(MAX_EVENTS, device)
    begin = _events_so_far(device)

    def so_far() -> int:
        return _events_so_far(device) - begin

    moments = [0]
    modules: list[tuple[int, str]] = []
    looks = Looks(known, lambda _: moments.append(so_far()), [known.held])
    try:
        with _modules_noted(known, lambda name: modules.append((so_far(), name))):
            yield looks
        synchronize(device)
        looks.look_anew(KnownBlocks(roots(), device))
        moments.append(so_far())
        snapshot.peak_bytes = torch.cuda.max_memory_allocated(device) - start_bytes
        events = so_far()
        machine.dump_cuda_memory(str(snapshot.path))
    finally:
        machine.stop_recording_cuda_memory(device)
    index = torch.cuda.current_device() if device.index is None else device.index
    notes = {"device": index, "events": events, "modules": modules, **looks.as_notes(moments)}
    with snapshot.path.open("ab") as file:
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

    with hooked(enter, leave):
        yield


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
