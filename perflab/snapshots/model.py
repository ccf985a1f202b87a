"""The content of a memory snapshot as plain data, in one form for all sources.

A *moment* is the number of allocations and frees so far: 0 is the beginning, and at moment ``n`` the first ``n`` have
happened. Sums are exact at every moment; ``times_ns`` gives the time of each moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Frame(NamedTuple):
    """One call of a call stack."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""A call stack, the innermost call first."""


class Block(NamedTuple):
    """A piece of memory, from its allocation to its free."""

    size_bytes: int
    """Bytes that the block takes: the requested size, rounded up to ``Snapshot.rounding_bytes``."""
    requested_bytes: int
    address: int
    stream: int
    stack: Stack
    """The call stack of the allocation; empty if none was recorded."""
    category: str
    """``parameters``, ``activations`` and so on, or ``unknown``."""
    module: str
    """The module that allocated the block, such as ``blocks.0.attention``; empty if none was recorded."""
    phase: str
    """``forward``, ``backward``, ``optimizer`` or another mark; empty if there is no mark."""
    allocated_at: int
    """The moment from which on the block is alive; 0: the block was alive when recording began."""
    freed_at: int | None
    """The moment from which on the block is free; None: the block is alive at the end."""
    freed_by: Stack = ()
    """The call stack of the free; empty if none was recorded."""
    tensor: str = ""
    """Shape and dtype of the tensor, such as ``(4, 1024, 2560) float32``; empty if unknown."""

    def is_there(self, moment: int) -> bool:
        """Whether the block is alive at a moment."""
        return self.allocated_at <= moment and (self.freed_at is None or self.freed_at > moment)


class Segment(NamedTuple):
    """Memory that the allocator had reserved from the device when the snapshot was written."""

    address: int
    size_bytes: int
    stream: int
    kind: str
    """``small`` or ``large``, followed by ``, expandable`` if the segment is expandable."""
    in_use_bytes: int
    """Bytes of the blocks in use, as the allocator split the segment."""
    requested_bytes: int
    """Bytes that the program requested for the blocks in use."""
    free_bytes: int
    """Bytes of the segment that are cached: its blocks that are not in use."""
    largest_free_bytes: int
    """Bytes of the largest block that is not in use."""


class Stage(NamedTuple):
    """A marked part of the recording, such as ``forward``."""

    name: str
    start: int
    """The moment before the stage's first allocation or free, which is moment ``start + 1``."""
    end: int
    """The moment at which the stage ends: its last allocation or free."""


class OutOfMemory(NamedTuple):
    """An allocation for which the allocator found no room."""

    moment: int
    asked_bytes: int
    free_bytes: int
    """Free bytes of the device, as reported by the driver."""
    stack: Stack


@dataclass(frozen=True)
class Cache:
    """The segments that the caching allocator requested from the device and gave back."""

    taken: int = 0
    """Number of segments that the device gave: ``cudaMalloc``, or mapped pages."""
    taken_bytes: int = 0
    given_back: int = 0
    """Number of segments that the allocator gave back to the device."""
    given_back_bytes: int = 0
    retries: int = 0
    """How often the allocator gave segments back and requested one directly afterwards, successfully or not.

    Either the device had no room, or the program had just called ``empty_cache``: events do not distinguish these.
    """


@dataclass(frozen=True)
class Snapshot:
    """A recording of the memory of one device."""

    source: str
    """The writer of the file: ``PyTorch``, ``perflab`` (recorded on a CPU) or ``perflab, predicted``."""
    device: str
    """The device's name: ``cuda:0``, ``cpu``."""
    blocks: Sequence[Block]
    """The blocks in order of allocation; blocks that were alive before the recording come first."""
    times_ns: Sequence[int]
    """The time of each moment from 1 on; empty if the file has no times."""
    moments: int
    """The number of allocations and frees."""
    rounding_bytes: int = 1
    """The number of bytes of which block sizes are multiples."""
    segments: Sequence[Segment] = ()
    """The allocator's segments at the end of the recording."""
    segment_changes: Sequence[tuple[int, int]] = ()
    """Changes of the reserved memory: the number of allocations and frees before each, and its bytes; negative: given
    back to the device."""
    is_whole: bool = True
    """Whether ``blocks`` includes every block that is alive at the end."""
    stages: Sequence[Stage] = ()
    """The stages in order, without overlap; empty: the recording has no marks."""
    steps: Sequence[Stage] = ()
    """The training steps: repetitions of the same stages."""
    cache: Cache = Cache()
    out_of_memory: Sequence[OutOfMemory] = ()
    is_deduced: bool = False
    """Whether categories are deduced, from call stacks and from the time of each free, because the file has none."""
    is_noted: bool = False
    """Whether the memory of modules and optimizers was identified by pointer during the recording; the categories of
    other blocks are deduced."""
    notes: Sequence[str] = ()
    """Sentences on what a reader of the recording should know."""
