"""Statistics of a case's samples for tables. Times are nanoseconds of one call."""

from __future__ import annotations

from statistics import median

from perflab.measure.records import Measurement, per_call_ns


def slowest_ns(measurement: Measurement) -> float:
    """The slowest sample."""
    return max(per_call_ns(measurement.samples_ns, measurement.repetitions))


def interquartile_range_ns(measurement: Measurement) -> float | None:
    """Third less first quartile; None of a single sample.

    Of an odd number of samples a quartile is the mean of the halves' medians without and with the middle sample in
    both, as pytest-benchmark has it: the numbers of the two are the same.
    """
    ordered = sorted(per_call_ns(measurement.samples_ns, measurement.repetitions))
    size = len(ordered)
    if size < 2:
        return None
    without, within = size // 2, (size + 1) // 2
    first = (median(ordered[:without]) + median(ordered[:within])) / 2
    third = (median(ordered[size - without :]) + median(ordered[size - within :])) / 2
    return third - first
