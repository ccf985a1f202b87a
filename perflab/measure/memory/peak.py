"""Measures the peak memory of one call, in a pass of its own.

A CUDA graph's kernels write into a private pool of PyTorch's allocator. Between replays the blocks of the pool are
free, so ``memory_allocated`` does not count them, but they are given to nobody else. If these pools were not counted, a
call that replays graphs (``torch.compile(mode="reduce-overhead")``, ``torch.cuda.make_graphed_callables``) would seem
to need no memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from perflab.attribution.reachable import collector_off, reachable
from perflab.base.errors import UnansweredError
from perflab.devices.backend import Quantity
from perflab.devices.cpu import resident_bytes
from perflab.devices.kinds import backend_of
from perflab.internals.of_torch.machine import event_name, host_events, kineto_results
from perflab.measure.counts.events import profiler
from perflab.measure.machine.devices import release_memory
from perflab.measure.memory.alike import Watched
from perflab.results.measurement import Memory

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload
    from perflab.measure.counts.counter import CallCounter

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

MEMORY_CALLS = 2
"""Number of calls that the memory pass makes, at most."""
_MEASURED = "perflab: memory pass"
PoolId = tuple[int, int]


def measure_memory(workload: Workload, device: torch.device, counter: CallCounter | None = None) -> tuple[Memory, Any]:
    """Run the workload and return its memory, with its result.

    On a CPU ``counter`` counts these calls, since the profiler sees all of them anyway; elsewhere it does not.

    On an accelerator the allocator's own peaks are read in a second call; the first call shows which CUDA graphs are
    replayed, whose pools count as held memory. Where the allocator keeps no peak, its level is read at the ends of
    phases, and the memory is not exact. On a CPU PyTorch's profiler reports every allocation and free made by
    this thread and by autograd; summed in time order they give the peak to the byte. A first call under the profiler
    makes it know the blocks that a second call frees (gradients of the step before, say); the second call is measured.

    Cyclic garbage is not collected during the pass, so the reported memory does not depend on the collector's timing,
    and is the same in every run. If calls hold or return different things, the memory is not exact, and the counter's
    counts are dropped; if only a count differs, only that count is dropped.
    """
    watched = workload if isinstance(workload, Watched) else Watched(workload, device)
    release_memory(device)
    with collector_off():
        on_host = backend_of(device).is_host
        memory, result = _cpu_memory(watched, device, counter) if on_host else _device_memory(watched, device)
    memory = watched.compared(memory, result, counter.each if counter is not None else [])
    if memory.exact_bytes is None and counter is not None:
        counter.clear()
    return memory, result


def _device_memory(workload: Watched, device: torch.device) -> tuple[Memory, Any]:
    backend = backend_of(device)
    workload.make_ready(1)
    backend.synchronize()
    has_graphs = backend.tells(Quantity.GRAPHS)
    with replayed_pools(workload.roots) if has_graphs else contextlib.nullcontext(set[Any]()) as pools:
        workload.run()
    backend.synchronize()
    # Memory that the call then takes from a pool counts twice, here and as growth: rather too much than too little.
    held = workload.look() + free_bytes_in(pools, device)
    backend.await_autograd()
    backend.reset_peak()
    start = backend.allocated_bytes()
    if start is None:
        raise UnansweredError(f"no memory on {device}: its allocator reports nothing", "leave it to times and counts")
    levels = [start]

    def look() -> None:
        backend.synchronize()
        levels.append(backend.allocated_bytes() or 0)

    result = workload.run(look) if backend.peak_bytes() is None else workload.run()
    look()
    peak = backend.peak_bytes()
    allocated = max(levels) if peak is None else peak
    memory = Memory(
        peak_bytes=held + allocated - start,
        held_bytes=held,
        growth_bytes=allocated - start,
        allocated_bytes=allocated,
        reserved_bytes=backend.peak_reserved_bytes(),
        calls_differ=[f"the peak on {device.type} is the most at the ends of phases"] if peak is None else [],
    )
    return memory, result


def _cpu_memory(workload: Watched, device: torch.device, counter: CallCounter | None) -> tuple[Memory, Any]:
    def counted() -> contextlib.AbstractContextManager[Callable[[], None]]:
        return counter.call() if counter is not None else contextlib.nullcontext(lambda: None)

    workload.make_ready(0)
    with cpu_allocations() as allocations:
        workload.make_ready(1)
        with counted() as mark:
            workload.run(mark)
        held = workload.look()
        resident_before = resident_bytes()
        with allocations.span(), counted() as mark:
            result = workload.run(mark)
        resident_after = resident_bytes()
    growth = allocations.peak_bytes()
    if counter is not None:
        counter.read(kineto_results(allocations.profiler), workload.spans)
    resident = (
        max(0, resident_after - resident_before) if resident_before is not None and resident_after is not None else None
    )
    memory = Memory(peak_bytes=held + growth, held_bytes=held, growth_bytes=growth, resident_growth_bytes=resident)
    return memory, result


class CpuAllocations:
    """Allocations and frees that PyTorch's CPU allocator reported, as ``(time_ns, bytes)``, bytes < 0 for a free."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []
        self.begin_ns: int | None = None
        self.profiler: Any = None

    @contextlib.contextmanager
    def span(self) -> Iterator[None]:
        """Mark the block at whose beginning ``peak_bytes`` starts; without a mark, ``peak_bytes`` uses all events."""
        import torch

        with torch.profiler.record_function(_MEASURED):
            yield

    def peak_bytes(self) -> int:
        """Return the highest rise of live bytes above the level at the span's beginning."""
        level = peak = 0
        for moment_ns, change in self.events:
            if self.begin_ns is None or moment_ns >= self.begin_ns:
                level += change
                peak = max(peak, level)
        return peak

    def _read(self) -> None:
        for event in host_events(kineto_results(self.profiler)):
            name = event_name(event)
            if name == "[memory]":
                self.events.append((event.start_ns(), event.nbytes()))
            elif name == _MEASURED:
                self.begin_ns = event.start_ns()
        self.events.sort(key=lambda event: event[0])  # stable: events of one instant keep their order


