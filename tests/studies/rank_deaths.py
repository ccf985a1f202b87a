"""Ranks that die at random moments: how soon all are ended, and whether anything is left.

    python -m tests.studies.rank_deaths 50

Each of the runs is a group of two to four ranks that exchange gradients again and again; one of them, at a moment
between its start and five seconds later, is killed, raises, leaves without a word, or stops for good.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from perflab.ranks.run import RankError, in_ranks
from tests.harness import rank_functions

LIMIT_S = 20.0
"""The time in seconds after which a rank that has stopped counts as hung."""


def ranks_alive() -> list[int]:
    """The ids of all processes of ranks on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if b"perflab.ranks.run" in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def listening() -> int:
    """The number of TCP sockets that listen on this machine."""
    lines = [
        line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]
    ]
    return sum(line[3] == "0A" for line in lines)


def main() -> None:
    """Let ranks die, and print how long it took until all were ended."""
    runs, draw, before = int(sys.argv[1]), random.Random(0), listening()
    took: dict[str, list[float]] = {}
    for number in range(runs):
        world_size = draw.choice((2, 2, 3, 4))
        victim, how, after_s = (
            draw.randrange(world_size),
            draw.choice(("kill", "raise", "exit", "stop")),
            draw.uniform(0, 5),
        )
        begun = time.monotonic()
        try:
            in_ranks(rank_functions.die, world_size, victim, how, after_s, limit_s=LIMIT_S)
        except RankError as error:
            lasted = time.monotonic() - begun
            named = error.rank == victim or how == "stop"  # who has stopped and who waits are told alike
            until = time.monotonic() + 1  # the kernel takes a moment to clear away what was killed
            while ranks_alive() and time.monotonic() < until:
                time.sleep(0.05)
            left, sockets = ranks_alive(), listening() - before
            took.setdefault(how, []).append(lasted - after_s)
            print(f"{number + 1:3} {how:5} of {world_size} after {after_s:.1f} s: ended in {lasted:.1f} s, ", end="")
            print(f"victim named: {named}, processes left: {len(left)}, sockets left: {sockets}", flush=True)
    for how, seconds in took.items():
        print(
            f"{how}: {len(seconds)} times, {min(seconds):.1f} to {max(seconds):.1f} s with the start of the processes"
        )


if __name__ == "__main__":
    main()
