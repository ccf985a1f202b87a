"""Stirs a process's heap, so that chance decides where its objects lie, and not its code.

A change of code without any effect on the work still moves objects, and the new placement may make a call some percent
faster or slower (Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong!"). All processes
of one version have the same placement, so that no number of processes would show this error. If the placement is random
in every process, it becomes noise, which pairs average (Curtsinger & Berger 2013, "Stabilizer: statistically sound
performance evaluation").
"""

from __future__ import annotations

import math
import random

_BLOCKS = 2000
_LEAST_BYTES, _MOST_BYTES = 1, 16384
_kept: list[object] = []
"""The objects that stay until the process ends; the gaps between them are the blocks that were freed."""


def stir() -> None:
    """Allocate blocks of all sizes on the heap, some 4 MB in a few milliseconds, and free a random part of them."""
    draw = random.SystemRandom()
    stays = draw.random()
    for _ in range(_BLOCKS):
        size = math.exp(draw.uniform(math.log(_LEAST_BYTES), math.log(_MOST_BYTES)))
        # Objects smaller than the shortest bytes object have two sizes: a plain object's and a float's.
        block = (bytes(round(size)), object(), 1e9 + size)
        if draw.random() < stays:
            _kept.extend(block)
