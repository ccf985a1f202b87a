"""Waits for the ranks of one group; when one fails, ends all, and tells which was first and where the others were."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from perflab.base.errors import PerflabError
from perflab.processes.peer import Ending, Peer

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
