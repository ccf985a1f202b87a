"""The verdict on one quantity, the worst of several, and that of turns where stored numbers cannot decide.

A stored time depends on the state of the machine at the hour in which it was taken; the baseline's commit does not. On
a shared machine, a few interleaved pairs of the two versions decide what medians of two hours cannot. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perflab.judging.interleave import Reading
from perflab.judging.paired import PairedCase, PairedPolicy, latency_findings
from perflab.judging.statistics import ratio_of
from perflab.results.measurement import Paired, Replicate
from perflab.results.records import Change, Drift, Policy, Verdict
from perflab.units import format_change

_ORDER = (Verdict.REGRESSED, Verdict.INCONCLUSIVE, Verdict.IMPROVED, Verdict.OK)
"""Verdicts in the order of precedence: the first one found decides for the case."""
BAD = (Verdict.REGRESSED, Verdict.INCONCLUSIVE)
LOOKS = (7, 9, 12, 16)
"""Numbers of pairs after which a suspect is judged. They are smaller than in an A/B comparison that a user asks for:
the threshold is larger, and a user waits for the test."""


@dataclass(frozen=True)
class Finding:
    """The verdict on one quantity, compared with one baseline or anchor."""

    change: Change | None
    verdict: Verdict
    reasons: Sequence[str] = ()
    is_plain: bool = False
    """Whether the case is slower, and the only possible doubt is the baseline's number of processes."""


NOT_COMPARED = Finding(None, Verdict.OK)
"""The finding on a quantity without values to compare."""


def worst_of(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict on a case from the verdicts on its quantities."""
    return min(verdicts, key=_ORDER.index)


def worse_of_two(newer: Finding, older: Finding, recorded: str, steps: int) -> tuple[Finding, Drift]:
    """Choose between a finding against the baseline and one against its anchor; return the finding and the drift.

    The anchor can only make the verdict worse.
    """
    assert older.change is not None
    decides = older.verdict in BAD and _ORDER.index(older.verdict) < _ORDER.index(newer.verdict)
    drift = Drift(recorded=recorded, steps=steps, change=older.change, decides=decides)
    if decides or (older.verdict is newer.verdict is Verdict.OK and not newer.reasons):
        said = [f"against its anchor of {recorded}: {reason}" for reason in older.reasons]
        return Finding(older.change if decides else newer.change, older.verdict, said), drift
    return newer, drift


def turns_policy(policy: Policy) -> PairedPolicy:
    """Return the policy of interleaved runs that decide unsettled cases: the threshold is that of stored numbers."""
    return PairedPolicy(threshold=policy.threshold, looks=LOOKS)


def is_unsettled(stored: Finding, now: Sequence[Replicate], before: Sequence[Replicate], policy: Policy) -> bool:
    """Whether stored numbers cannot tell whether the code became slower or faster."""
    if stored.verdict is not Verdict.OK:
        return stored.verdict in (Verdict.INCONCLUSIVE, Verdict.IMPROVED)
    # Medians of a busy hour hide a slowdown. The fastest calls hide less. One process's fastest call against the
    # fastest of three processes is a strict test on purpose: most cases that fail it are unchanged, which costs each
    # two pairs of processes, and few cases that became a tenth slower pass it (docs/measuring.md, "The gate, tried").
    fastest_ns, before_ns = (min(r.fastest_ns for r in group) for group in (now, before))
    return fastest_ns / before_ns > 1.0 + policy.threshold / 2.0 and fastest_ns - before_ns > policy.floor_ns


def as_ratios(logs: Sequence[float]) -> list[float]:
    """Return log-ratios as the ratios that ``Paired`` keeps: seven significant digits, since 0 has no logarithm."""
    return [float(f"{ratio_of(log):.7g}") for log in logs]


def after_turns(stored: Finding, paired: Paired, policy: Policy) -> Finding:
    """Return the finding on a case's time once it was measured interleaved with the code of the stored times.

    ``stored`` is the finding against the stored times, which the reasons mention if the two disagree.
    """
    assert stored.change is not None
    assert paired.base_ns is not None
    screen, confirm, control = (
        [math.log(ratio) for ratio in ratios] for ratios in (paired.screen, paired.confirm, paired.control)
    )
    floor = math.log1p(policy.floor_ns / paired.base_ns)
    # The control's ratios are already of the calls that are judged, with the excess removed.
    case = PairedCase(screen, confirm, paired.judged, paired.uneven, floor=floor)
    found = latency_findings({"": case}, {"": [Reading(log) for log in control]}, turns_policy(policy))[""]
    found = found.timed(paired.base_ns, policy.floor_ns)
    said = f"A/B with {paired.against}: {format_change(found.change.ratio)}"
    if stored.verdict in (Verdict.INCONCLUSIVE, Verdict.IMPROVED) and found.verdict is Verdict.OK:
        said += f"; against the stored times: {format_change(stored.change.ratio)}"
        if stored.change.limit is not None and stored.change.ratio > stored.change.limit:
            said += "; if it stays slower, check the installed packages"
    return Finding(found.change, found.verdict, [said, *found.reasons])
