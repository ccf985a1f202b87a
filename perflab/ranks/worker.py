"""The program of a rank: joins its process group, calls one function, and sends what became of it (``run.py``)."""

from __future__ import annotations

import pickle
import time
import traceback
from pathlib import Path

import msgspec

from perflab.base.data import Data
from perflab.processes.channel import Alive, hear, say, show_stacks_when_asked
from perflab.ranks.place import Place, join, leave


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

    @property
    def how(self) -> str:
        """The way in which the rank failed."""
        return "raised"


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
