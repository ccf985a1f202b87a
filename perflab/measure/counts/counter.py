"""Counts what one call does: operators, allocations, kernel launches.

A counted call runs under PyTorch's profiler, in a span of its own, after the samples. What the profiler saw becomes
plain events, and the counts are pure functions of these (``measure/counts/events.py``):

- ``operators``: calls of registered operators (``aten::mm``, ``mylib::op``) that no other operator made. What an
  operator calls in turn is PyTorch's affair and is not counted; operators that a backward pass calls are.
- ``allocations``: blocks that PyTorch's allocator gave out on the measured device.
- ``kernel_launches`` (CUDA, ROCm): calls of the host that start a kernel, or a whole CUDA graph.
- ``host_syncs`` (CUDA, ROCm): calls of the host that wait for the device. Read from the driver's own events, not from
  ``torch.cuda.set_sync_debug_mode``, which sees neither ``torch.cuda.synchronize`` nor what other libraries do.
- ``on_the_cpu:aten::nonzero`` (other accelerators): calls of an operator for which the device has no kernel of its own,
  so that its tensors are copied to the host and back (``PYTORCH_ENABLE_MPS_FALLBACK``).
- ``collectives``, ``collective_bytes``, ``collectives:all_reduce:float32``: see ``measure/counts/collectives.py``.
- ``graph_breaks``: how often Dynamo had to split a function while it compiled, from the case's set-up on. The count is
  known only if everything that the counted call enters was compiled since that set-up: the breaks of code that an
  earlier test compiled were counted there, and would be missing here.
- ``recompiles``: frames that Dynamo compiled during the counted call; 0 in the steady state.
- ``instructions`` (CPU, in one thread): see ``measure/counts/instructions.py``; not quite the same from run to run.

The Triton kernels that a call launches are noted too, each with a digest of its machine code.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from perflab.base.errors import InternalsError
from perflab.devices.backend import Backend, Quantity
from perflab.devices.kinds import backend_of
from perflab.internals import of_triton
from perflab.internals.lookup import switched_off
from perflab.internals.of_torch.compiler import CompilerState, dynamo_counters
from perflab.internals.of_torch.machine import host_events, kineto_results
from perflab.measure.counts.collectives import collectives_of, communicates
from perflab.measure.counts.events import (
    COUNTED,
    END_OF_PHASE,
    Event,
    Span,
    agreed,
    compiled_regions,
    count_allocations,
    count_fallbacks,
    count_launches,
    outermost_operators,
    parts_of,
    profiler,
    saw_waits,
    spans,
)
from perflab.measure.counts.instructions import count_events, instructions_are_counted
from perflab.measure.machine.devices import release_memory, synchronize
from perflab.results.measurement import LaunchedKernel

if TYPE_CHECKING:
    import torch

    from perflab.measure.calls.workload import Workload

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

_KNOWN = 4
"""Number of operators in the call by which ``operators_lost`` tries the profiler."""
_REGION = re.compile(r"(?:!\d+/)?(\d+)/(\d+)")
"""Dynamo's name of a compilation: frame number and compilation number, with compiled autograd's number before them."""


class CallCounter:
    """Counts what calls do in spans under a profiler; ``read`` then turns the profiler's events into ``counts``.

    Args:
        device: the device of the work.
        before: the compiler's state before the case began: frames compiled from then on are the case's own.
        instructions: whether to count instructions too, on a CPU that counts them, if PyTorch has one thread.
    """

    def __init__(self, device: torch.device, before: CompilerState, *, instructions: bool = False) -> None:
        self._device = device
        self._backend = backend_of(device)
        self._before = before
        self._compiled_frames: list[int] = []
        alone = instructions and not communicates()  # other threads and the waiting for ranks would be counted too
        self._instructions = alone and self._backend.is_host and instructions_are_counted()
        self.counts: dict[str, int] = {}
        self.each: list[dict[str, int]] = []
        """The counts of each counted call, in order."""
        self.by_phase: dict[str, dict[str, int]] = {}
        """Counts of each phase on which all counted calls agree: operators, allocations, launches, synchronisations."""
        self.kernels: list[LaunchedKernel] = []
        """The Triton kernels that a counted call launched on an accelerator, with digests of their machine code."""
        self._each_by_phase: list[dict[str, dict[str, int]]] = []
        self.off: dict[str, str] = {}
        """The reason why a count is unknown, by the count's name."""

    @property
    def extra_calls(self) -> int:
        """Number of calls that counting needs on a CPU in addition to the calls of the memory pass."""
        return int(self._instructions) + int(communicates())

    def count_apart(self, workload: Workload) -> None:
        """Count what needs a call of its own: collectives; on an accelerator everything, on a CPU instructions.

        Raises:
            Exception: whatever the workload raises.
        """
        if communicates():
            workload.make_ready(1)
            self.counts |= collectives_of(workload.run)
        if not self._backend.is_host:
            _count_on_device(workload, self._backend, self)
        elif self._instructions:
            workload.make_ready(1)
            release_memory(self._device)  # the collector's next pass comes at the same moment in every run
            found = count_events(workload.run)
            if found is not None:
                self.counts["instructions"] = found

    @contextlib.contextmanager
    def call(self) -> Iterator[Callable[[], None]]:
        """Open the span of one counted call; yield a function that marks the end of a phase."""
        import torch

        def mark() -> None:
            with torch.profiler.record_function(END_OF_PHASE):
                pass

        before = compiler_state()
        with torch.profiler.record_function(COUNTED):
            yield mark
        self._compiled_frames.append(compiler_state().frames_seen - before.frames_seen)

    def read(self, results: Any, phases: Sequence[str] = ()) -> None:
        """Count the events that kineto recorded in the spans, and keep the counts on which all spans agree.

        ``phases`` names the phase that each mark ends.
        """
        events = read_events(results)
        found = spans(events)
        if len(found) != len(self._compiled_frames):
            return  # the workload has stopped our profiler by one of its own, so the recording is incomplete
        for span, frames in zip(found, self._compiled_frames, strict=True):
            counts = self._counts_in(events, span)
            by_phase: dict[str, Counter[str]] = {name: Counter() for name in phases}
            for name, part in zip(phases, parts_of(events, span), strict=False):
                by_phase[name].update(self._counts_in(events, part))
            self._each_by_phase.append({name: dict(found) for name, found in by_phase.items()})
            regions = compiled_regions(events, span)
            after = compiler_state()
            if regions and after.off is not None:
                self.off |= dict.fromkeys(("graph_breaks", "recompiles"), after.off)
            elif after.off is None:
                counts |= counts_of_compiler(regions, frames, self._before, after)
            self.each.append(counts)
        self.counts |= agreed(self.each)
        self.by_phase = {name: agreed([one[name] for one in self._each_by_phase]) for name in phases if found}

    def clear(self) -> None:
        """Drop all counts, because calls differ."""
        self.counts.clear()
        self.by_phase.clear()

    def _counts_in(self, events: Sequence[Event], span: Span) -> dict[str, int]:
        counts = {"operators": len(outermost_operators(events, span))}
        if self._backend.is_host:
            return counts | {"allocations": count_allocations(events, span)}
        if not self._backend.tells(Quantity.LAUNCHES):
            return counts | count_fallbacks(events, span)
        return counts | (count_launches(events, span) if saw_waits(events) else {})  # none if it saw no calls at all


