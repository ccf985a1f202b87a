"""Shares of the measured rate of matrix products (MFU), by the best rate that was read in the run. Pure.

Each case reads the rate for a moment, and a disturbance in that moment makes the work seem faster than the device
allows. The rate is a property of the device rather than the case, so the rate of the quietest moment holds for all.
"""

from __future__ import annotations

from collections.abc import Sequence

from perflab.base.data import changed
from perflab.results.environment import slug
from perflab.results.measurement import Record
from perflab.results.result import Result

_Key = tuple[str, str | None]
NO_TELLING = "can't tell"
_ROUNDED_TO_ALL = 1.005
"""A share must be below this to be plausible: the reading of the rate is no more precise."""


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
