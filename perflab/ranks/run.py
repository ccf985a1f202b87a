"""Calls a function in several processes at once, the ranks of one group, and returns what each returned.

    first, second = in_ranks(train, 2, "tiny")  # train("tiny") in two processes, a group of torch.distributed

When a rank raises, is killed or hangs, all are ended within seconds, and the error names the rank that was first, with
its traceback, and the lines that the others were waiting in (``wait_for_all``, for ranks of any kind). This module is
also the program of a rank, which joins its group, makes the call, and sends what became of it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from perflab.base.data import Data
from perflab.base.errors import PerflabError, UsageError
from perflab.processes.channel import Alive, hear, say, show_stacks_when_asked
from perflab.processes.child import Start, workplace
from perflab.processes.peer import Ending, Peer
from perflab.ranks.group import Place, join, leave, places, variables_of_a_rank

_OTHERS_S = 1.0
"""The time in seconds in which further ranks may fail, to tell the first of them from those that it took along."""
_LINES = 20
_STACK_LINES = 6
_OURS = f'"{Path(__file__).parents[1]}{os.sep}'


class RankError(PerflabError):
    """A rank that failed, so that all were ended.

    Args:
        problem: what happened in which rank, with its traceback, and what the other ranks were doing.
        rank: the rank that was first to fail.
    """

    def __init__(self, problem: str, rank: int) -> None:
        super().__init__(problem, "mend what happened in that rank; any others were ended because of it")
        self.rank = rank


class EndedError(Exception):
    """A rank's process ended without an answer."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


class Answers(Protocol):
    """The part of a rank's answer that tells whether the rank failed."""

    @property
    def problem(self) -> str | None:
        """The rank's traceback; None if it did not fail."""

    @property
    def at_ns(self) -> int:
        """The moment of the failure on the machine's monotonic clock, to tell which rank was first."""


Said = TypeVar("Said")
Answer = TypeVar("Answer", bound=Answers)


@dataclass
class Waited(Generic[Answer]):
    """The answers of the ranks, how those without an answer ended, and where those that were ended were waiting."""

    world_size: int
    answers: dict[int, Answer] = field(default_factory=dict)
    endings: dict[int, Ending] = field(default_factory=dict)
    stacks: dict[int, bytes] = field(default_factory=dict)

    def check(self) -> None:
        """Refuse a rank that failed.

        Raises:
            RankError: one failed; the error tells which was first.
        """
        failed = {rank: one for rank, one in self.answers.items() if one.problem is not None}
        # A process that is gone comes first, for that raises in others.
        order = {rank: (0, rank) for rank in self.endings} | {rank: (one.at_ns, rank) for rank, one in failed.items()}
        if not order:
            return
        first = min(order, key=lambda rank: order[rank])
        lines = [f"rank {first} of {self.world_size} {self._told(first)}"]
        for rank in sorted(order.keys() - {first}):
            then, *calls = self._briefly(rank)
            lines += [f"rank {rank} then: {then}", *calls]
        for rank, stacks in sorted(self.stacks.items()):
            lines += [f"rank {rank} was still running:", *_innermost(stacks)]
        raise RankError("\n".join(lines), first)

    def _told(self, rank: int) -> str:
        """Return what happened to a rank, as the predicate of a sentence, and the last lines that it printed."""
        if rank in self.endings:
            ending = self.endings[rank]
            return "\n".join([ending.told, *ending.last_lines(_LINES)])
        return "\n".join(["failed", *(self.answers[rank].problem or "").rstrip().splitlines()[-_LINES:]])

    def _briefly(self, rank: int) -> list[str]:
        """Return what happened to a rank in a line, and the innermost calls of a process that hung."""
        if rank not in self.endings:
            return self._told(rank).splitlines()[-1:]
        ending = self.endings[rank]
        return [ending.told, *_innermost(ending.stacks)]


def _innermost(stacks: bytes) -> list[str]:
    """Return the innermost calls of the main thread, which the printed stacks show last, without perflab's own."""
    *_, main = stacks.decode("utf-8", "replace").split("\n\n")
    return [line for line in main.strip().splitlines() if _OURS not in line][:_STACK_LINES]


def wait_for_all(
    peers: Sequence[Peer[Any, Said]], read: Callable[[Said], Answer], ends_all: Callable[[Answer], bool]
) -> Waited[Answer]:
    """Wait for an answer of each rank. When one ends, or gives an answer that ``ends_all``, the others are ended.

    Args:
        peers: the ranks' processes, which raise ``EndedError`` at their end.
        read: turns what a rank says into its answer, at once.
        ends_all: whether the other ranks would wait in vain for a rank with this answer.
    """
    found = Waited[Answer](len(peers))
    is_over = False

    def answer_of(peer: Peer[Any, Said]) -> Answer:
        return read(peer.answer())

    with ThreadPoolExecutor(len(peers)) as threads:
        running: dict[Future[Answer], int] = {threads.submit(answer_of, peer): rank for rank, peer in enumerate(peers)}
        try:
            while running:
                done, _ = wait(running, _OTHERS_S if is_over else None, FIRST_COMPLETED)
                if not done:
                    break
                for one in done:
                    rank = running.pop(one)
                    try:
                        found.answers[rank] = one.result()
                        is_over |= ends_all(found.answers[rank])
                    except EndedError as error:
                        found.endings[rank] = error.ending
                        is_over = True
            found.stacks = {rank: peers[rank].stacks() for rank in sorted(running.values())}
        finally:
            for rank in running.values():
                with contextlib.suppress(OSError):
                    peers[rank].kill()
    return found


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