def read_events(results: Any) -> list[Event]:
    """Return the events that kineto recorded on the host; the device's own side of ranges and copies is left out."""
    return [
        Event(
            name=event.name(),
            start_ns=event.start_ns(),
            end_ns=event.end_ns(),
            thread=event.start_thread_id(),
            scope=event.scope(),
            correlation=event.correlation_id(),
            size_bytes=event.nbytes(),
        )
        for event in host_events(results)
    ]


def _count_on_device(workload: Workload, backend: Backend, counter: CallCounter) -> None:
    """Count one call in a pass of its own: watching the driver's calls disturbs times, and memory too."""
    device = backend.device
    if backend.profiler is None and (lost := operators_lost(device)) is not None:
        counter.off["counts"] = lost
        return
    release_memory(device)
    workload.make_ready(1)
    with profiler(backend.profiler or "cpu") as profiling:
        synchronize(device)
        given_out = [backend.blocks_given_out() or 0]
        with counter.call() as mark:

            def end_phase() -> None:
                mark()
                given_out.append(backend.blocks_given_out() or 0)

            with kernels_launched(counter.kernels):
                workload.run(end_phase)
        after = backend.blocks_given_out() or 0
        synchronize(device)  # outside of the span: this wait is not the workload's
    counter.read(kineto_results(profiling), workload.spans)
    if backend.blocks_given_out() is None:
        counter.off["allocations"] = backend.missing()[Quantity.ALLOCATIONS]
    else:
        counter.counts["allocations"] = after - given_out[0]
        for name, (begun, ended) in zip(workload.spans, pairwise(given_out), strict=False):
            of_phase = counter.by_phase.setdefault(name, {})
            of_phase["allocations"] = of_phase.get("allocations", 0) + ended - begun


