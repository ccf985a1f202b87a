"""The ranks of one group of ``torch.distributed``: how a process joins and leaves, and how ranks agree.

Ranks that call collectives have to make the same calls. Every decision that depends on a clock or on free memory is
therefore taken on values that all ranks agree on: the largest of theirs.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perflab.base.data import Data
from perflab.results import environment

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store  # type: ignore[attr-defined] # public, and not in __all__

_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""The network interface of a machine's own connections, so that no name of the machine has to be resolved."""
_JOINED = itertools.count()
"""The number of groups that this process has joined under ``torchrun``: the same in every rank."""


class Place(Data, frozen=True):
    """A process's rank in a group of this machine's processes, which meet at a store in a file."""

    rank: int
    world_size: int
    store: str
    """The path of the store's file. It is new for each group: a port could be somebody else's by now."""
    backend: str
    """The backend of ``torch.distributed``: ``gloo``, or ``nccl``, where rank r has GPU r."""
    threads: int
    """The number of threads of PyTorch's operators in this rank."""
    limit_s: float
    """The time in seconds that a collective may take."""


def launched() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks if ``torchrun`` has started several; else None."""
    size = os.environ.get("WORLD_SIZE", "")
    if "TORCHELASTIC_RUN_ID" not in os.environ or not size.isdecimal() or int(size) < 2:
        return None
    return int(os.environ["RANK"]), int(size)


def join_launched(backend: str) -> None:
    """Join the group of the ranks that ``torchrun`` has started, unless this process has joined a group already."""
    import torch
    from torch import distributed
    from torch.distributed import PrefixStore  # type: ignore[attr-defined] # public, and not in __all__

    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if not distributed.is_initialized():
        store, rank, world_size = _meeting()
        # Each group meets under its own name: a rank that is late would read the addresses of the group before.
        own = PrefixStore(f"perflab/{next(_JOINED)}", store)
        distributed.init_process_group(backend, store=own, rank=rank, world_size=world_size)


@functools.cache
def _meeting() -> tuple[Store, int, int]:
    """Return the store of ``torchrun``'s ranks, this process's rank and the number of ranks."""
    from torch.distributed import rendezvous  # type: ignore[attr-defined] # public, and not in __all__

    store, rank, world_size = next(iter(rendezvous("env://")))
    return store, rank, world_size


def places(folder: Path, world_size: int, backend: str, limit_s: float, threads: int | None = None) -> list[Place]:
    """Return the places of all ranks of a new group, whose store lies in ``folder``.

    ``threads`` is the number of threads in each rank; None shares the cores evenly.
    """
    share = threads or max(1, environment.usable_cores() // world_size)
    return [
        Place(
            rank=rank,
            world_size=world_size,
            store=str(folder / "store"),
            backend=backend,
            threads=share,
            limit_s=limit_s,
        )
        for rank in range(world_size)
    ]


def variables_of_a_rank(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a rank's process: gloo connects over the machine's own network interface."""
    ours = {"GLOO_SOCKET_IFNAME": _LOOPBACK[sys.platform]} if sys.platform in _LOOPBACK else {}
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**ours, **variables, "PYTHONPATH": path}


def join(place: Place) -> None:
    """Make this process a rank of its group. It waits for the others."""
    import torch
    from torch import distributed
    from torch.distributed import FileStore  # type: ignore[attr-defined] # public, and not in __all__

    torch.set_num_threads(place.threads)
    if place.backend == "nccl":
        torch.cuda.set_device(place.rank)
    distributed.init_process_group(
        place.backend,
        store=FileStore(place.store, place.world_size),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=place.limit_s),
    )


def leave() -> None:
    """Leave the group once all ranks are done: a rank that leaves early closes connections that others still use."""
    from torch import distributed

    with contextlib.suppress(RuntimeError):  # another rank is gone, which its own end tells
        if distributed.is_initialized():
            distributed.barrier()
            distributed.destroy_process_group()


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
