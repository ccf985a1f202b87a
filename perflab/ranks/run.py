"""Calls a function in several processes at once, the ranks of one group, and returns what each returned.

    first, second = in_ranks(train, 2, "tiny")  # train("tiny") in two processes, a group of torch.distributed

When a rank raises, is killed or hangs, all are ended within seconds, and the error names the rank that was first, with
its traceback, and the lines that the others were waiting in. This module is also the program of a rank, which joins its
group, makes the call, and sends what became of it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from perflab.base.data import Data
from perflab.base.errors import UsageError
from perflab.processes.channel import Alive, hear, say, show_stacks_when_asked
from perflab.processes.child import Start, workplace
from perflab.processes.peer import Peer
from perflab.ranks.group import Place, join, leave, places, variables_of_a_rank
from perflab.ranks.waiting import EndedError, RankError, wait_for_all

LIMIT_S = 600.0
"""The time in seconds that a function may take in each rank, if nothing else is asked for."""
T = TypeVar("T")


def in_ranks(
    function: Callable[..., T],
    world_size: int,
    *arguments: object,
    backend: str = "gloo",
    threads: int | None = None,
    limit_s: float = LIMIT_S,
) -> list[T]:
    """Call ``function(*arguments)`` in ``world_size`` new processes of one group, and return the results by rank.

    Args:
        function: a function at the top level of a module that a new process can import.
        world_size: the number of processes.
        arguments: what pickle can take.
        backend: the backend of ``torch.distributed``: ``gloo``, or ``nccl``, where rank r has GPU r.
        threads: the threads of PyTorch's operators in each rank; None: the cores, shared evenly.
        limit_s: the time in seconds that each process may take, its start included.

    Raises:
        RankError: the function raised, hung or ended its process in one of the ranks, or a process cannot be started.
        UsageError: the function or its arguments cannot be sent to another process.
    """
    if world_size < 1:
        raise UsageError(f"world_size={world_size}", "give the number of processes, 1 or more")
    with workplace() as folder, contextlib.ExitStack() as processes:
        (folder / "call").write_bytes(_pickled(function, arguments))
        peers = [processes.enter_context(_started(rank, world_size, limit_s)) for rank in range(world_size)]
        for place, peer in zip(places(folder, world_size, backend, limit_s, threads), peers, strict=True):
            with contextlib.suppress(EndedError):  # waiting for its answer tells how it ended
                peer.ask(Call(place=place, folder=str(folder)))
        wait_for_all(peers, lambda answer: answer, lambda answer: answer.problem is not None).check()
        import torch

        # The file is of our own process, and may hold any class of the caller's.
        return [torch.load(result_file(folder, rank), weights_only=False) for rank in range(world_size)]


def _pickled(function: Callable[..., object], arguments: Sequence[object]) -> bytes:
    name = getattr(function, "__qualname__", repr(function))
    remedy = "define it at the top level of a module, with arguments that can be pickled"
    if getattr(function, "__module__", None) == "__main__":
        raise UsageError(f"{name} is of the program that was started, which other processes do not import", remedy)
    try:
        return pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(f"{name} cannot be sent to other processes: {error}", remedy) from error


def _started(rank: int, world_size: int, limit_s: float) -> Peer[Call, Returned]:
    command = [sys.executable, "-m", "perflab.ranks.run"]
    start = Start(f"rank {rank} of {world_size}", command, variables_of_a_rank(os.environ), Path.cwd())
    try:
        return Peer(start, RETURNS, EndedError, silent_s=limit_s)
    except OSError as error:
        raise RankError(f"{start.role} could not be started: {error.strerror or error}", rank) from error


class Call(Data, frozen=True, tag=True):
    """The function that a rank is to call, and its place among the ranks."""

    place: Place
    folder: str
    """The folder with the pickled function and arguments (``call``), the group's store, and a file for each result."""


class Returned(Data, frozen=True, tag=True):
    """The answer of a rank that has made its call: the result is in its file, or the call raised."""

    problem: str | None = None
    """The traceback; None if the function returned."""
    at_ns: int = 0
    """The moment of the error on the machine's monotonic clock, to tell which rank was first."""


CALLS = msgspec.json.Decoder(Call)
RETURNS: msgspec.json.Decoder[Returned | Alive] = msgspec.json.Decoder(Returned | Alive)


def result_file(folder: Path, rank: int) -> Path:
    """Return the path of the file with a rank's result."""
    return folder / f"result-{rank}"


def _call(call: Call) -> None:
    """Join the group, call the function, and write what it returned.

    Raises:
        Exception: whatever the function raises, or what its module raises when it is imported here.
    """
    import torch

    folder = Path(call.folder)
    join(call.place)
    function, arguments = pickle.loads((folder / "call").read_bytes())
    torch.save(function(*arguments), result_file(folder, call.place.rank))
    leave()


def main() -> None:
    """Carry out one call."""
    show_stacks_when_asked(2)
    call = hear(CALLS)
    try:
        _call(call)
    except BaseException as error:
        at_ns = time.monotonic_ns()
        ours = error.__traceback__.tb_next if error.__traceback__ is not None else None  # main's frame, and _call's
        error = error.with_traceback(ours.tb_next if ours is not None else None)
        say(Returned(problem="".join(traceback.format_exception(error)), at_ns=at_ns))
        raise
    say(Returned())


if __name__ == "__main__":
    main()
