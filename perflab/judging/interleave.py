"""The order and the times of turns, for sides of any kind: processes, or callables in this process.

A *block* is a random order of the sides followed by its reverse (A B B A, or B A A B), all on one core, the next block
on the next core: on a shared machine each core is slowed by neighbours of its own, for tenths of a second at a time.
Turns are a few milliseconds, so that a block mostly meets one state of the core. Each turn of one side is compared with
both turns of the other side in the same block.

A pair of processes gives two kinds of log-ratios: of the fastest calls of the turns, which other work hardly affects,
and of the mean calls, which are what users pay for. The two differ where only some calls became slower. Other work
falls on single blocks, but a cost in every few calls falls on all blocks, so the means are taken over the middle half
of the blocks. A cost in one call of a hundred also falls on few blocks; only the mean over all blocks includes it.
``judging/paired.py`` chooses between these log-ratios, and judges the pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean, median

from perflab.judging.statistics import robust_spread

TURN_NS = 4e6
"""The approximate least duration of a turn, in nanoseconds: long against the 50 µs that a change of sides takes."""
MOST_SAMPLES = 8
"""The largest number of samples in a turn."""
DISCARDED = 1.5
"""The average number of samples that a side discards at the beginning of a turn (``measurement/turns.py``)."""
LONG_NS = 50e6
"""A sample of this many nanoseconds is too long to be affected by the previous content of the caches."""
BLOCKS = 25
"""The number of blocks in a pair, if the time allows."""
SIDES = 2
"""The number of sides that are compared. A third process, the null control's, uses whatever memory is left."""
LOPSIDED = 2.0
"""How many times farther apart one side's blocks must be than the other's to conclude that its own calls differ: other
work disturbs both sides alike."""
LEAST_CALLS = 5
"""Blocks are grouped until each side has this many calls in a group. With fewer calls, a cost in every tenth call would
fall on too few groups to reach their middle half."""
TRIMMED, LEAST_GROUPS = 0.25, 4
"""The fraction of the groups that is trimmed at each end, and the number of groups below which nothing is trimmed."""
_ERROR_OF_MEDIAN = math.sqrt(math.pi / 2.0)
"""The standard error of the median of normal values, divided by the standard error of their mean."""


@dataclass(frozen=True)
class Pace:
    """The result of a side's warm-up: the number of calls in a sample, and the duration of one such sample."""

    repetitions: int
    sample_ns: float


@dataclass(frozen=True)
class Shape:
    """The layout of a pair: the samples in every turn, and the number of blocks."""

    repetitions: int
    """Calls in a sample, the same on all sides."""
    samples: int
    """Samples in a turn."""
    rewarm: bool
    """Whether a turn begins with discarded samples, because the caches hold what the other side left there."""
    blocks: int


@dataclass(frozen=True)
class Place:
    """One turn: its block, its side, and the core on which it begins."""

    block: int
    side: str
    core: int | None
    """The core on which the turn begins; None if cores cannot be chosen."""


def shape_of(paces: Sequence[Pace], budget_ns: float, *, least_blocks: int, hands_back: bool) -> Shape:
    """Return the layout of a pair that fits into the time.

    Args:
        paces: the paces of the sides; the slowest one counts.
        budget_ns: time of both sides' turns in a pair, if that is enough for the fewest blocks.
        least_blocks: the least number of blocks in a pair, even if they exceed the budget.
        hands_back: whether a side returns its cached memory after each turn, as on a GPU that processes share: the
            side's next call then has to allocate the memory again.
    """
    repetitions = max(pace.repetitions for pace in paces)
    sample_ns = max(pace.sample_ns * repetitions / pace.repetitions for pace in paces)
    samples = max(1, min(MOST_SAMPLES, math.ceil(TURN_NS / max(sample_ns, 1.0))))
    rewarm = sample_ns < LONG_NS or hands_back
    block_ns = 2 * SIDES * (samples + DISCARDED * rewarm) * sample_ns
    blocks = max(least_blocks, min(BLOCKS, int(budget_ns / max(block_ns, 1.0))))
    return Shape(repetitions, samples, rewarm, blocks)


def places(sides: Sequence[str], blocks: int, cores: Sequence[int], draw: random.Random) -> Iterator[Place]:
    """Yield every turn of a pair, in order."""
    for block in range(blocks):
        order = draw.sample(list(sides), len(sides))
        core = cores[block % len(cores)] if cores else None
        for side in [*order, *reversed(order)]:
            yield Place(block, side, core)


@dataclass(frozen=True)
class TurnTime:
    """Time of one call in a turn, excluding the time in which it waited for a core that other work occupied."""

    fastest_ns: float
    """Time of one call in the fastest sample."""
    mean_ns: float
    """Mean time of one call over all samples."""
    calls: int = 1


