"""Counts the launches of an operator over lists: CUDA divides tensors into chunks, and a launch is limited in both.

``cuda/MultiTensorApply.cuh`` below ``aten/src/ATen/native``. Launches do not grow linearly with the layers of a model,
so the lists of few layers are extended to all layers, and the launches are counted again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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
