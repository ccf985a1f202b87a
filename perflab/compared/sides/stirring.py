"""Stirs a process's heap, so that where its objects come to lie is drawn by chance and not made by its code.

A change of code that does nothing moves objects, and a call may be some percent faster or slower for where they lie
(Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong!"). Processes of one version all
lie alike, so that no number of them would show it. Drawn anew in every process, it is noise like other noise, which
pairs average (Curtsinger & Berger 2013, "Stabilizer: statistically sound performance evaluation").
"""

from __future__ import annotations

import math
import random

_BLOCKS = 2000
_LEAST_BYTES, _MOST_BYTES = 1, 16384
_kept: list[object] = []
"""What stays until the process ends; between it lies what was given back."""


def stir() -> None:
    """Take blocks of all sizes from the heap, and give a part of them back: some 4 MB, in a few milliseconds."""
    draw = random.SystemRandom()
    stays = draw.random()
    for _ in range(_BLOCKS):
        size = math.exp(draw.uniform(math.log(_LEAST_BYTES), math.log(_MOST_BYTES)))
        # Of objects that are smaller than the shortest bytes there are two sizes.
        block = (bytes(round(size)), object(), 1e9 + size)
        if draw.random() < stays:
            _kept.extend(block)