@contextlib.contextmanager
def cpu_allocations(*, with_stack: bool = False) -> Iterator[CpuAllocations]:
    """Watch PyTorch's CPU allocator for the length of the block; read the result after it.

    ``with_stack``: the profiler records Python's calls too, for ``cpu_block_events``, which takes time.
    """
    allocations = CpuAllocations()
    with profiler("cpu", profile_memory=True, with_stack=with_stack, with_modules=with_stack) as opened:
        yield allocations
    allocations.profiler = opened
    allocations._read()


@contextlib.contextmanager
def replayed_pools(roots: tuple[Any, ...]) -> Iterator[set[PoolId]]:
    """Collect the pools of all graphs that are replayed in the block; pools of other cases' graphs are left out.

    Graphs within the callable's reach (``roots``) count too: a bound ``graph.replay`` bypasses the patched class.
    """
    import torch

    graph_class: Any = torch.cuda.CUDAGraph
    replay = graph_class.replay
    pools: set[PoolId] = {tuple(one.pool()) for one in reachable(roots) if isinstance(one, graph_class)}

    def noted(graph: Any) -> Any:
        pools.add(tuple(graph.pool()))
        return replay(graph)

    graph_class.replay = noted
    try:
        yield pools
    finally:
        graph_class.replay = replay


def free_bytes_in(pools: set[PoolId], device: torch.device) -> int:
    """Return the bytes in these pools that belong to no live tensor; 0 if CUDA's own allocator manages the pools."""
    if not pools:
        return 0
    import torch

    if torch.cuda.get_allocator_backend() != "native":
        return 0  # CUDA's own pools report nothing
    index = torch.cuda.current_device() if device.index is None else device.index
    snapshot: Any = torch.cuda.memory_snapshot
    return unallocated(snapshot(), pools, index)


def unallocated(segments: Sequence[Mapping[str, Any]], pools: set[PoolId], device_index: int) -> int:
    """Return the unallocated bytes in the segments of these pools on one device."""
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in segments
        if segment["device"] == device_index and tuple(segment["segment_pool_id"]) in pools
    )
