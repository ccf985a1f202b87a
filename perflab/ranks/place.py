"""The place of a process among the ranks of one group of ``torch.distributed``: how it joins, and how it leaves."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.base.data import Data
from perflab.results import environment

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined] # public, and not in __all__

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
