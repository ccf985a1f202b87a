"""Agreement between the processes that measure one case at once.

Ranks that call collectives have to make the same calls. Every decision that depends on a clock or on free memory is
therefore taken on values that all ranks agree on: the largest of theirs.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


class Together:
    """The processes that measure a case: this one alone. ``Group`` is the class for several."""

    world_size = 1

    def most(self, *values: float) -> list[float]:
        """Return the largest of all processes' values, value by value."""
        return list(values)

    def wait(self) -> None:
        """Wait until all processes are here."""

    def gathered(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        return [value]

    def draw(self) -> random.Random:
        """Return a new generator of random numbers, which draws the same in all processes."""
        return random.Random(self.gathered(random.SystemRandom().getrandbits(64))[0])


class Group(Together):
    """The ranks of the process group that this process has joined, with connections of their own."""

    def __init__(self) -> None:
        from torch import distributed

        self.world_size = distributed.get_world_size()
        # Apart from the case's own group: its backend may be NCCL, and the case may have destroyed it.
        self._group: ProcessGroup = distributed.new_group(backend="gloo")

    def most(self, *values: float) -> list[float]:
        """Return the largest of all ranks' values, value by value."""
        import torch
        from torch import distributed

        agreed = torch.tensor(values, dtype=torch.float64)  # exact for nanoseconds up to 104 days
        distributed.all_reduce(agreed, distributed.ReduceOp.MAX, group=self._group)
        found: list[float] = agreed.tolist()
        return found

    def wait(self) -> None:
        """Wait until all ranks are here."""
        from torch import distributed

        distributed.barrier(group=self._group)

    def gathered(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        from torch import distributed

        found: list[T | None] = [None] * self.world_size
        distributed.all_gather_object(found, value, group=self._group)
        return [one for one in found if one is not None]


ALONE = Together()
_here = ALONE


def together() -> Together:
    """Return the processes that measure in step with this one: the ranks of its job, or this process alone."""
    return _here


def measure_together() -> None:
    """Measure in step with all ranks of the group that this process has joined, from now on."""
    global _here
    _here = Group()
