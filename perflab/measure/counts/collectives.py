"""Counts the collectives of one call: by kind, dtype, group and place, their bytes, order and waits.

- ``collectives``: calls of a process group's operations, whoever makes them: Python, DDP in C++, a compiled graph.
- ``collective_bytes``: bytes of their tensors in this rank, each time of the larger side: of an all-gather what it
  returns, of a reduce-scatter what it is given. That is S in nccl-tests' bandwidths.
- ``collectives:all_reduce:float32``: the calls of one kind with tensors of one dtype. Forms of one kind
  (``reduce_scatter``, ``reduce_scatter_tensor``, their functional and coalesced forms) count as that kind.
- ``collectives_outside_backward``: the calls that began while no backward ran. Overlap that is lost raises it.
- ``collective_waits``: waits for a collective, as Python sees them; those in DDP's C++ are not seen.
- ``collective_order``: how often a call's kind is another than that of the call before;
  ``collective_order:all_gather>reduce_scatter``: how often these two follow each other.
- ``collective_groups``: the calls that a part of the ranks makes; by kind and group as
  ``collective_groups:all_reduce:2 of 4 by 2``, where every second of four ranks takes part.

A barrier has no bytes.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from perflab.base.user_lines import line_of
from perflab.internals.of_torch.dispatch import group_ranks, ranks_of_group, seeing_operators
from perflab.internals.of_torch.tracing import is_in_backward

if TYPE_CHECKING:
    from torch.distributed import Work

    from perflab.internals.of_torch import OpOverload

KINDS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "recv_any_source": "recv",
    "monitored_barrier": "barrier",
}
"""Kinds of operators whose own names, without a final underscore, are others."""
WAITS = "collective_waits"
BY_KIND = "collectives:"
"""The beginning of the names of counts by kind and dtype."""
_NO_COLLECTIVES = ("check_for_nan",)
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
}
"""Kinds of the functional operators, without a final underscore and ``_coalesced``."""
_WITH_PEER = ("send", "recv")


def communicates() -> bool:
    """Whether this process has joined a process group, so that its calls may communicate."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


class Collective(NamedTuple):
    """One collective of a call, as one rank made it."""

    kind: str
    dtype: str
    """The dtype of its tensors as PyTorch names it; empty for a barrier."""
    size_bytes: int
    """Bytes of its tensors in this rank, of the larger side."""
    group: str
    """The part of the ranks that makes it, ``2 of 4 by 2``; empty for all of them."""
    in_backward: bool
    """Whether it began while a backward ran."""
    ranks: tuple[int, ...] = ()
    """The ranks that make it."""
    peer: int | None = None
    """The rank that a ``send`` or ``recv`` exchanges with; None: any, or the kind has no peer."""
    line: str = ""
    """The user's line that made it: ``train.py:12``; empty where no Python ran, as in DDP's C++."""


class Answers(Protocol):
    """Object that stands in for a backend."""

    def answer(self, operator: OpOverload, arguments: tuple[Any, ...]) -> Any:
        """Return the results of an operator of ``c10d``."""

    def waited(self, work: Work) -> None:
        """Take note that a collective is waited for."""


