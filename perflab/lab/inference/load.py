"""Offered load: requests that arrive by themselves, whether the model is ready or not.

    arrivals of a Poisson process with rate r: gaps are exponential with mean 1 / r

Requests that are sent only when an earlier one has ended (a closed loop) hide waiting: a slow server then gets fewer of
them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from perflab.lab.inference.sampling import uniform
from perflab.lab.inference.scheduler import Request, Scheduler


@dataclass
class Answered:
    """When a request arrived, and when each of its tokens came, in seconds of the clock."""

    arrival_s: float
    tokens_s: list[float] = field(default_factory=list)


def poisson_arrivals(rate_per_s: float, number: int, seed: int = 0) -> list[float]:
    """Moments of arrival in seconds, the first at its own gap after 0.

    Raises:
        ValueError: a rate that is not positive and finite, or no request.
    """
    if not (math.isfinite(rate_per_s) and rate_per_s > 0) or number < 1:
        raise ValueError(f"{number} requests at {rate_per_s} per second: wanted 1 or more, at a positive rate")
    u = uniform(torch.full((number,), seed), torch.arange(number))
    return (-(1 - u).log() / rate_per_s).cumsum(0).tolist()


def drive(
    scheduler: Scheduler,
    requests: Sequence[Request],
    arrivals_s: Sequence[float],
    *,
    now: Callable[[], float] = time.perf_counter,
    wait: Callable[[float], None] = time.sleep,
) -> list[Answered]:
    """Submit each request when it arrives, step until all are answered, and say when each token came.

    Args:
        scheduler: idle.
        requests, arrivals_s: what is asked, and when, in order; seconds after the start.
        now, wait: the clock, and how to wait for so many seconds when there is nothing to do.
    """
    start = now()
    answered: dict[int, Answered] = {}
    coming: Iterator[tuple[float, Request]] = iter(zip(arrivals_s, requests, strict=True))
    following = next(coming, None)
    while following is not None or not scheduler.is_idle:
        if scheduler.is_idle and following is not None:
            wait(max(0.0, following[0] - (now() - start)))
        # One that was waited for is there, whatever rounding makes of the clock.
        while following is not None and (scheduler.is_idle or following[0] <= now() - start):
            answered[scheduler.submit(following[1])] = Answered(following[0])
            following = next(coming, None)
        made = scheduler.step()
        at = now() - start
        for token in made:
            answered[token.request].tokens_s.append(at)
    return list(answered.values())