def turn_time(samples_ns: Sequence[int], waited_ns: Sequence[int], repetitions: int) -> TurnTime:
    """Return the time of one call in a turn, from the times of its samples and from how long each waited for a core.

    A sample is ``repetitions`` calls.
    """
    own_ns = [max(1, sample - waited) for sample, waited in zip_longest(samples_ns, waited_ns, fillvalue=0)]
    return TurnTime(min(own_ns) / repetitions, fmean(own_ns) / repetitions, len(own_ns) * repetitions)


def together(sides: Sequence[Sequence[TurnTime]]) -> list[TurnTime]:
    """Combine the turns of several processes of one side into the turns of one process.

    The result has as many turns as the process with the fewest.
    """
    if len(sides) == 1:
        return list(sides[0])
    return [
        TurnTime(
            math.prod(turn.fastest_ns for turn in turns) ** (1 / len(turns)),
            math.fsum(turn.mean_ns for turn in turns) / len(turns),
            turns[0].calls,
        )
        for turns in zip(*sides, strict=False)
    ]


@dataclass(frozen=True)
class Reading:
    """Log-ratios new / old of a pair of processes, with the standard errors estimated from the pair's own blocks."""

    log: float
    """The log-ratio of the fastest calls."""
    error: float = 0.0
    """The standard error of ``log``; large if a disturbance has ruined the pair."""
    excess: float = 0.0
    """The log-ratio of the mean calls in the middle half of the blocks, minus ``log``."""
    excess_error: float = 0.0
    excess_of_all: float = 0.0
    """The log-ratio of the mean calls in all blocks, minus ``log``."""
    excess_of_all_error: float = 0.0
    one_sided: bool = False
    """Whether the block means of the new side spread more than LOPSIDED times as much as those of the old side."""


def reading(new: Sequence[TurnTime], old: Sequence[TurnTime]) -> Reading | None:
    """Return the log-ratios of a pair; None if the pair has no complete block."""
    blocks = range(min(len(new), len(old)) // 2)
    if not blocks:
        return None
    logs = [
        [
            math.log(new[2 * block + mine].fastest_ns / old[2 * block + other].fastest_ns)
            for mine in (0, 1)
            for other in (0, 1)
        ]
        for block in blocks
    ]
    log = median(one for block in logs for one in block)
    error = _ERROR_OF_MEDIAN * robust_spread([median(block) for block in logs]) / math.sqrt(len(blocks))
    # Means are taken in units of the block's fastest call, so that slow and fast blocks have the same weight.
    means = []
    for block in blocks:
        pairs = [(side[2 * block], side[2 * block + 1]) for side in (new, old)]
        level_ns = math.sqrt(math.prod(min(one.fastest_ns, other.fastest_ns) for one, other in pairs))
        means.append([(one.mean_ns + other.mean_ns) / (2 * level_ns) for one, other in pairs])
    of_new, of_old = zip(*means, strict=True)
    groups = len(means) // math.ceil(LEAST_CALLS / (2 * min(new[0].calls, old[0].calls)))
    share = TRIMMED if groups >= LEAST_GROUPS else 0.0
    groups = groups if share else len(means)
    logs_of_means = [math.log(fmean(of_new[i::groups]) / fmean(of_old[i::groups])) for i in range(groups)]
    middle, middle_error = _middle(logs_of_means, share)
    mean_new, mean_old = fmean(of_new), fmean(of_old)
    one_sided = _squares(of_new, mean_new) > LOPSIDED**2 * _squares(of_old, mean_old)
    all_error = _middle([new / mean_new - old / mean_old for new, old in means], 0.0)[1]
    of_all = math.log(mean_new / mean_old) - log
    return Reading(log, error, middle - log, middle_error, of_all, all_error, one_sided)


def _squares(values: Sequence[float], mean: float) -> float:
    """Return the sum of squared distances from the mean."""
    return math.fsum((value - mean) ** 2 for value in values)


def _middle(values: Sequence[float], share: float) -> tuple[float, float]:
    """Return the mean of the values without a share at each end, and its standard error (Tukey & McLaughlin 1963)."""
    ordered, out = sorted(values), int(share * len(values))
    kept = ordered[out : len(ordered) - out]
    if len(kept) < 2:
        return fmean(kept), math.inf
    drawn_in = [*kept[:1] * out, *kept, *kept[-1:] * out]
    spread = math.sqrt(_squares(drawn_in, fmean(drawn_in)) / (len(values) - 1))
    return fmean(kept), spread * math.sqrt(len(values)) / len(kept)
