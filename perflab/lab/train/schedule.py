"""The learning rate of each step: up in a straight line, then down along half a cosine.

t step, counted from 0; W warmup_steps, N total_steps, p peak, f final_share.

    t < W          p (t + 1) / W
    W <= t < N     p (f + (1 - f) (1 + cos(pi (t - W) / (N - W))) / 2)
    t >= N         p f

The cosine is one period of SGDR's, without restarts (Loshchilov & Hutter 2017, equation 5), from p down to f p. The
warm-up counts from 1, since a first step at learning rate 0 would be a step for nothing (Goyal et al. 2017, section
2.2 has warm-up's reasons). Without N the rate stays at p.
"""

from __future__ import annotations

import math


def learning_rate_at(
    step: int, *, peak: float, warmup_steps: int = 0, total_steps: int | None = None, final_share: float = 0.0
) -> float:
    """The learning rate of step number `step`, the first being 0; this module's equation.

    Args:
        step: 0 or more.
        peak: the highest rate, reached at the end of the warm-up.
        warmup_steps: steps of the warm-up, 0 for none.
        total_steps: the step from which on the rate is `final_share * peak`, more than `warmup_steps`; `None` for a
            rate that stays at the peak.
        final_share: share of the peak that is left in the end.

    Raises:
        ValueError: a negative step, or a total that leaves no step after the warm-up.
    """
    if step < 0:
        raise ValueError(f"step={step}: wanted 0 or more; the first step of a training run is 0")
    if total_steps is not None and total_steps <= warmup_steps:
        raise ValueError(
            f"total_steps={total_steps} with warmup_steps={warmup_steps} leaves no step for the cosine; "
            f"give total_steps={warmup_steps + 1} or more, or a shorter warm-up"
        )
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if total_steps is None:
        return peak
    progress = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return peak * (final_share + (1.0 - final_share) * (1.0 + math.cos(math.pi * progress)) / 2.0)
