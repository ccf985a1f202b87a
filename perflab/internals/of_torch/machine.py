"""PyTorch's knowledge of the machine: the allocators' history, the profiler's events, valgrind, the processor."""

from __future__ import annotations

import contextlib
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from perflab.internals.lookup import TORCH, attribute, lookup

if TYPE_CHECKING:
    import torch

_RECORD = "record CUDA's memory (memory_snapshot)"
_HISTORY = "torch.cuda.memory:_record_memory_history"
_OF_CUDA = re.compile(r"cu(da)?[A-Z]\w*")
"""The names of functions of CUDA's runtime and driver."""
_STREAMS = "follow streams and events (dry runs)"


def record_cuda_memory(max_entries: int, device: torch.device) -> None:
    """Begin a history of CUDA's allocations. PyTorch documents the function under this private name, its only one."""
    lookup(TORCH, _HISTORY, _RECORD)(max_entries=max_entries, device=device)


def stop_recording_cuda_memory(device: torch.device) -> None:
    """End the history of CUDA's allocations."""
    lookup(TORCH, _HISTORY, _RECORD)(enabled=None, device=device)


def dump_cuda_memory(path: str) -> None:
    """Write the history for PyTorch's viewer. The public ``torch.cuda.memory_snapshot()`` returns no history."""
    lookup(TORCH, "torch.cuda.memory:_dump_snapshot", _RECORD)(path)


def mark_cuda_memory(mark: str) -> None:
    """Attach a text to this thread's next events in the history of CUDA's allocations."""
    lookup(TORCH, "torch.cuda.memory:_set_memory_metadata", _RECORD)(mark)


def has_cuda_context(index: int) -> bool:
    """Whether this process has used a CUDA device.

    ``torch.cuda.is_initialized()`` answers for all devices together, and waiting for an unused device makes a context:
    hundreds of megabytes. If a version does not tell, every device counts as used and is waited for: no time is wrong.
    """
    import torch

    ask: Any = getattr(torch._C, "_cuda_hasPrimaryContext", None)
    return ask is None or bool(ask(index))


def host_events(results: Any) -> list[Any]:
    """Return the raw events of the host among a profiler's results; the device's own events are left out.

    ``profile.events()`` is public, but first builds a tree of all events, which takes longer than the profiled code.
    """
    cpu = device_type_of_host()
    return [event for event in results.events() if event.device_type() == cpu]


def is_of_host(event: Any) -> bool:
    """Whether a raw event of the profiler's is of the host: a call there, or a block of its memory."""
    return bool(event.device_type() == device_type_of_host())


def device_type_of_host() -> Any:
    """Return what an event of the profiler's says of itself if it is of the host."""
    return lookup(TORCH, "torch.autograd:DeviceType.CPU", "read what the profiler saw")


def activity_of(event: Any) -> str:
    """Return kineto's name for the activity that an event records: ``cpu_op``, ``user_annotation``, ``kernel``.

    PyTorch 2.11 has no ``activity_type()``: there the event's side, its mark as an annotation and its name tell.
    """
    ask = getattr(event, "activity_type", None)
    return str(ask()) if ask is not None else deduced_activity(event)


def deduced_activity(event: Any) -> str:
    """Return the activity of an event that does not tell it itself, by its side, its mark and its name."""
    of_host, name = is_of_host(event), event_name(event)
    if name.startswith("["):  # [memory], [OutOfMemory]
        return "cpu_instant_event"
    if event.is_user_annotation():
        return "user_annotation" if of_host else "gpu_user_annotation"
    if of_host:
        return "cuda_runtime" if _OF_CUDA.match(name) else "cpu_op"
    copies = {"Memcpy": "gpu_memcpy", "Memset": "gpu_memset"}
    return copies.get(name.split(" ")[0], "kernel")


def event_name(event: Any) -> str:
    """Return the event's name; empty if the name cannot be decoded.

    The tracer of Python's calls keeps pointers to the names of code, even of code that was freed since, such as the
    code of a module that was imported meanwhile.
    """
    try:
        return str(event.name())
    except UnicodeDecodeError:
        return ""


_Call = tuple[str, int, str]
"""File, line and function of a call."""


