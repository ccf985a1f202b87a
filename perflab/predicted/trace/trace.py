"""A trace: operators and blocks of memory of one call, in order of time. Plain data.

A trace is made by ``tracer`` from a run (on fake tensors or on real ones) or by ``unroll`` from the traces of fewer
layers, and read by everything else here. Sizes are bytes as they were asked for: nobody has rounded them yet.
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
    """Where something was asked for."""

    phase: str = ""
    """As the case names it. In a case without phases ``backward`` where a node of autograd's runs, else ``""``."""
    module: str = ""
    """The innermost module, with ``*`` for its layer's number: ``blocks.*.attention.q``; ``""``: none."""
    line: str = ""
    """The line outside of PyTorch: ``perflab/lab/attention/naive.py:45``. Of a backward, the forward's line."""
    in_backward: bool = False
    """Whether a node of autograd's runs it, on CUDA in autograd's own thread, whatever phase that is in."""


@dataclass(frozen=True, slots=True)
class Op:
    """One operator did work. Views are not in a trace."""

    name: str
    """``aten::mm``."""
    place: Place
    flops: int
    bytes_moved: int
    dtype: str
    """In which its products are computed, as torch names it (``bfloat16``), ``tf32`` included; else its result's."""
    launches: int = 1
    layer: Layer | None = None
    is_causal: bool = False
    """Fused attention that may leave out what is masked: FLOPs count all of it, a kernel does half."""
    lists: Lists | None = field(default=None, compare=False)
    """Of an operator over lists outside of layers: what its launches follow from."""


@dataclass(frozen=True, slots=True)
class Alloc:
    """A block of memory came to be. Its number is its own in the trace."""

    block: int
    size_bytes: int
    place: Place
    operator: str
    layer: Layer | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """A block was let go. Each has one ``Alloc``, in ``held`` or in ``events``, and at most one ``Free`` after it."""

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
    """What a block turned out to be for."""

    kind: str
    """One of ``perflab.predicted.records.KINDS``."""
    saved: Saved | None = None
    """The tensor of it that was saved first."""


@dataclass(frozen=True)
class Trace:
    """One call.

    ``layer`` of an event says to which of the repeated layers it belongs, None if to none; it is there for ``unroll``,
    and what only looks at places need not heed it.
    """

    held: tuple[Alloc, ...]
    """What was there before, in the order of allocation as far as that is known."""
    events: tuple[Event, ...]
    uses: Mapping[int, Use]
    """By block, of all blocks of ``held`` and ``events``."""
    layers: Mapping[str, int] = field(default_factory=dict)
    """How many layers each stack has: ``{"blocks": 32}``."""
    result_blocks: frozenset[int] = frozenset()
    """Blocks that are alive when the call has ended, and die when its result is dropped."""
    parameters: int = 0
    """Numbers in the parameters that are held."""
