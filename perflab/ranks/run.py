"""Calls a function in several processes at once, the ranks of one group, and returns what each returned.

    first, second = in_ranks(train, 2, "tiny")  # train("tiny") in two processes, a group of torch.distributed

When a rank raises, is killed or hangs, all are ended within seconds, and the error names the rank that was first, with
its traceback, and the lines that the others were waiting in.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from perflab.base.errors import PerflabError, UsageError
from perflab.processes.child import Start, workplace
from perflab.processes.peer import Ending, Peer
from perflab.ranks.worker import RETURNS, Call, Returned, result_file
from perflab.results import environment

LIMIT_S = 600.0
"""The time in seconds that a function may take in each rank, if nothing else is asked for."""
_OTHERS_S = 1.0
"""The time in seconds in which further ranks may fail, to tell the first of them from those that it took along."""
_LINES = 20
_STACK_LINES = 6
_LOOPBACK = {"linux": "lo", "darwin": "lo0"}
"""The network interface of a machine's own connections, so that no name of the machine has to be resolved."""
T = TypeVar("T")


class RankError(PerflabError):
    """A function that did not return in all ranks.

    Args:
        problem: what happened in which rank, with its traceback, and what the other ranks were doing.
        rank: the rank that was first to fail.
    """

    def __init__(self, problem: str, rank: int) -> None:
        super().__init__(problem, "mend what happened in that rank; any others were ended because of it")
        self.rank = rank


class _EndedError(Exception):
    """A rank's process ended without an answer."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending)
        self.ending = ending


@dataclass(frozen=True)
class _Failure:
    """The failure of a rank: it raised, or its process ended or hung."""

    raised: Returned | None = None
    ending: Ending | None = None

    @property
    def order(self) -> int:
        """A number by which failures are ordered: a process that is gone comes first, for that raises in others."""
        return self.raised.at_ns if self.raised is not None else 0

    @property
    def told(self) -> str:
        """The event, as the predicate of a sentence whose subject is the rank, and what it printed."""
        if self.ending is not None:
            return "\n".join([self.ending.told, *self.ending.last_lines(_LINES)])
        assert self.raised is not None
        return "\n".join(["raised", *(self.raised.problem or "").rstrip().splitlines()[-_LINES:]])

    @property
    def briefly(self) -> list[str]:
        """The event in a line, and the innermost calls of a process that hung."""
        if self.ending is None:
            return self.told.splitlines()[-1:]
        return [self.ending.told, *self.ending.stacks.decode("utf-8", "replace").splitlines()[:_STACK_LINES]]


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
        share = threads or max(1, environment.usable_cores() // world_size)
        peers = [processes.enter_context(_started(rank, world_size, limit_s)) for rank in range(world_size)]
        for rank, peer in enumerate(peers):
            call = Call(
                rank=rank,
                world_size=world_size,
                folder=str(folder),
                backend=backend,
                threads=share,
                limit_s=limit_s,
            )
            with contextlib.suppress(_EndedError):  # waiting for its answer tells how it ended
                peer.ask(call)
        _wait_for_all(peers)
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
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    if sys.platform in _LOOPBACK:
        variables.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK[sys.platform])
    command = [sys.executable, "-m", "perflab.ranks.worker"]
    start = Start(f"rank {rank} of {world_size}", command, variables, Path.cwd())
    try:
        return Peer(start, RETURNS, _EndedError, silent_s=limit_s)
    except OSError as error:
        raise RankError(f"{start.role} could not be started: {error.strerror or error}", rank) from error


def _wait_for_all(peers: Sequence[Peer[Call, Returned]]) -> None:
    """Wait until all ranks have returned; end all when one fails.

    Raises:
        RankError: a rank failed.
    """
    failures: dict[int, _Failure] = {}
    with ThreadPoolExecutor(len(peers)) as threads:
        running: dict[Future[Returned], int] = {threads.submit(peer.answer): rank for rank, peer in enumerate(peers)}
        try:
            while running:
                done, _ = wait(running, _OTHERS_S if failures else None, FIRST_COMPLETED)
                if not done:
                    break
                failures |= _failures_of({running.pop(one): one for one in done})
            waiting = {rank: peers[rank].stacks() for rank in sorted(running.values())}
        finally:
            for rank in running.values():
                peers[rank].kill()
    if failures:
        raise _error(failures, waiting, len(peers))


def _failures_of(done: Mapping[int, Future[Returned]]) -> dict[int, _Failure]:
    found = {}
    for rank, one in done.items():
        try:
            answer = one.result()
        except _EndedError as error:
            found[rank] = _Failure(ending=error.ending)
        else:
            if answer.problem is not None:
                found[rank] = _Failure(raised=answer)
    return found


def _error(failures: Mapping[int, _Failure], waiting: Mapping[int, bytes], world_size: int) -> RankError:
    first = min(failures, key=lambda rank: (failures[rank].order, rank))
    lines = [f"rank {first} of {world_size} {failures[first].told}"]
    for rank in sorted(failures.keys() - {first}):
        then, *calls = failures[rank].briefly
        lines += [f"rank {rank} then: {then}", *calls]
    for rank, stacks in waiting.items():
        shown = stacks.decode("utf-8", "replace").splitlines()[:_STACK_LINES]
        lines += [f"rank {rank} was still running:", *shown]
    return RankError("\n".join(lines), first)
