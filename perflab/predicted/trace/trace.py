"""A trace: operators and blocks of memory of one call, in order of time. Plain data.

``tracer`` makes a trace from a run (on fake tensors or on real ones), and ``unroll`` from the traces of fewer layers;
other modules only read traces. Sizes are the bytes requested, before any rounding.

An operator over lists has its lists too: CUDA divides tensors into chunks, and a launch is limited in both
(``aten/src/ATen/native/cuda/MultiTensorApply.cuh``). Launches do not grow linearly with the layers of a model, so the
lists of few layers are extended to all layers, and the launches are counted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

CHUNK = 65536
"""The number of elements that one block of a multi-tensor kernel processes (``kChunkSize``)."""
MOST_TENSORS = (770, 448, 336, 252, 210)
"""The most tensors of one launch, for 1 to 5 lists: ``depth_to_max_tensors``, built for CUDA 13."""
MOST_TENSORS_WITH_SCALARS = (672, 448, 336, 252, 210)
MOST_BLOCKS = 2240


class Part(NamedTuple):
    """One tensor of the first list, together with the tensors at the same position of the other lists."""

    numbers: int
    stack: str = ""
    layer: int = 0
    """The layer's number in the stack of layers ``stack``; a part with ``stack`` ``""`` belongs to no layer."""


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists of tensors of one call."""

    parts: tuple[Part, ...]
    depth: int
    """The number of lists that are divided together."""
    scalars: bool = False
    """Whether a list of numbers is passed too."""
    besides: int = 0
    """The number of launches that the call makes whatever the length of the lists."""

    @property
    def launches(self) -> int:
        """The number of launches; a launch is issued once it has as many tensors, or as many chunks, as it can take."""
        most_tensors = (MOST_TENSORS_WITH_SCALARS if self.scalars else MOST_TENSORS)[min(max(self.depth, 1), 5) - 1]
        launched = tensors = blocks = 0
        for part in self.parts:
            chunks = -(-part.numbers // CHUNK)
            tensors += bool(chunks)
            for chunk in range(1, chunks + 1):
                blocks += 1
                if blocks == MOST_BLOCKS or (tensors == most_tensors and chunk == chunks):
                    launched, blocks, tensors = launched + 1, 0, int(chunk < chunks)
        return launched + bool(blocks) + self.besides

    def with_layers(self, before: Mapping[str, int], after: Mapping[str, int]) -> Lists:
        """Return the lists of a model with other numbers of layers: the last layer but one is repeated, or left out."""
        parts = tuple(self.parts)
        for stack, number in after.items():
            if number != before[stack]:
                parts = tuple(_repeated(parts, stack, before[stack] - 2, number - before[stack]))
        return Lists(parts, self.depth, self.scalars, self.besides)


def _repeated(parts: Iterable[Part], stack: str, middle: int, more: int) -> Iterator[Part]:
    run: list[Part] = []
    for part in (*parts, Part(0, "", -1)):
        if run and part[1:] != (stack, middle):
            for number in range(more + 1):
                yield from (one._replace(layer=middle + number) for one in run)
            run = []
        if part[1:] == (stack, middle):
            run.append(part)
        elif part.layer >= 0:
            yield part._replace(layer=part.layer + more) if part.stack == stack and part.layer > middle else part


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
