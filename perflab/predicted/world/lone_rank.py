"""A process as one rank of a group whose other ranks do not exist, and where two ranks' collectives do not match.

In a dry run the backend is NCCL over ``nocuda``, whose collectives answer as if every rank had sent what this one sent.
For a prediction on fake tensors they are answered before they reach a backend (``on_fakes``). Either way the code that
is run is the user's own: DDP, FSDP2 and ``torch.distributed`` do what they would do among all ranks.

The collectives of all groups that hold both ranks have to be the same in both, in the same order, or a real group would
hang: kind, dtype, size and group. What a rank sends to the other has to be what that one receives, message by message.
Groups without one of the two say nothing about this pair.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, zip_longest

import pytest

from perflab.base.data import changed
from perflab.internals.of_torch.machine import register_fake_backend
from perflab.measure.counts.collectives import Collective, Seen, seeing_collectives
from perflab.results.predicted import Mismatch, PredictedCase
from perflab.units import format_bytes

OVER_NOCUDA = "cpu:fake,cuda:nccl"
"""The backends of a dry run's group: nobody is there to talk to on a CPU either."""
FAKE = "fake"
"""The backend of a prediction's group."""
_VARIABLES = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
_UNEVEN = ("gather", "scatter", "all_to_all")
"""Kinds whose bytes differ by rank: a root has the whole, or the parts are unequal."""
_MESSAGES = ("send", "recv")
_UNCOMPARED = "the collectives of the rank are compared with no other rank's: one rank was played"
_NO_LINE = "a line in C++"


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

    from perflab.predicted.world.on_fakes import AnsweredAlone, ranks_on_fakes, store_of_one  # loads torch

    global _here
    register_fake_backend()
    before = {name: os.environ.get(name) for name in (*_VARIABLES, "RANK", "WORLD_SIZE")}
    os.environ.update(_VARIABLES, RANK=str(alone.rank), WORLD_SIZE=str(alone.world_size))
    store = store_of_one()  # Python's side of it has to live as long as the group
    on_fakes = backend == FAKE
    alone.uses_ddp = alone.over_nocuda = not on_fakes
    with (
        seeing_collectives(AnsweredAlone() if on_fakes else None) as alone.seen,
        ranks_on_fakes(alone) if on_fakes else contextlib.nullcontext(),
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


def find_mismatches(ranks: Mapping[int, Sequence[Collective]]) -> list[Mismatch]:
    """Return the first mismatch of each pair of ranks.

    Args:
        ranks: the collectives of each rank that was played, in the order in which they began.
    """
    found = []
    for first, second in combinations(sorted(ranks), 2):
        one = _shared(ranks, first, second) or _sent(ranks, first, second) or _sent(ranks, second, first)
        found += [one] if one is not None else []
    return found


def with_mismatches(case: PredictedCase) -> PredictedCase:
    """Return a dry run's case with the mismatches between the rank that this process plays and those played before.

    The case's body has ended: what its fixtures communicate later is not compared.
    """
    alone = lone_rank()
    if alone is None or case.now.dry_run is None:
        return case
    alone.collectives = list(alone.seen.collectives)
    found = find_mismatches({alone.rank: alone.collectives, **alone.others})
    notes = case.now.notes if alone.others else [*case.now.notes, _UNCOMPARED]
    return changed(case, now=changed(case.now, notes=notes, dry_run=changed(case.now.dry_run, mismatches=found)))


def _shared(ranks: Mapping[int, Sequence[Collective]], first: int, second: int) -> Mismatch | None:
    both = [
        [one for one in ranks[rank] if one.kind not in _MESSAGES and {first, second} <= set(one.ranks)]
        for rank in (first, second)
    ]
    for number, (a, b) in enumerate(zip_longest(*both), start=1):
        if a is None or b is None or _key(a) != _key(b):
            return _mismatch(number, (first, a), (second, b))
    return None


def _sent(ranks: Mapping[int, Sequence[Collective]], sender: int, receiver: int) -> Mismatch | None:
    if any(one.kind == "recv" and one.peer is None for one in ranks[receiver]):
        return None  # it takes what comes, from any rank
    sent = [one for one in ranks[sender] if one.kind == "send" and one.peer == receiver]
    received = [one for one in ranks[receiver] if one.kind == "recv" and one.peer == sender]
    for number, (a, b) in enumerate(zip_longest(sent, received), start=1):
        if a is None or b is None or (a.dtype, a.size_bytes) != (b.dtype, b.size_bytes):
            return _mismatch(number, (sender, a), (receiver, b))
    return None


def _key(one: Collective) -> tuple[object, ...]:
    return one.kind, one.dtype, one.ranks, None if one.kind in _UNEVEN else one.size_bytes


def _mismatch(number: int, first: tuple[int, Collective | None], second: tuple[int, Collective | None]) -> Mismatch:
    (rank, one), (other, two) = first, second
    return Mismatch(
        number=number,
        rank=rank,
        collective=_words(one),
        line=_line(one),
        other_rank=other,
        other_collective=_words(two),
        other_line=_line(two),
    )


def _words(one: Collective | None) -> str:
    if one is None:
        return ""
    if one.peer is not None:
        return f"{one.kind} of {format_bytes(one.size_bytes)} {one.dtype}, rank {one.peer}"
    told = f" of {format_bytes(one.size_bytes)} {one.dtype}" if one.dtype else ""
    return f"{one.kind}{told}, {f'ranks {one.group}' if one.group else 'all ranks'}"


def _line(one: Collective | None) -> str:
    return "" if one is None else one.line or _NO_LINE