def _frame(caller: Any) -> _Call:
    """Return file, line and function of a caller; empty if a name cannot be decoded (see ``event_name``)."""
    try:
        return caller.file_name, caller.line_number, caller.function_name
    except UnicodeDecodeError:
        return "", 0, ""


def a_profiler_runs() -> bool:
    """Whether a profiler runs in this thread; False for a build that does not tell.

    Such a build has no profiler that another one would end.
    """
    import torch

    ask: Any = getattr(torch.autograd, "_profiler_enabled", None)
    return ask is not None and bool(ask())


def kineto_results(profiler: Any) -> Any:
    """Return the results that ``torch.autograd.profiler.profile`` leaves behind, for ``host_events``."""
    return attribute(TORCH, profiler, "kineto_results", "read what the profiler saw")


_NODE = "autograd::engine::evaluate_function: "
"""Prefix of the engine's name of the frame around each backward node."""


@dataclass(frozen=True)
class CpuBlockEvent:
    """An event in which PyTorch's CPU allocator gave out a block or took it back."""

    time_ns: int
    address: int
    size_bytes: int
    """Size of the block; negative if the block was taken back."""
    operator: str
    """Name of the innermost operator, such as ``aten::mm``; empty if there was none."""
    frames: tuple[_Call, ...]
    """The call stack at the event, the innermost call first.

    The profiler does not report where in its function an operator stands that is no call of a C function (``+``,
    ``@``), so the innermost line is the line of the ``def``, or where the function was when recording began.
    """
    module: str
    """Name of the innermost module, or its class if no name is known; in a backward, the module of the forward that
    made the node. Empty outside of modules."""
    mark: str = ""
    """Name of the outermost of the user's ranges (``record_function``) around the event; empty if there is none."""


class BlockEvent(NamedTuple):
    """An event in which an allocator of PyTorch's gave out a block or took it back."""

    time_ns: int
    thread: int
    """The thread's number in the profiler's own numbering."""
    address: int
    size_bytes: int
    """Size of the block; negative if the block was taken back."""


def block_events(results: Any, device: torch.device) -> list[BlockEvent]:
    """Return the events of a device's blocks that a profiler with ``profile_memory`` recorded, in order of time."""
    tree = attribute(TORCH, results, "experimental_event_tree", "say what is alive at the peak")()
    found, waiting = list[BlockEvent](), list(tree)
    while waiting:
        event = waiting.pop()
        if event.tag.name == "Allocation":
            fields, on = event.extra_fields, event.extra_fields.device
            if on.type == device.type and device.index in (None, on.index):
                found.append(BlockEvent(event.start_time_ns, event.start_tid, fields.ptr, fields.alloc_size))
        waiting.extend(event.children)
    return sorted(found, key=lambda one: one.time_ns)


def cpu_block_events(results: Any, names: Mapping[int, str], not_a_mark: str) -> list[CpuBlockEvent]:
    """Return the events of the CPU's blocks that a profiler with ``profile_memory`` and ``with_stack`` recorded.

    The events are in order of time. ``profile.events()`` is public, but has no addresses.

    Args:
        results: the profiler's results.
        names: names of modules, by the module's ``id``.
        not_a_mark: prefix of the names of ranges that are not the user's.
    """
    tree = attribute(TORCH, results, "experimental_event_tree", "record a CPU's memory (memory_snapshot)")()
    found: list[CpuBlockEvent] = []
    ranges: list[tuple[int, int, str]] = []
    made: dict[int, tuple[int, str]] = {}
    nodes: dict[int, int] = {}
    at: list[tuple[Any, str, tuple[_Call, ...], tuple[_Call, ...], str, int]] = []
    at += [(one, "", (), (), "", -1) for one in tree]
    while at:
        event, operator, within, frames, module, node = at.pop()
        fields, kind = event.extra_fields, event.tag.name
        if kind == "Allocation":
            if str(fields.device) == "cpu":
                calls = (*within, *frames)
                if node >= 0 and not module:
                    nodes[len(found)] = node
                found.append(CpuBlockEvent(event.start_time_ns, fields.ptr, fields.alloc_size, operator, calls, module))
        elif kind in ("PyCall", "PyCCall"):
            frames = (_frame(fields.caller), *frames)
            within, operator = (), ""
            if kind == "PyCall":
                called = _frame(fields.callsite)
                within = () if called == frames[0] else (called,)  # equal in the outermost call
                if fields.module is not None:
                    module = names.get(fields.module.self_ptr) or fields.module.cls_name
        elif kind == "TorchOp":
            if "USER_SCOPE" in str(fields.scope):
                # In the tree a range belongs to the call that opened it, so only time tells which events it holds.
                if not event.name.startswith(not_a_mark):
                    ranges.append((event.start_time_ns, event.end_time_ns, event.name))
            elif event.name.startswith(_NODE):  # the node's work belongs to the module whose forward made the node
                operator, module, node = event.name, "", fields.sequence_number
            else:
                operator = event.name
                if node < 0 and fields.sequence_number >= 0:  # of several, the last is the one that made the node
                    made[fields.sequence_number] = max(
                        made.get(fields.sequence_number, (0, "")), (event.start_time_ns, module)
                    )
        at.extend((child, operator, within, frames, module, node) for child in event.children)
    for number, node in nodes.items():
        found[number] = replace(found[number], module=made.get(node, (0, ""))[1])
    found.sort(key=lambda one: one.time_ns)
    ranges.sort()
    outermost: list[tuple[int, int, str]] = []
    for one in ranges:
        if not outermost or one[0] >= outermost[-1][1]:
            outermost.append(one)
    starts = [start for start, _, _ in outermost]
    for number, event in enumerate(found):
        at_range = bisect_right(starts, event.time_ns) - 1
        if at_range >= 0 and event.time_ns <= outermost[at_range][1]:
            found[number] = replace(event, mark=outermost[at_range][2])
    return found


