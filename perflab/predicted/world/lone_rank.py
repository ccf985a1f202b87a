"""A process as one rank of a group whose other ranks do not exist.

In a dry run the backend is NCCL over ``nocuda``, whose collectives answer as if every rank had sent what this one sent.
For a prediction on fake tensors they are answered before they reach a backend (``on_fakes``). Either way the code that
is run is the user's own: DDP, FSDP2 and ``torch.distributed`` do what they would do among all ranks.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined] # public, and not in __all__

from perflab.internals.of_torch.machine import register_fake_backend
from perflab.measure.counts.collectives import Collective, Seen, seeing_collectives

OVER_NOCUDA = "cpu:fake,cuda:nccl"
"""The backends of a dry run's group: nobody is there to talk to on a CPU either."""
FAKE = "fake"
"""The backend of a prediction's group."""
_ID_BYTES = 128
_VARIABLES = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}


@dataclass
class LoneRank:
    """A rank that one process plays, of a case in ranks."""

    rank: int
    world_size: int
    others: dict[int, list[Collective]] = field(default_factory=dict)
    """The collectives of the ranks that were played before, by rank."""
    seen: Seen = field(default_factory=Seen)
    """The collectives of the rank since it joined the group."""
    collectives: list[Collective] = field(default_factory=list)
    """The collectives of the rank up to the end of the case's body; empty before."""
    over_nocuda: bool = False
    """Whether its collectives are those of a dry run, else answered on fake tensors."""
    uses_ddp: bool = True
    """Whether the rank may have wrapped a model in DDP."""

    def wraps_in_ddp(self) -> None:
        """Take note that the rank wraps a model in DDP."""
        self.uses_ddp = True


LONE: pytest.StashKey[LoneRank] = pytest.StashKey()
"""The rank to play of a test that is a case in ranks; absent: the first that is to be played."""


_here: LoneRank | None = None


def lone_rank() -> LoneRank | None:
    """Return the rank that this process plays without its peers; None if it plays none."""
    return _here


def calls_until_steady() -> int:
    """Return the number of calls after which calls are alike.

    Optimizers make their state in the first one; DDP orders its buckets in the second one, by the first backward.
    """
    return 2 if _here is not None and _here.uses_ddp else 1


@contextlib.contextmanager
def playing(alone: LoneRank, backend: str) -> Iterator[None]:
    """Make this process one rank of a group for the length of the block, and see what it communicates.

    The rank has one device, ``cuda:0``, as if each rank had ``CUDA_VISIBLE_DEVICES`` of its own.

    Args:
        alone: the rank to play.
        backend: ``OVER_NOCUDA`` or ``FAKE``.
    """
    from torch import distributed

    from perflab.predicted.world.on_fakes import AnsweredAlone, ranks_on_fakes  # loads torch

    global _here
    register_fake_backend()
    before = {name: os.environ.get(name) for name in (*_VARIABLES, "RANK", "WORLD_SIZE")}
    os.environ.update(_VARIABLES, RANK=str(alone.rank), WORLD_SIZE=str(alone.world_size))
    store = _store()  # Python's side of it has to live as long as the group
    on_fakes = backend == FAKE
    alone.uses_ddp = alone.over_nocuda = not on_fakes
    with (
        seeing_collectives(AnsweredAlone() if on_fakes else None) as alone.seen,
        ranks_on_fakes(alone.wraps_in_ddp) if on_fakes else contextlib.nullcontext(),
    ):
        try:
            distributed.init_process_group(backend, store=store, rank=alone.rank, world_size=alone.world_size)
            _here = alone
            yield
        finally:
            _here = None
            if distributed.is_initialized():
                distributed.destroy_process_group()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


def _store() -> Store:
    """Return a store that answers alone: whoever waits for another rank's key does not wait, and reads zeros."""
    from torch.distributed import Store  # type: ignore[attr-defined] # public, and not in __all__

    class Alone(Store):
        """A store without other processes."""

        def __init__(self) -> None:
            super().__init__()
            self._known: dict[str, bytes] = {}

        def set(self, key: str, value: str | bytes) -> None:
            self._known[key] = value.encode() if isinstance(value, str) else bytes(value)

        def get(self, key: str) -> bytes:
            return self._known.get(key, bytes(_ID_BYTES))

        def add(self, key: str, amount: int) -> int:
            total = int(self._known.get(key, b"0")) + amount
            self._known[key] = str(total).encode()
            return total

        def check(self, keys: list[str]) -> bool:
            return all(key in self._known for key in keys)

        def wait(self, *_: object) -> None:
            """Wait for no one."""

        def compare_set(self, key: str, expected: str, desired: str) -> bytes:
            return self._known.setdefault(key, desired.encode())

        def delete_key(self, key: str) -> bool:
            return self._known.pop(key, None) is not None

        def num_keys(self) -> int:
            return len(self._known)

        def set_timeout(self, _: object) -> None:
            """Take note of nothing: no call waits."""

    return Alone()
