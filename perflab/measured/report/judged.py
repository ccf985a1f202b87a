"""The judged reading of a case, and its share of the measured rate of matrix products (MFU). Pure.

All figures of a case's row come from its judged reading, so that they agree. Each case reads the matmul rate for a
moment, and a disturbance in that moment makes the work seem faster than the device allows. The rate is a property of
the device rather than the case, so the rate of the quietest moment of the run holds for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median, median_low

from perflab.base.data import changed
from perflab.results.environment import slug
from perflab.results.measurement import Measurement, Record, Replicate
from perflab.results.result import Result

_Key = tuple[str, str | None]
NO_TELLING = "can't tell"
_ROUNDED_TO_ALL = 1.005
"""A share must be below this to be plausible: the reading of the rate is no more precise."""


@dataclass(frozen=True)
class Reading:
    """Times of one call in nanoseconds. A field is None if the judged reading does not have it."""

    median_ns: float
    noise: float | None
    """Half the width of the median's 95 % interval, as a share; None if unknown."""
    samples: int
    fastest_ns: float | None = None
    mean_ns: float | None = None
    std_ns: float | None = None
    first_ns: float | None = None
    phases_ns: dict[str, float] = field(default_factory=dict)
    measurement: Measurement | None = None
    """The samples themselves; None if other processes took the judged samples."""


def judged(result: Result) -> Reading | None:
    """Return the session's own reading, the middle of the fresh processes', or that of interleaved pairs.

    None if nothing was measured. Pairs give typical times only: of the whole call and, in an A/B comparison, of its
    phases.
    """
    record, latency = result.record, result.judgement.latency
    if record is None or record.summary is None:
        return None
    here = record.summary
    if latency is not None and (record.paired or record.paired_to_anchor):
        # Phases of an unsettled case were judged by other readings, before the interleaved run.
        phases = result.judgement.phases if record.compares else {}
        phases_ns = {name: change.now for name, change in phases.items()}
        low, high = latency.low, latency.high  # of the pairs, not of the samples
        noise = (high - low) / (2 * latency.ratio) if low is not None and high is not None and latency.ratio else None
        return Reading(latency.now or here.median_ns, noise, here.samples, phases_ns=phases_ns)
    if record.fresh:
        return _middle(record.fresh, latency.now if latency is not None else None)
    return Reading(
        here.median_ns,
        here.noise,
        here.samples,
        here.fastest_ns,
        here.mean_ns,
        here.std_ns if here.samples > 1 else None,
        here.first_ns,
        dict(here.phases_ns),
        record.measurement,
    )


def _middle(fresh: Sequence[Replicate], judged_ns: float | None) -> Reading:
    """Return the middle of fresh processes, figure by figure.

    The median is the judge's. Figures that are in order in each process stay in order.
    """

    def of(read: Callable[[Replicate], float]) -> float:
        return median(map(read, fresh))

    firsts = [one.first_ns for one in fresh if one.first_ns is not None]
    samples = median_low(one.samples for one in fresh)
    names = [name for name in fresh[0].phases_ns if all(name in one.phases_ns for one in fresh)]
    return Reading(
        judged_ns or of(lambda one: one.median_ns),
        of(lambda one: one.noise),
        samples,
        min(one.fastest_ns for one in fresh),
        of(lambda one: one.mean_ns),
        of(lambda one: one.std_ns) if samples > 1 else None,
        median(firsts) if firsts else None,
        {name: median(one.phases_ns[name] for one in fresh) for name in names},
    )


def share_of_rate(flops: float, ns: float, record: Record) -> float | str | None:
    """Return the share of the matmul rate that the work reached.

    None without a rate; ``NO_TELLING`` if the share would exceed 100 %.
    """
    rate = record.matmul_flops_per_second
    if rate is None or ns <= 0:
        return None
    share = flops / (ns / 1e9) / rate
    return share if share < _ROUNDED_TO_ALL else NO_TELLING


def with_best_rates(results: Sequence[Result]) -> list[Result]:
    """Return the results, each record's rate raised to the best of its machine and precision in the run."""
    best: dict[_Key, float] = {}
    for record in (result.record for result in results if result.record is not None):
        if record.matmul_flops_per_second is not None:
            best[_key(record)] = max(record.matmul_flops_per_second, best.get(_key(record), 0.0))
    return [_raised(result, best) for result in results]


def _raised(result: Result, best: dict[_Key, float]) -> Result:
    record = result.record
    if record is None or record.matmul_flops_per_second is None or record.matmul_precision is None:
        return result  # older files do not have the precision
    return changed(result, outcome=changed(record, matmul_flops_per_second=best[_key(record)]))


def _key(record: Record) -> _Key:
    return slug(record.environment), record.matmul_precision
