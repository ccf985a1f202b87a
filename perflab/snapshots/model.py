"""What a memory snapshot says, whoever wrote it. Plain data.

A *moment* is the number of allocations and frees so far: 0 is the beginning, and at moment ``n`` the first ``n`` have
happened. Sums are exact at every moment; times say when it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

UNKNOWN = "unknown"
"""The category of a block of which nothing is known."""


class Frame(NamedTuple):
    """One call of a stack."""

    file: str
    line: int
    function: str


Stack = tuple[Frame, ...]
"""The innermost call first."""


class Block(NamedTuple):
    """A piece of memory from when it was given to when it was let go."""

    size_bytes: int
    """What it takes: as it was asked for, rounded as the allocator rounds (``Snapshot.rounding_bytes``)."""
    requested_bytes: int
    address: int
    stream: int
    stack: Stack
    """Who asked for it; empty where that was not recorded."""
    category: str
    """``parameters``, ``activations`` and so on; ``unknown``."""
    module: str
    """``blocks.*.attention``; empty where that was not recorded."""
    phase: str
    """``forward``, ``backward``, ``optimizer`` or another mark; empty where there is none."""
    allocated_at: int
    """The moment from which on it is there; 0: it was there when recording began."""
    freed_at: int | None
    """The moment from which on it is gone; None: it is there to the end."""
    freed_by: Stack = ()
    """Who let it go, where that was recorded."""
    tensor: str = ""
    """Shape and dtype, where they are known: ``(4, 1024, 2560) float32``."""

    def is_there(self, moment: int) -> bool:
        """Whether it is alive at that moment."""
        return self.allocated_at <= moment and (self.freed_at is None or self.freed_at > moment)


class Segment(NamedTuple):
    """Memory that the allocator had taken of the device when the snapshot was written."""

    address: int
    size_bytes: int
    stream: int
    kind: str
    """``small``, ``large``; ``expandable`` besides where it is."""
    in_use_bytes: int
    """Of blocks that are allocated, as the allocator cut them."""
    requested_bytes: int
    """What was asked for of that."""
    free_bytes: int
    """Of it, what is cached."""
    largest_free_bytes: int
    """The largest free piece."""


class Stage(NamedTuple):
    """A part of the recording that was marked, such as ``forward``."""

    name: str
    start: int
    """Its first moment."""
    end: int
    """The moment at which it ends."""


class OutOfMemory(NamedTuple):
    """The allocator found no room."""

    moment: int
    asked_bytes: int
    free_bytes: int
    """What the device had left, by the driver."""
    stack: Stack


@dataclass(frozen=True)
class Cache:
    """What the caching allocator did with the device."""

    taken: int = 0
    """Segments that were asked of the device: ``cudaMalloc``, or mapped pages."""
    taken_bytes: int = 0
    given_back: int = 0
    """Segments that were given back."""
    given_back_bytes: int = 0
    retries: int = 0
    """Times that segments were given back and one was asked for, with nothing between, whether it was to be had or not.

    There had been no room, or the program had called ``empty_cache`` just before: events do not tell these apart.
    """


@dataclass(frozen=True)
class Snapshot:
    """A recording on one device."""

    source: str
    """Who wrote it: ``PyTorch``, ``perflab`` (recorded on a CPU), ``perflab, predicted``."""
    device: str
    """``cuda:0``, ``cpu``."""
    blocks: Sequence[Block]
    """In the order in which they came; those that were there before come first."""
    times_ns: Sequence[int]
    """When each moment from 1 on was; empty where the file has no times."""
    moments: int
    """How many allocations and frees there are."""
    rounding_bytes: int = 1
    """Sizes are multiples of it."""
    segments: Sequence[Segment] = ()
    """As they are at the end."""
    segment_changes: Sequence[tuple[int, int]] = ()
    """After how many allocations and frees segments were taken of the device, and how large; below zero: given back."""
    is_whole: bool = True
    """Whether all that is alive at the end is among the blocks."""
    stages: Sequence[Stage] = ()
    """In order; they do not overlap. Empty: the recording has no marks."""
    steps: Sequence[Stage] = ()
    """Repetitions of the same stages."""
    cache: Cache = Cache()
    out_of_memory: Sequence[OutOfMemory] = ()
    is_deduced: bool = False
    """Categories are not the file's: they follow from stacks and from when blocks were let go."""
    is_noted: bool = False
    """Of those, what modules and optimizers had was known when it was recorded, by pointer."""
    notes: Sequence[str] = ()
    """What is to be known of it, in sentences."""