def answers_to_valgrind() -> bool:
    """Whether PyTorch was built with valgrind's requests; False if PyTorch does not have the private name.

    ``torch.utils.benchmark.Timer.collect_callgrind`` is public, but runs a string of code in a process of its own.
    """
    import torch

    supported: Any = getattr(torch._C, "_valgrind_supported_platform", None)
    return supported is not None and bool(supported())


def toggle_callgrind() -> None:
    """Make callgrind begin to count, or end."""
    lookup(TORCH, "torch:_C._valgrind_toggle", "count instructions under callgrind")()


def processor_features() -> list[str]:
    """Return the AMX, bf16 and fp16 features that PyTorch and oneDNN use on this processor.

    Evidence alone, part of the name of an environment: a feature is left out if this version or build cannot tell (a
    build without oneDNN, say). ``torch.cpu.get_capabilities`` reports what the processor has, not what oneDNN uses.
    """
    import torch

    found: list[str] = []
    for name in ("amx_fp16", "amx_tile", "avx512_bf16"):
        with contextlib.suppress(AttributeError, TypeError):
            found += [name] * bool(getattr(torch.cpu, f"_is_{name}_supported")())
    for name in ("bf16", "fp16"):
        with contextlib.suppress(AttributeError, TypeError, RuntimeError):
            found += [name] * bool(getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported")())
    return found


def watch_streams(callbacks: Mapping[str, Callable[..., None]]) -> None:
    """Register callbacks for events, streams and memory, as ``torch.cuda._sanitizer`` does; this cannot be undone.

    Args:
        callbacks: functions by the name of their registration, such as ``event_record``. They are called with
            addresses, and what they raise ends nothing.
    """
    register = {
        name: lookup(TORCH, f"torch.cuda._gpu_trace:register_callback_for_{name}", _STREAMS) for name in callbacks
    }
    lookup(TORCH, "torch:_C._activate_gpu_trace", _STREAMS)()
    for name, callback in callbacks.items():
        register[name](callback)


def can_open_cuda_in_a_fork() -> bool:
    """Whether this process has left CUDA alone, so that its forks can open it.

    ``torch.cuda.is_initialized()`` is public, but does not cover a fork of a process that had used CUDA.
    """
    import torch

    forked = attribute(TORCH, torch.cuda, "_is_in_bad_fork", "run tests in forks (dry runs)")
    return not (torch.cuda.is_initialized() or forked())  # type: ignore[no-untyped-call]


def register_fake_backend() -> None:
    """Register the backend ``fake`` with ``torch.distributed``, whose collectives communicate nothing.

    Importing its module registers it; nothing public does.
    """
    lookup(TORCH, "torch.testing._internal.distributed.fake_pg:FakeStore", "play a rank without its peers")