@cache
def operators_lost(device: torch.device) -> str | None:
    """Return that the profiler loses operators of this device; None if it counts those of a known call.

    Seen with Intel's GPUs under PyTorch 2.13 (https://github.com/intel/torch-xpu-ops/issues/3985).
    """
    import torch

    one = torch.ones(2, device=device)
    with profiler("cpu") as profiling, torch.profiler.record_function(COUNTED):
        for _ in range(_KNOWN):
            one.add(one)
    events = read_events(kineto_results(profiling))
    seen = len(outermost_operators(events, spans(events)[0]))
    return None if seen == _KNOWN else f"PyTorch's profiler saw {seen} of a known call's {_KNOWN} operators on {device}"


def compiler_state() -> CompilerState:
    """Return Dynamo's present counters, or why perflab does not read them with this PyTorch."""
    try:
        return dynamo_counters()
    except Exception as error:
        if (why := switched_off(error)) is None:
            raise
        return CompilerState(off=why.problem)


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


_PROGRAM = 1
"""The type of an ELF section that the program defines (SHT_PROGBITS)."""
_LOADED = 2
"""The flag of an ELF section that is loaded (SHF_ALLOC); debug information is not."""


@contextmanager
def kernels_launched(into: list[LaunchedKernel]) -> Iterator[None]:
    """Add the Triton kernels that the block launches to ``into``, by name. Nothing is added if this Triton is unknown.

    Kernels in a CUDA graph, and those that torch.compile made, are launched by others and not seen.
    """
    seen: list[Any] = []
    with ExitStack() as around:
        if "triton" in sys.modules:
            with suppress(InternalsError):
                seen = around.enter_context(of_triton.launches_seen())
        yield
    with suppress(InternalsError):
        digests = {id(one): digest_of(*of_triton.machine_code_of(one)) for one in seen}
        counted = Counter((str(one.name), digests[id(one)]) for one in seen)
        into += [
            LaunchedKernel(name=name, digest=digest, launches=many) for (name, digest), many in sorted(counted.items())
        ]


def digest_of(binary: bytes, num_warps: int, shared_bytes: int) -> str:
    """Return the SHA-256 of what a GPU loads of a kernel: code, constants, registers, warps, dynamic shared memory.

    Names, lines and paths stand in other sections of the file (64-bit ELF, little-endian: NVIDIA's and AMD's), except
    those of ``tl.device_assert`` under ``debug=True``, which a kernel prints. Of any other file all bytes count.
    """
    found = hashlib.sha256(f"{num_warps} {shared_bytes}".encode())
    if not binary.startswith(b"\x7fELF"):
        found.update(binary)
        return found.hexdigest()
    (table,) = struct.unpack_from("<Q", binary, 0x28)
    size, number = struct.unpack_from("<HH", binary, 0x3A)
    for place in range(number):
        header = struct.unpack_from("<IIQQQQIIQQ", binary, table + place * size)
        kind, flags, offset, length, info = header[1], header[2], header[4], header[5], header[7]
        if kind == _PROGRAM and flags & _LOADED:
            found.update(struct.pack("<BQ", info >> 24, length))  # NVIDIA's files note the registers of code there
            found.update(binary[offset : offset + length])
    return found.hexdigest()
