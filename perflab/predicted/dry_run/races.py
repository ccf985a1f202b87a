"""Finds tensors that two streams use in no defined order, or that are freed while another stream may use them.

Each stream counts its kernels. A *clock* says how many kernels of each stream are over for certain. Every stream has a
clock; an event keeps its stream's clock at the time of recording; the host's clock has what the host has waited for.
Two accesses of one tensor on two streams, one of them a write, are a race if neither stream's clock includes the other
stream's kernel. (Vector clocks, as in Mattern, "Virtual Time and Global States of Distributed Systems", 1989.)

The search covers PyTorch's dispatcher, events, streams and allocator. A Triton kernel is covered if an operator
launches it (``torch.library.triton_op``). Not covered: a Triton kernel launched outside of operators, and work that an
extension does by itself.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from perflab.base.user_lines import line_of
from perflab.internals.of_torch import TorchDispatchMode
from perflab.internals.of_torch.dispatch import without_torch_function
from perflab.internals.of_torch.machine import watch_streams
from perflab.internals.of_torch.tracing import parts_of
from perflab.predicted.trace.operators import (
    COLLECTIVE,
    FUNCTIONAL,
    are_of_many_ranks,
    is_operator,
    kind_of,
    tensors_in,
)
from perflab.results.predicted import Race

Clock = dict[int, int]
HOST = -1


@dataclass(frozen=True)
class Access:
    """One use of a tensor by a kernel."""

    stream: int
    number: int
    """The kernel's number on its stream, from 1."""
    operator: str
    stack: tuple[str, ...]
    """The user's lines that launched the kernel, the innermost first."""


@dataclass
class _Tensor:
    write: Access | None = None
    reads: list[Access] = field(default_factory=list)
    """The last read of each stream since the write."""


@dataclass(frozen=True)
class _Freed:
    """Memory that was freed while another stream may still use it."""

    access: Access
    home: int
    """The stream on which the memory was allocated."""
    stack: tuple[str, ...]
    """The user's lines that freed the memory, the innermost first."""


class Order:
    """Follows streams, events and accesses, and reports each race once."""

    def __init__(self, found: Callable[[str, Access, Access | tuple[str, ...]], None]) -> None:
        """Report races to ``found``: ``access`` and two accesses, or ``freed``, an access and the lines of the free."""
        self._found = found
        self._numbers: Clock = {}
        self._clocks: dict[int, Clock] = {HOST: {}}
        self._events: dict[int, Clock] = {}
        self._tensors: dict[int, _Tensor] = {}
        self._uses: dict[int, list[Access]] = {}
        """The last access of each stream, by storage."""
        self._allocated_on: dict[int, int] = {}
        self._freed: list[_Freed] = []
        self._recorded: dict[int, set[int]] = {}
        """The streams for which ``record_stream`` keeps a storage, by storage."""
        self.waits: list[int] = []
        """The streams that have begun to wait for an event since ``begin``, in order."""
        self._records: list[tuple[int, int]] = []
        """The events and streams of the records since ``begin``, in order."""

    # --- streams and events -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Note that an operator begins, which may queue its kernel on a stream of its own."""
        self.waits.clear()
        self._records.clear()

    def record_again(self, stream: int) -> None:
        """Note that the records on a stream since ``begin`` came after the kernel that was launched since."""
        for event, on in [*self._records]:
            if on == stream:
                self.record(event, stream)

    def record(self, event: int, stream: int) -> None:
        """Note that an event is recorded on a stream."""
        self._records.append((event, stream))
        self._events[event] = dict(self._clock(stream))

    def wait(self, event: int, stream: int) -> None:
        """Note that a stream waits for an event. Waiting for an event that was never recorded has no effect."""
        self.waits.append(stream)
        _merge(self._clock(stream), self._events.get(event, {}))

    def host_waits_for_event(self, event: int) -> None:
        """Note that the host waits for an event; all work that the host queues later comes after the event too."""
        self._host_knows(self._events.get(event, {}))

    def host_waits_for_stream(self, stream: int) -> None:
        """Note that the host waits for all work queued on a stream."""
        self._host_knows(self._clock(stream))

    def host_waits(self) -> None:
        """Note that the host waits for all work on the device."""
        for stream in [*self._clocks]:
            self._host_knows(self._clocks[stream])

    def _host_knows(self, clock: Clock) -> None:
        for one in self._clocks.values():
            _merge(one, clock)

    def _clock(self, stream: int) -> Clock:
        if stream not in self._clocks:
            self._clocks[stream] = dict(self._clocks[HOST])
        return self._clocks[stream]

    # --- tensors ------------------------------------------------------------------------------------------------

    def launch(
        self,
        stream: int,
        operator: str,
        stack: tuple[str, ...],
        reads: Iterable[tuple[int, int]],
        writes: Iterable[tuple[int, int]],
    ) -> None:
        """Note a queued kernel, and report its races. A tensor is given by its own address and its storage's."""
        clock = self._clock(stream)
        clock[stream] = self._numbers[stream] = self._numbers.get(stream, 0) + 1
        now = Access(stream, self._numbers[stream], operator, stack)
        for address, storage in reads:
            one = self._tensors.setdefault(address, _Tensor())
            self._check(one.write, now)
            one.reads = [read for read in one.reads if read.stream != stream] + [now]
            self._use(storage, now)
        for address, storage in writes:
            one = self._tensors.setdefault(address, _Tensor())
            for read in one.reads:
                self._check(read, now)
            self._check(one.write, now)
            self._tensors[address] = _Tensor(write=now)
            self._use(storage, now)

    def _check(self, before: Access | None, now: Access) -> None:
        if before is not None and not self._is_over(before, now.stream):
            self._found("access", before, now)

    def _is_over(self, access: Access, stream: int) -> bool:
        return access.stream == stream or self._clock(stream).get(access.stream, 0) >= access.number

    def _use(self, storage: int, access: Access) -> None:
        uses = self._uses.setdefault(storage, [])
        uses[:] = [one for one in uses if one.stream != access.stream]
        uses.append(access)

    def allocate(self, storage: int, stream: int) -> None:
        """Note memory allocated for the stream, and report races with memory that was freed on that stream before."""
        for freed in [one for one in self._freed if one.home == stream]:
            if not self._is_over(freed.access, stream):
                self._found("freed", freed.access, freed.stack)
            self._freed.remove(freed)
        self._allocated_on[storage] = stream
        for known in (self._uses, self._recorded, self._tensors):
            known.pop(storage, None)

    def keep_for(self, storage: int, stream: int) -> None:
        """Note a ``record_stream``: the allocator waits for that stream before it reuses the memory."""
        self._recorded.setdefault(storage, set()).add(stream)

    def free(self, storage: int, stack: Callable[[], tuple[str, ...]]) -> None:
        """Note that memory is freed: the next allocation on the memory's stream may write to the memory at once."""
        home = self._allocated_on.pop(storage, 0)
        for one in self._uses.pop(storage, []):
            if one.stream not in self._recorded.get(storage, ()) and not self._is_over(one, home):
                self._freed.append(_Freed(one, home, stack()))
        for known in (self._recorded, self._tensors):
            known.pop(storage, None)


