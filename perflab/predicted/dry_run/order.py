"""What is ordered after what among the streams of a device, and which accesses are not. Pure.

Each stream counts its kernels. A *clock* says how many kernels of each stream are over for certain: every stream has
one, an event keeps that of its stream as it was recorded, and the host has what it has waited for. Two accesses of one
tensor on two streams, one of them a write, are a race if neither stream's clock has the other's kernel. (Vector clocks,
as in Mattern, "Virtual Time and Global States of Distributed Systems", 1989.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

Clock = dict[int, int]
HOST = -1


@dataclass(frozen=True)
class Access:
    """One use of a tensor by a kernel."""

    stream: int
    number: int
    """Of the kernel on its stream."""
    operator: str
    stack: tuple[str, ...]
    """The user's lines, the innermost first."""


@dataclass
class _Tensor:
    write: Access | None = None
    reads: list[Access] = field(default_factory=list)
    """Since that write."""


@dataclass(frozen=True)
class _Freed:
    """Memory that was given back while a stream may still use it."""

    access: Access
    home: int
    """The stream that it is for."""
    stack: tuple[str, ...]


class Order:
    """Follows streams, events and accesses; tells each race once."""

    def __init__(self, found: Callable[[str, Access, Access | tuple[str, ...]], None]) -> None:
        """``found``: is called with ``access`` and two of them, or with ``freed``, an access and where it was freed."""
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
        """Streams that a storage was kept for by ``record_stream``."""

    # --- streams and events -------------------------------------------------------------------------------------

    def record(self, event: int, stream: int) -> None:
        """An event is recorded on a stream."""
        self._events[event] = dict(self._clock(stream))

    def wait(self, event: int, stream: int) -> None:
        """A stream waits for an event. For one that was never recorded nobody waits."""
        _merge(self._clock(stream), self._events.get(event, {}))

    def host_waits_for_event(self, event: int) -> None:
        """The host waits for an event, and so does what it queues from now on."""
        self._host_knows(self._events.get(event, {}))

    def host_waits_for_stream(self, stream: int) -> None:
        """The host waits for all that is queued on a stream."""
        self._host_knows(self._clock(stream))

    def host_waits(self) -> None:
        """The host waits for the device."""
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
        """A kernel is queued. Tensors are given by their address and their storage's."""
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
        """Memory is taken, for use on the stream that is current: it may be what was freed there."""
        for freed in [one for one in self._freed if one.home == stream]:
            if not self._is_over(freed.access, stream):
                self._found("freed", freed.access, freed.stack)
            self._freed.remove(freed)
        self._allocated_on[storage] = stream
        for known in (self._uses, self._recorded, self._tensors):
            known.pop(storage, None)

    def keep_for(self, storage: int, stream: int) -> None:
        """``record_stream``: the allocator waits for that stream before it gives the memory to somebody else."""
        self._recorded.setdefault(storage, set()).add(stream)

    def free(self, storage: int, stack: Callable[[], tuple[str, ...]]) -> None:
        """Memory is given back: whoever takes it next on its stream may write to it at once."""
        home = self._allocated_on.pop(storage, 0)
        for one in self._uses.pop(storage, []):
            if one.stream not in self._recorded.get(storage, ()) and not self._is_over(one, home):
                self._freed.append(_Freed(one, home, stack()))
        for known in (self._recorded, self._tensors):
            known.pop(storage, None)


def _merge(clock: Clock, other: Clock) -> None:
    for stream, number in other.items():
        clock[stream] = max(clock.get(stream, 0), number)
