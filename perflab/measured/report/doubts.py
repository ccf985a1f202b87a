"""Lines below the tables about the limits of the numbers. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from perflab.measured.report.judged import judged
from perflab.measured.report.matmul_rate import NO_TELLING, share_of_rate, with_best_rates
from perflab.report.lines import names_of, short_name
from perflab.results import Result
from perflab.units import format_names, format_percent, format_rate

_NO_LIMIT = 1.0
"""A limit this share above the baseline detects nothing: code may take twice as long."""


def beyond_the_rate(results: Sequence[Result]) -> list[str]:
    """Return a line on the cases whose share of the matmul rate is implausible, and why."""
    beyond = [result for result in with_best_rates(results) if _is_beyond(result)]
    if not beyond:
        return []
    rate = max((result.record.matmul_flops_per_second or 0.0) for result in beyond if result.record is not None)
    return [
        f"MFU: {NO_TELLING} for {format_names(names_of(beyond))}: more FLOP/s than plain matrix products reach here "
        f"({format_rate(rate, 'FLOP')}). Either other processes disturbed the measurement of that rate, "
        "or flops= is too large"
    ]


def _is_beyond(result: Result) -> bool:
    record, reading = result.record, judged(result)
    if record is None or reading is None:
        return False
    phases_ns = {f"{phase}_flops": phase_ns for phase, phase_ns in reading.phases_ns.items()}
    times_ns = {"flops": reading.median_ns} | phases_ns
    return NO_TELLING in [
        share_of_rate(record.work[unit], taken_ns, record) for unit, taken_ns in times_ns.items() if unit in record.work
    ]


def noisy_baselines(results: Sequence[Result], threshold: float, width: int) -> list[str]:
    """Return lines on slowdowns that the run cannot detect: cases whose limit is more than twice the threshold."""
    limits = {
        result.case: result.judgement.latency.limit - 1.0
        for result in results
        if result.judgement.latency is not None
        and result.judgement.latency.limit is not None
        and not (result.saved or result.judgement.few_runs)
    }
    noisy = {case: limit for case, limit in limits.items() if limit > 2 * threshold}
    if not noisy:
        return []
    worst = max(noisy, key=lambda case: noisy[case])
    bounds = [limit for limit in sorted(noisy.values()) if limit < _NO_LIMIT]
    lost = len(noisy) - len(bounds)
    span = list(dict.fromkeys(format_percent(limit) for limit in (bounds[:1] + bounds[-1:])))
    one = len(noisy) == 1
    said = [f"{'detects' if one else 'detect'} only changes above {' to '.join(span)}"] if span else []
    said += [f"cannot detect a doubled time ({lost})"] if lost else []
    many = f"{len(noisy)} of {len(limits)} baseline{'s' * (len(limits) != 1)}"
    text = f"{many} {'is' if one else 'are'} noisy, and {', or '.join(said)}"
    return [
        *textwrap.wrap(text, width, subsequent_indent="  "),
        f"  (worst: {short_name(worst)}); save {'it' if one else 'them'} again on a quieter machine: --perf-update",
    ]
