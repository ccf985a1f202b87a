"""How sides take turns, whether a side is a process or a callable in this process. Knows nothing of either.

A *block* is a random order of the sides followed by its reverse (A B B A, or B A A B), all on one core, the next block
on the next core: on a shared machine each core is slowed by neighbours of its own, for tenths of a second at a time.
Turns are a few milliseconds, so that a block mostly meets one state of the core. Each turn of one side is compared with
both of the other's in the same block, and the median of all these log-ratios is the log-ratio of a *pair*. What pairs
mean together is ``judge/paired.py``'s.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from perflab.measured.judge.robust import robust_spread

TURN_NS = 4e6
"""A turn lasts at least about this long: long against the 50 µs in which a turn changes sides."""
MOST_SAMPLES = 8
"""Samples in a turn, at most."""
LONG_NS = 50e6
"""A sample this long does not notice what the caches held before it."""
BLOCKS = 25
"""Blocks of a pair, if the time allows."""
SIDES = 2
"""Sides that are compared. A third one, the null control's, takes what room is left."""
_ERROR_OF_MEDIAN = math.sqrt(math.pi / 2.0)
"""Standard error of a median of normal values, in units of their mean's."""


@dataclass(frozen=True)
class Pace:
    """What a side's warm-up showed: how many calls make a sample there, and how long one sample of so many takes."""

    repetitions: int
    sample_ns: float


@dataclass(frozen=True)
class Shape:
    """What every turn of a pair is, and how many blocks there are."""

    repetitions: int
    """Calls in a sample, the same on all sides."""
    samples: int
    """Samples in a turn."""
    rewarm: bool
    """Whether a turn begins with one more sample, which is thrown away: caches hold what the other side left there."""
    blocks: int


@dataclass(frozen=True)
class Place:
    """Whose turn it is."""

    block: int
    side: str
    core: int | None
    """Where the turn begins; None where cores cannot be chosen."""


def shape_of(paces: Sequence[Pace], budget_ns: float, *, least_blocks: int, hands_back: bool) -> Shape:
    """What fits into the time.

    Args:
        paces: of the sides; the slowest one counts.
        budget_ns: time of both sides' turns in a pair, if that is enough for the fewest blocks.
        least_blocks: blocks of a pair whatever they take.
        hands_back: whether a side gives its memory back after each turn, as on a GPU that processes share: then its
            next call has to ask for it again.
    """
    repetitions = max(pace.repetitions for pace in paces)
    sample_ns = max(pace.sample_ns * repetitions / pace.repetitions for pace in paces)
    samples = max(1, min(MOST_SAMPLES, math.ceil(TURN_NS / max(sample_ns, 1.0))))
    rewarm = sample_ns < LONG_NS or hands_back
    block_ns = 2 * SIDES * (samples + rewarm) * sample_ns
    blocks = max(least_blocks, min(BLOCKS, int(budget_ns / max(block_ns, 1.0))))
    return Shape(repetitions, samples, rewarm, blocks)


def places(sides: Sequence[str], blocks: int, cores: Sequence[int], draw: random.Random) -> Iterator[Place]:
    """All turns of a pair, in order."""
    for block in range(blocks):
        order = draw.sample(list(sides), len(sides))
        core = cores[block % len(cores)] if cores else None
        for side in [*order, *reversed(order)]:
            yield Place(block, side, core)


def call_ns(samples_ns: Sequence[int], repetitions: int) -> float:
    """Time of one call in the fastest sample of a turn."""
    return max(1, min(samples_ns)) / repetitions


def log_ratio(new_ns: Sequence[float], old_ns: Sequence[float]) -> float | None:
    """log(new / old) of a pair, from the time of one call in each turn of either; None if there is no whole block."""
    blocks = _blocks(new_ns, old_ns)
    return median(log for block in blocks for log in block) if blocks else None


def own_error(new_ns: Sequence[float], old_ns: Sequence[float]) -> float:
    """Standard error of ``log_ratio`` as the pair's own blocks tell it: how much a disturbance has ruined."""
    blocks = _blocks(new_ns, old_ns)
    return _ERROR_OF_MEDIAN * robust_spread([median(block) for block in blocks]) / math.sqrt(max(1, len(blocks)))


def _blocks(new_ns: Sequence[float], old_ns: Sequence[float]) -> list[list[float]]:
    """Each turn of one side against both of the other's in the same block, as log-ratios."""
    return [
        [math.log(new_ns[2 * block + mine] / old_ns[2 * block + other]) for mine in (0, 1) for other in (0, 1)]
        for block in range(min(len(new_ns), len(old_ns)) // 2)
    ]
