"""Decides when warm-up and sampling end: calibrate repetitions, wait until readings agree, stop. Plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perflab.judging.statistics import relative_half_width
from perflab.measure.clocks import clock
from perflab.measure.clocks.clock import Sample

__tracebackhide__ = True  # pytest shows the user's frames of an error, not ours

SAMPLE_TARGET_NS = 1_000_000
"""Least duration of a sample, against which reading the clock (tens of ns) is negligible. Evictions count: cold calls
share no reading of the clock, so more calls would make a sample longer and no better."""
AGREEMENT = 0.10
"""Relative difference up to which two successive warm-up samples agree; a first call is off by far more."""
WARMUP_SHARE = 0.25
"""Share of the budget after which warm-up is given up and sampling begins, marked as not settled."""
MIN_SAMPLES = 3
TIGHT_MIN_SAMPLES = 6
"""Fewest samples that give a 95 % interval of the median; the interval is then the whole range of the samples."""
TIGHT_HALF_WIDTH = 0.02
"""Relative half-width of the median's interval that ends sampling. Processes differ by about as much, so knowing one
process better would say nothing more about the code."""
MIN_SAMPLING_NS = 300_000_000
"""Least time over which samples are spread: neighbours on a shared machine come and go within less."""
MAX_SAMPLES = 1000
MOST_REPETITIONS = 1_000_000
"""Largest number of calls in a sample: more are never needed, and a clock that has not moved by then never will."""
OVERRUN = 3.0
"""Number of budgets in which a case whose calls are longer than its budget may reach MIN_SAMPLES."""
CALLS_AT_LEAST = 7
"""Least number of calls of a measurement: two of warm-up, three samples, and two of the memory pass."""
ESTIMATE_SLACK = 1.5
"""Factor by which a time estimated from operations and a matmul rate may be off; a case on the edge is still tried."""
PATIENCE_AT_LEAST_S = 900.0
"""Least patience in seconds: a case may train, compile or download before it measures, without saying so."""
PATIENCE_FACTOR = 10.0
"""Patience in expected times: machines are busy and estimates off, but a case that takes this long does not end."""


@dataclass(frozen=True)
class Plan:
    """The time to measure, all in all. ``warmup`` is a fixed number of calls, or None: until readings agree."""

    budget_ns: float
    warmup: int | None = None
    least_samples_ns: float | None = None
    """Time in which MIN_SAMPLES may be reached beyond the budget, in nanoseconds; None: OVERRUN budgets."""
    brief: bool = False
    """Whether MIN_SAMPLES over MIN_SAMPLING_NS are enough, however uncertain their median: it is shown, not judged."""

    @property
    def longest_ns(self) -> float:
        """Longest time in which MIN_SAMPLES may be reached, in nanoseconds."""
        return OVERRUN * self.budget_ns if self.least_samples_ns is None else self.least_samples_ns


@dataclass(frozen=True)
class Warmup:
    """The result of warm-up: calls made, whether readings agreed, and how many calls make a sample.

    ``settled`` is None if the number of calls was fixed, so that agreement was not checked.
    """

    calls: int
    settled: bool | None
    repetitions: int
    readings_ns: tuple[int, ...] = ()
    """Time of one call in each reading, first to last."""
    call_lasts_ns: float = 0.0
    """Time of one call with its share of evictions and set-up between calls, from the fastest reading with these
    repetitions: other work may have made the last reading many times as long. After a fixed warm-up, from its last
    call."""


TimeOnce = Callable[[int], Sample]
"""Function that calls the workload a given number of times and returns the times as a sample."""
ReadNs = Callable[[], float]
"""Function that reads a clock in nanoseconds. Processes that take samples in step read the same value."""
Progress = Callable[[str], None]
"""Function that is called between samples with a description of the current work."""


def _read_ns() -> float:
    return clock.read_ns()


def repetitions_for(sample_ns: int, repetitions: int, most: int | None = None) -> int:
    """Return how many calls fill a sample, if ``repetitions`` calls took ``sample_ns``.

    The result is at most ``most``, which is ten times ``repetitions`` by default.
    """
    if sample_ns >= SAMPLE_TARGET_NS:
        return repetitions
    # A reading of zero says nothing but "more": go up by ten, and never by more at once, since first calls mislead.
    grown = math.ceil(repetitions * SAMPLE_TARGET_NS / sample_ns) if sample_ns > 0 else 10 * repetitions
    return max(1, min(grown, most or 10 * repetitions))


def warm_up(
    time_once: TimeOnce,
    plan: Plan,
    progress: Progress,
    most_calls: Callable[[float], float] = lambda _: math.inf,
    read_ns: ReadNs = _read_ns,
) -> Warmup:
    """Call the workload until two successive readings agree, or exactly ``plan.warmup`` times if that is set.

    Repetitions are calibrated on the way, so that a sample is long compared with the clock's own cost. With a fixed
    warm-up of 0 the first sample is the very first call, and a sample is one call. ``most_calls`` returns, after each
    reading, how many calls a sample may have within a budget.
    """
    if plan.warmup is not None:
        taken = [time_once(1) for _ in range(plan.warmup)]
        # The first call may be a thousand times slower than the rest; after a second one the time is known.
        most = MOST_REPETITIONS if len(taken) > 1 else None
        lasts_ns = taken[-1].lasted_ns if taken else 0
        repetitions = int(min(repetitions_for(lasts_ns, 1, most), most_calls(plan.budget_ns))) if taken else 1
        set_up_ns = taken[-1].set_up_ns if taken else 0
        return Warmup(plan.warmup, None, repetitions, tuple(one.total_ns for one in taken), lasts_ns + set_up_ns)

    start = read_ns()
    repetitions, calls = 1, 0
    readings_ns: list[int] = []
    previous: float | None = None
    fastest_ns = 0

    def ended(*, settled: bool) -> Warmup:
        return Warmup(calls, settled, repetitions, tuple(readings_ns), fastest_ns / repetitions)

    while True:
        progress(f"warm-up {len(readings_ns) + 1}")
        sample = time_once(repetitions)
        total_ns, lasted_ns = sample.total_ns, sample.lasted_ns
        calls += repetitions
        whole_ns = lasted_ns + sample.set_up_ns
        fastest_ns = whole_ns if previous is None else min(fastest_ns, whole_ns)
        reading = total_ns / repetitions
        readings_ns.append(round(reading))
        wanted = int(min(repetitions_for(lasted_ns, repetitions), most_calls(plan.budget_ns)))
        overdue = read_ns() - start > WARMUP_SHARE * plan.budget_ns
        if wanted > repetitions and not (overdue and total_ns > 0):
            # Readings with few repetitions are not comparable with those that follow.
            if total_ns <= 0 and repetitions >= MOST_REPETITIONS:
                return ended(settled=False)
            repetitions, previous = wanted, None
            continue
        if previous is not None and abs(reading - previous) <= AGREEMENT * min(reading, previous):
            return ended(settled=True)
        if overdue and (len(readings_ns) >= 2 or lasted_ns > plan.budget_ns):
            return ended(settled=False)
        previous = reading


def collect(
    time_once: TimeOnce,
    repetitions: int,
    plan: Plan,
    left_ns: float,
    progress: Progress,
    between: Callable[[], None],
    read_ns: ReadNs = _read_ns,
) -> list[Sample]:
    """Take samples until their median is known to 2 % or ``left_ns`` is spent. No sample is thrown away.

    At least MIN_SAMPLES are taken even if ``left_ns`` is spent, as long as they take no more than ``plan.longest_ns``.
    A brief plan takes no more than these once they are spread over MIN_SAMPLING_NS.
    ``between`` runs before each sample, outside of the timed span.
    """
    start = read_ns()
    samples: list[Sample] = []
    next_look = TIGHT_MIN_SAMPLES
    while True:
        spent_s = (read_ns() - start) / 1e9
        within = f", {spent_s:.0f} s of {left_ns / 1e9:.0f} s" if spent_s * 1e9 < left_ns else f" of {MIN_SAMPLES}"
        progress(f"sample {len(samples) + 1}{within}")
        between()
        samples.append(time_once(repetitions))
        elapsed = read_ns() - start
        taken = len(samples)
        enough_ns = min(left_ns, MIN_SAMPLING_NS) if plan.brief else left_ns
        if taken >= MAX_SAMPLES or (taken >= MIN_SAMPLES and elapsed >= enough_ns):
            return samples
        if taken < MIN_SAMPLES and elapsed + elapsed / taken > plan.longest_ns:
            return samples
        if taken >= next_look and elapsed >= MIN_SAMPLING_NS:
            if relative_half_width([s.total_ns for s in samples]) <= TIGHT_HALF_WIDTH:
                return samples
            # Looking after every sample would stop at the luckiest moment, and cost more than sampling.
            next_look = math.ceil(1.25 * taken)


def is_cut_short(samples: Sequence[Sample], plan: Plan, left_ns: float, lasted_ns: float) -> bool:
    """Whether a brief plan ended sampling before the median was known, where another plan would have gone on.

    ``lasted_ns`` is the time that ``collect`` took for these samples, of ``left_ns`` that it had.
    """
    if not plan.brief or lasted_ns >= left_ns or not MIN_SAMPLES <= len(samples) < MAX_SAMPLES:
        return False
    return len(samples) < TIGHT_MIN_SAMPLES or relative_half_width([s.total_ns for s in samples]) > TIGHT_HALF_WIDTH


def patience_s(budget_s: float, set_up_s: float = 0.0, call_s: float = 0.0) -> float:
    """Return for how many seconds a case may show no sign of life until it counts as hung.

    A sign of life is a reading, a sample, or the end of a phase.

    Args:
        budget_s: the case's budget.
        set_up_s: the time before measuring that the case declares.
        call_s: the time of a call that the case declares.
    """
    expected_s = OVERRUN * budget_s + set_up_s + CALLS_AT_LEAST * call_s
    return max(PATIENCE_AT_LEAST_S, PATIENCE_FACTOR * expected_s)