def _merge(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)


_DEPTH = 4
"""The most lines of a call stack."""


@contextlib.contextmanager
def finding_races(found: list[Race]) -> Iterator[None]:
    """Add the races within the block to ``found``, equal ones once."""

    def note(what: str, before: Access, now: Access | tuple[str, ...]) -> None:
        one = Race(
            what=what,
            first=f"{before.operator} on stream {_number(before.stream)}",
            first_lines=list(before.stack),
            second=f"{now.operator} on stream {_number(now.stream)}" if isinstance(now, Access) else "",
            second_lines=list(now.stack if isinstance(now, Access) else now),
        )
        if one not in found:
            found.append(one)

    global _order
    _watch()
    _order = Order(note)
    try:
        with _Accesses(_order):
            yield
    finally:
        _order = None


class _Accesses(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, order: Order) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._order = order

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if are_of_many_ranks(types):
            return NotImplemented
        kwargs = kwargs or {}
        with without_torch_function():
            self._order.begin()
            result = func(*args, **kwargs)
            if is_operator(func):
                self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        kind = kind_of(func)
        if kind.name == "aten::record_stream":
            self._order.keep_for(_storage(args[0]), _address(args[1]))
            return
        if kind.is_view or not kind.launches:
            return
        written = [
            *(args[at] for at in kind.writes if at < len(args)),
            *(kwargs.get(name) for name in kind.writes_by_name),
        ]
        writes = {_places(one) for one in _on_cuda([written, result])}
        reads = {_places(one) for one in _on_cuda([args, kwargs.values()])} - writes
        if reads or writes:
            # NCCL has streams of its own, which wait for the current one before a collective is queued there, and
            # record an event after it.
            waits = self._order.waits if kind.name.startswith((COLLECTIVE, FUNCTIONAL)) else []
            stream = waits[-1] if waits else torch.cuda.current_stream().cuda_stream
            self._order.launch(stream, kind.name, _stack(sys._getframe(2)), reads, writes)
            if waits:
                self._order.record_again(stream)


_order: Order | None = None


@cache
def _watch() -> None:
    """Pass PyTorch's callbacks on streams, events and memory to the current ``Order``, if there is one.

    The callbacks are registered once per process, since PyTorch cannot unregister them.
    """

    def told(note: Callable[..., None]) -> Callable[..., None]:
        return lambda *addresses: note(_order, *addresses) if _order is not None else None

    watch_streams(
        {
            "event_record": told(Order.record),
            "event_wait": told(Order.wait),
            "event_synchronization": told(Order.host_waits_for_event),
            "stream_synchronization": told(Order.host_waits_for_stream),
            "device_synchronization": told(lambda order, *_: order.host_waits()),
            "memory_allocation": told(lambda order, at: order.allocate(at, torch.cuda.current_stream().cuda_stream)),
            "memory_deallocation": told(lambda order, at: order.free(at, lambda: _stack(sys._getframe(1)))),
        }
    )


def _on_cuda(values: Any) -> Iterable[Tensor]:
    parts = chain.from_iterable(map(parts_of, tensors_in(values)))
    return (one for one in parts if one.is_cuda and one.layout is torch.strided)


def _places(tensor: Tensor) -> tuple[int, int]:
    return tensor.data_ptr(), _storage(tensor)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _address(stream: torch.Stream) -> int:
    """Return the CUDA address of a stream that the dispatcher passes."""
    known = torch.cuda.Stream(  # type: ignore[no-untyped-call]
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    return int(known.cuda_stream)


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    """Return the user's lines from a frame outwards up to the test, or ``backward`` if there are none."""
    lines: list[str] = []
    while frame is not None and len(lines) < _DEPTH:
        if "/_pytest/" in frame.f_code.co_filename:
            break
        line = line_of(frame, only=True)
        if line:
            lines.append(line)
        frame = frame.f_back
    return tuple(lines) or ("backward",)


_numbers: dict[int, int] = {0: 0}


def _number(stream: int) -> int:
    """Return the number that is shown for a stream: 0 for the default stream, others in the order of appearance."""
    return _numbers.setdefault(stream, len(_numbers))
