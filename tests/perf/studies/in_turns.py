"""How much faster one call is than another: both in one process, in turns, block by block.

Two readings taken minutes apart are two machines, where others work on it too. Here each block has one turn of either,
which is first alternates, a turn is the best of a few calls, and what counts is the median of the blocks' ratios, with
its distribution-free interval. A burst of somebody else's work spoils the blocks that it falls into, not the median.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from perflab.instruments import median_interval, read_ns, synchronize

LEAST_BLOCKS = 6
"""Fewer have no interval of 95 %."""
MOST_BLOCKS = 60
_SHORT_NS = 100e6
"""Calls shorter than that are made three times a turn."""
_TIGHT = 0.01
"""Half the interval's width, from which on more blocks tell nothing new."""

Call = Callable[[], object]


@dataclass(frozen=True)
class InTurns:
    """What the turns said.

    speed    times the base's; 1.25: four calls of the base take as long as five
    noise    half the width of its 95 % interval, as a share
    call_ns  median of the turns of the call itself
    """

    speed: float
    noise: float
    call_ns: float


def in_turns(base: Call, call: Call, device: torch.device, *, seconds: float) -> InTurns:
    """Both calls must be warm. Ends when the ratio is known to a hundredth, or after so many seconds."""
    began_ns = read_ns()
    log_ratios: list[float] = []
    taken_ns: list[int] = []
    calls = 3 if _turn(call, device, 1) < _SHORT_NS else 1
    while len(log_ratios) < MOST_BLOCKS:
        if len(log_ratios) % 2:
            call_ns = _turn(call, device, calls)
            base_ns = _turn(base, device, calls)
        else:
            base_ns = _turn(base, device, calls)
            call_ns = _turn(call, device, calls)
        log_ratios.append(math.log(base_ns / call_ns))
        taken_ns.append(call_ns)
        if len(log_ratios) >= LEAST_BLOCKS:
            low, high = median_interval(log_ratios)
            if (high - low) / 2 <= _TIGHT or read_ns() - began_ns > seconds * 1e9:
                break
    low, high = median_interval(log_ratios)
    return InTurns(math.exp(median(log_ratios)), math.expm1((high - low) / 2), median(taken_ns))


def _turn(call: Call, device: torch.device, calls: int) -> int:
    """Nanoseconds of the fastest of so many calls."""
    fastest: int | None = None
    for _ in range(calls):
        synchronize(device)
        began = read_ns()
        call()
        synchronize(device)
        taken = read_ns() - began
        fastest = taken if fastest is None else min(fastest, taken)
    assert fastest is not None
    return fastest
