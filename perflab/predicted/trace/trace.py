"""A trace: operators and blocks of memory of one call, in order of time. Plain data.

``tracer`` makes a trace from a run (on fake tensors or on real ones), and ``unroll`` from the traces of fewer layers;
other modules only read traces. Sizes are the bytes requested, before any rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from perflab.predicted.cuda.multi_tensor import Lists


class Layer(NamedTuple):
    """One of the alike layers that a model repeats: ``("blocks", 17)``."""

    stack: str
    number: int


class Place(NamedTuple):
    """The origin of an operator call or an allocation: phase, module and line."""

    phase: str = ""
    """The case's name for the phase. In a case without phases, ``backward`` if an autograd node runs, else ``""``."""
    module: str = ""
    """The innermost module, with ``*`` for the layer's number: ``blocks.*.attention.q``; ``""`` outside of modules."""
    line: str = ""
    """The line outside of PyTorch: ``perflab/lab/attention/naive.py:45``. A backward node has the forward's line."""
    in_backward: bool = False
    """Whether an autograd node runs, which on CUDA is in autograd's own thread, whatever the phase."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operator call that did work. Views are not in a trace."""

    name: str
    """The operator's name: ``aten::mm``."""
    place: Place
    flops: int
    bytes_moved: int
    dtype: str
    """The dtype in which the operator's products are computed, as torch names it (``bfloat16``), or ``tf32``.

    For an operator without products, the result's dtype.
    """
    launches: int = 1
    layer: Layer | None = None
    is_causal: bool = False
    """Whether this is fused attention with a causal mask: ``flops`` counts all products, a kernel computes half."""
    lists: Lists | None = field(default=None, compare=False)
    """The lists of an operator outside of layers, from which its launches follow; None for other operators."""


@dataclass(frozen=True, slots=True)
class Alloc:
    """The allocation of a block of memory. The block's number is unique in the trace."""

    block: int
    size_bytes: int
    place: Place
    operator: str
    layer: Layer | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """The release of a block. A block has one ``Alloc``, in ``held`` or ``events``, and at most one later ``Free``."""

    block: int
    layer: Layer | None = None


Event = Op | Alloc | Free


class Saved(NamedTuple):
    """A tensor that autograd saved for backward."""

    shape: tuple[int, ...]
    dtype: str
    place: Place


@dataclass(frozen=True, slots=True)
class Use:
    """The purpose of a block, which only the trace of the whole call shows."""

    category: str
    """One of ``perflab.results.peak.CATEGORIES``."""
    saved: Saved | None = None
    """The first tensor in the block that autograd saved; None if there is none, or the block is kept anyway."""


@dataclass(frozen=True)
class Trace:
    """The trace of one call.

    An event's ``layer`` is the repeated layer that the event belongs to, None if it belongs to none. The field serves
    ``unroll``; readers that need only places can ignore it.
    """

    held: tuple[Alloc, ...]
    """The blocks alive before the call, in order of allocation as far as that is known."""
    events: tuple[Event, ...]
    uses: Mapping[int, Use]
    """The use of each block of ``held`` and ``events``, by block number."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """The number of layers in each stack: ``{"blocks": 32}``."""
    result_blocks: frozenset[int] = frozenset()
    """The blocks that are alive when the call has ended, and are freed when its result is dropped."""
    parameters: int = 0
    """The number of elements in the held parameters."""
