"""Statistics of serving: latencies of requests, throughput of a server, and the load at which it saturates. Public.

Pure functions of plain records, in seconds of one clock. ``docs/inference.md`` compares the definitions with those of
vLLM and GuideLLM. Importing this module loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from perflab.base.errors import UsageError
from perflab.judging.statistics import SHARES, quantile, quantile_interval

KEEPS_UP = 0.95
"""Least share of the offered rate that a server must complete to keep up; a run's last requests end after the run."""


@dataclass(frozen=True)
class Request:
    """One request. ``outputs_s``: the time of each streamed output; the first output holds the first token."""

    arrival_s: float
    outputs_s: tuple[float, ...] = ()
    tokens: int | None = None
    """Number of tokens in all outputs; None means one in each. Speculative decoding gives several tokens in one."""
    is_cancelled: bool = False
    """Whether the request was cancelled before its end, or failed."""

    def __post_init__(self) -> None:
        moments = (self.arrival_s, *self.outputs_s)
        if not all(map(math.isfinite, moments)) or any(late < early for early, late in pairwise(moments)):
            raise UsageError(
                f"Request(arrival_s={self.arrival_s}, outputs_s={self.outputs_s}): moments that are not in order",
                "give seconds of one clock: the arrival, and then each output",
            )
        if self.tokens is not None and self.tokens < len(self.outputs_s):
            raise UsageError(
                f"Request(tokens={self.tokens}) with {len(self.outputs_s)} outputs",
                "count the tokens of all outputs: at least one in each",
            )

    @property
    def is_complete(self) -> bool:
        """Whether the request ended normally, with at least one token."""
        return bool(self.outputs_s) and not self.is_cancelled

    @property
    def num_tokens(self) -> int:
        """The number of tokens received."""
        return len(self.outputs_s) if self.tokens is None else self.tokens

    @property
    def ttft_s(self) -> float | None:
        """Time from the arrival to the first token, including waiting in a queue; None without an output."""
        return self.outputs_s[0] - self.arrival_s if self.outputs_s else None

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first: ``(end - first) / (tokens - 1)``; None for fewer than two tokens."""
        return (self.outputs_s[-1] - self.outputs_s[0]) / (self.num_tokens - 1) if self.num_tokens > 1 else None


@dataclass(frozen=True)
class Percentile:
    """A quantile with its 95 % interval by order statistics; both bounds are None for too few values."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Served:
    """Statistics of a server over some requests. Percentiles are by name: ``p50``, ``p90``, ``p99``."""

    duration_s: float
    completed: int
    cancelled: int
    unanswered: int
    """Number of requests that are neither cancelled nor complete."""
    ttft_s: Mapping[str, Percentile]
    tpot_s: Mapping[str, Percentile]
    """Time per output token of complete requests with two tokens or more; each request counts once."""
    itl_s: Mapping[str, Percentile]
    """Time between successive outputs of a request, pooled over all complete requests."""
    requests_per_s: float
    """Complete requests per second."""
    tokens_per_s: float
    """Tokens per second of all requests, including cancelled ones: the server generated them."""


def served(requests: Iterable[Request], *, duration_s: float | None = None) -> Served:
    """Summarise requests. Percentiles are of complete requests.

    Args:
        requests: the requests, in any order.
        duration_s: duration of the measurement. None: from the first arrival to the last output.

    Raises:
        UsageError: there is no request, or the duration is not positive.
    """
    found = list(requests)
    whole_s = _duration_s(found, duration_s)
    complete = [one for one in found if one.is_complete]
    cancelled = sum(one.is_cancelled for one in found)
    gaps_s = [late - early for one in complete for early, late in pairwise(one.outputs_s)]
    return Served(
        duration_s=whole_s,
        completed=len(complete),
        cancelled=cancelled,
        unanswered=len(found) - len(complete) - cancelled,
        ttft_s=percentiles(one.ttft_s for one in complete),
        tpot_s=percentiles(one.tpot_s for one in complete),
        itl_s=percentiles(gaps_s),
        requests_per_s=len(complete) / whole_s,
        tokens_per_s=sum(one.num_tokens for one in found) / whole_s,
    )


def goodput(
    requests: Iterable[Request], *, ttft_s: float = math.inf, tpot_s: float = math.inf, duration_s: float | None = None
) -> float:
    """Return complete requests per second that met both limits; ``tpot_s`` does not apply to a single token.

    Raises:
        UsageError: as for ``served``, or a limit is not positive.
    """
    for name, limit in (("ttft_s", ttft_s), ("tpot_s", tpot_s)):
        if not limit > 0:
            raise UsageError(f"goodput({name}={limit})", "give a limit in seconds, above 0")
    found = list(requests)
    whole_s = _duration_s(found, duration_s)
    good = [one for one in found if one.is_complete and (one.ttft_s or 0.0) <= ttft_s and (one.tpot_s or 0.0) <= tpot_s]
    return len(good) / whole_s


def saturation(completed_per_s: Mapping[float, float]) -> tuple[float | None, float | None]:
    """Find the rate at which a server saturates: it completes less than ``KEEPS_UP`` of it and of all higher rates.

    Args:
        completed_per_s: offered rate -> requests completed per second.

    Returns:
        The highest offered rate below saturation, and the lowest one at saturation; None for a rate that was not tried.

    Raises:
        UsageError: no rate was tried, or a rate is not positive.
    """
    rates = sorted(completed_per_s)
    if not rates or not rates[0] > 0:
        raise UsageError(f"saturation({dict(completed_per_s)})", "give completed rates by offered rate, each above 0")
    behind = len(rates)
    while behind and completed_per_s[rates[behind - 1]] < KEEPS_UP * rates[behind - 1]:
        behind -= 1
    return (rates[behind - 1] if behind else None, rates[behind] if behind < len(rates) else None)


def percentiles(values: Iterable[float | None]) -> dict[str, Percentile]:
    """Return the quantiles of values that are not None: ``p99`` needs 368 values, ``p90`` 36, ``p50`` one."""
    ordered = sorted(one for one in values if one is not None)
    found: dict[str, Percentile] = {}
    for name, share in SHARES.items() if ordered else ():
        interval = quantile_interval(ordered, share)
        if interval is not None or name == "p50":
            found[name] = Percentile(quantile(ordered, share), *(interval or (None, None)))
    return found


def _duration_s(found: Sequence[Request], given_s: float | None) -> float:
    if not found:
        raise UsageError("no request", "give the requests that were measured")
    last_s = max(max(one.outputs_s, default=one.arrival_s) for one in found)
    whole_s = last_s - min(one.arrival_s for one in found) if given_s is None else given_s
    if not 0 < whole_s < math.inf:
        raise UsageError(f"the requests last {whole_s} s", "give duration_s=, how long was measured: above 0")
    return whole_s