@dataclass
class Seen:
    """The collectives of a process so far, and its waits for them."""

    collectives: list[Collective] = field(default_factory=list)
    """The collectives, in the order in which they began."""
    waits: int = 0
    """The number of waits for a collective, as Python sees them."""

    def add_functional(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        """Note a call of an operator of ``_c10d_functional`` that reaches no backend, as on fake tensors."""
        if (kind := FUNCTIONAL.get(name.removesuffix("_").removesuffix("_coalesced"))) is not None:
            ranks = ranks_of_group(next(one for one in reversed(arguments) if isinstance(one, str)))
            self.collectives.append(_collective(kind, (arguments[0], result), ranks, line_of(sys._getframe(1))))

    def since(self, begun: Seen) -> Seen:
        """Return what was communicated since ``begun``, a ``copy`` of this from then."""
        return Seen(self.collectives[len(begun.collectives) :], self.waits - begun.waits)

    def copy(self) -> Seen:
        """Return what was communicated so far."""
        return Seen(list(self.collectives), self.waits)

    def counts(self) -> dict[str, int]:
        """Return the counts of these collectives; zeros if there are none."""
        return {**counts_of(self.collectives), WAITS: self.waits}


def collectives_of(call: Callable[[], Any]) -> dict[str, int]:
    """Make a call, and return its counts of collectives; zeros if it makes none."""
    with seeing_collectives() as seen:
        call()
    return seen.counts()


@contextlib.contextmanager
def seeing_collectives(answers: Answers | None = None) -> Iterator[Seen]:
    """Yield what this process communicates within the block, as it goes on; blocks must not be nested.

    ``answers`` stands in for the backend; None: collectives are carried out.
    """
    seen = Seen()

    def see(name: str, arguments: tuple[Any, ...]) -> None:
        plain = name.removesuffix("_")
        if plain not in _NO_COLLECTIVES:
            kind = KINDS.get(plain, plain)
            sides = arguments[:2] if kind != "barrier" else ()  # a barrier's tensor is a stand-in
            ranks = group_ranks(arguments)
            peer = ranks[arguments[2]] if plain in _WITH_PEER and ranks and isinstance(arguments[2], int) else None
            seen.collectives.append(_collective(kind, sides, ranks, line_of(sys._getframe(1)), peer))

    def see_functional(name: str, _arguments: tuple[Any, ...]) -> None:
        seen.waits += name == "wait_tensor"

    def waited(work: Work) -> None:
        seen.waits += 1
        if answers is not None:
            answers.waited(work)

    with (
        seeing_operators("c10d", see, answers.answer if answers is not None else None),
        seeing_operators("_c10d_functional", see_functional),
        _seeing_waits(waited),
    ):
        yield seen


def counts_of(seen: Sequence[Collective]) -> dict[str, int]:
    """Return the counts of a call's collectives, in the order in which they began."""
    counts: Counter[str] = Counter(
        collectives=len(seen),
        collective_bytes=sum(one.size_bytes for one in seen),
        collectives_outside_backward=sum(not one.in_backward for one in seen),
        collective_order=0,
        collective_groups=0,
    )
    for one in seen:
        counts[f"{BY_KIND}{one.kind}:{one.dtype}" if one.dtype else f"{BY_KIND}{one.kind}"] += 1
        if one.group:
            counts["collective_groups"] += 1
            counts[f"collective_groups:{one.kind}:{one.group}"] += 1
    for before, one in pairwise(seen):
        if before.kind != one.kind:
            counts["collective_order"] += 1
            counts[f"collective_order:{before.kind}>{one.kind}"] += 1
    return dict(counts)


def _collective(
    kind: str, sides: Sequence[Any], ranks: Sequence[int], line: str, peer: int | None = None
) -> Collective:
    """Return a collective, given what this rank passes and gets: tensors, or lists of them."""
    tensors = [list(_tensors(side)) for side in sides]
    dtype = next((str(one.dtype).removeprefix("torch.") for side in tensors for one in side), "")
    size_bytes = max((sum(one.nbytes for one in side) for side in tensors), default=0)
    return Collective(kind, dtype, size_bytes, group_in_words(ranks), is_in_backward(), tuple(ranks), peer, line)


def group_in_words(ranks: Sequence[int]) -> str:
    """Return the part of all ranks that these are: ``2 of 4 by 2`` for two ranks that are two apart; empty for all."""
    from torch import distributed

    world_size = distributed.get_world_size()
    if not 0 < len(ranks) < world_size:
        return ""
    apart = {after - before for before, after in pairwise(ranks)}
    by = f" by {apart.pop()}" if len(apart) == 1 and apart != {1} else ""
    return f"{len(ranks)} of {world_size}{by}"


@contextlib.contextmanager
def _seeing_waits(waited: Callable[[Work], None]) -> Iterator[None]:
    """Call ``waited`` at each wait of Python's for a collective."""
    from torch.distributed import Work

    wait = Work.wait

    def seen(work: Work, *arguments: Any, **keywords: Any) -> bool:
        waited(work)
        return wait(work, *arguments, **keywords)

    Work.wait = seen  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Work.wait = wait  # type: ignore[method-assign]


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)
