"""How sides take turns, whether a side is a process or a callable in this process. Knows nothing of either.

A *block* is a random order of the sides followed by its reverse (A B B A, or B A A B), all on one core, the next block
on the next core: on a shared machine each core is slowed by neighbours of its own, for tenths of a second at a time.
Turns are a few milliseconds, so that a block mostly meets one state of the core. Each turn of one side is compared with
both of the other's in the same block.

A pair of processes gives log-ratios of the fastest calls of the turns, which other work hardly moves, and of the mean
calls, which are what users pay. They differ where only some calls became slower. Other work falls on single blocks,
and a cost in every few calls on all of them, so the means are those of the middle half of the blocks. A cost in one
call of a hundred is in few blocks too: the mean of all has it. ``judge/paired.py`` chooses, and judges pairs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean, median

from perflab.measured.judge.robust import robust_spread

TURN_NS = 4e6
"""A turn lasts at least about this long: long against the 50 µs in which a turn changes sides."""
MOST_SAMPLES = 8
"""Samples in a turn, at most."""
DISCARDED = 1.5
"""Samples that a side throws away at the beginning of a turn, on average (``measure/turns.py``)."""
LONG_NS = 50e6
"""A sample this long does not notice what the caches held before it."""
BLOCKS = 25
"""Blocks of a pair, if the time allows."""
SIDES = 2
"""Sides that are compared. A third one, the null control's, takes what room is left."""
LOPSIDED = 2.0
"""Other work disturbs both sides alike: where blocks of one differ so much more, it is its calls that differ."""
LEAST_CALLS = 5
"""Blocks are grouped until each side has so many calls in a group: of fewer, a cost in every tenth call meets too few
groups to be in the middle half of them."""
TRIMMED, LEAST_GROUPS = 0.25, 4
"""Share of the groups that is left out at each end. Of fewer groups than these nothing is."""
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
    """Whether a turn begins with samples that are thrown away: caches hold what the other side left there."""
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
    block_ns = 2 * SIDES * (samples + DISCARDED * rewarm) * sample_ns
    blocks = max(least_blocks, min(BLOCKS, int(budget_ns / max(block_ns, 1.0))))
    return Shape(repetitions, samples, rewarm, blocks)


def places(sides: Sequence[str], blocks: int, cores: Sequence[int], draw: random.Random) -> Iterator[Place]:
    """All turns of a pair, in order."""
    for block in range(blocks):
        order = draw.sample(list(sides), len(sides))
        core = cores[block % len(cores)] if cores else None
        for side in [*order, *reversed(order)]:
            yield Place(block, side, core)


@dataclass(frozen=True)
class TurnTime:
    """Time of one call in a turn, without what it waited for a core that other work had."""

    fastest_ns: float
    """In the fastest sample."""
    mean_ns: float
    """In all samples."""
    calls: int = 1


def turn_time(samples_ns: Sequence[int], waited_ns: Sequence[int], repetitions: int) -> TurnTime:
    """The time of one call in samples of so many calls each, during which it waited so long for a core."""
    own_ns = [max(1, sample - waited) for sample, waited in zip_longest(samples_ns, waited_ns, fillvalue=0)]
    return TurnTime(min(own_ns) / repetitions, fmean(own_ns) / repetitions, len(own_ns) * repetitions)


def together(sides: Sequence[Sequence[TurnTime]]) -> list[TurnTime]:
    """The turns of several processes of one side as one process's; as many as the shortest of them has."""
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
    """Log-ratios new / old of a pair of processes, with their standard errors as the pair's own blocks tell them."""

    log: float
    """Of the fastest calls."""
    error: float = 0.0
    """How much a disturbance has ruined ``log``."""
    excess: float = 0.0
    """How far the log-ratio of the mean calls, in the middle half of the blocks, lies above ``log``."""
    excess_error: float = 0.0
    excess_of_all: float = 0.0
    """The same of the mean calls in all blocks."""
    excess_of_all_error: float = 0.0
    one_sided: bool = False
    """Whether the blocks' means of new differ from each other by LOPSIDED times as much as those of old."""


def reading(new: Sequence[TurnTime], old: Sequence[TurnTime]) -> Reading | None:
    """The log-ratios of a pair; None if there is no whole block."""
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
    # Means are taken in units of what a call takes in the block at best, so that a slow block weighs as much as any.
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
    """The sum of squared distances from the mean."""
    return math.fsum((value - mean) ** 2 for value in values)


def _middle(values: Sequence[float], share: float) -> tuple[float, float]:
    """Mean of the values between a share at each end, and its standard error (Tukey & McLaughlin 1963)."""
    ordered, out = sorted(values), int(share * len(values))
    kept = ordered[out : len(ordered) - out]
    if len(kept) < 2:
        return fmean(kept), math.inf
    drawn_in = [*kept[:1] * out, *kept, *kept[-1:] * out]
    spread = math.sqrt(_squares(drawn_in, fmean(drawn_in)) / (len(values) - 1))
    return fmean(kept), spread * math.sqrt(len(values)) / len(kept)
