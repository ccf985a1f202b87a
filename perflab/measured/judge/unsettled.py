"""Finds what stored numbers cannot decide, and judges it by an interleaved run with the baseline's commit. Pure.

A stored number is as good as the hour in which it was taken. The commit that it was taken at is as good today: on a
shared machine the two versions, side by side, tell in a few pairs what medians of two hours never will.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from perflab.compared.interleave import Reading
from perflab.compared.judge.paired import PairedCase, PairedFinding, PairedPolicy, latency_findings
from perflab.measure.records import Paired, Replicate
from perflab.measured.judge.finding import Finding
from perflab.measured.judge.robust import ratio_of
from perflab.records import Policy, Verdict
from perflab.units import format_change

LOOKS = (7, 9, 12, 16)
"""Numbers of pairs after which a suspect is judged. Fewer than where an A/B comparison was asked for: the
threshold is a larger one, and somebody waits for a test."""


def turns_policy(policy: Policy) -> PairedPolicy:
    """How turns are judged that settle what stored numbers cannot tell: by the threshold of stored numbers."""
    return PairedPolicy(threshold=policy.threshold, looks=LOOKS)


def is_unsettled(stored: Finding, now: Sequence[Replicate], before: Sequence[Replicate], policy: Policy) -> bool:
    """Whether more than stored numbers is needed to tell whether the code became slower, or faster."""
    if stored.verdict is not Verdict.OK:
        return stored.verdict in (Verdict.INCONCLUSIVE, Verdict.IMPROVED)
    # Medians of a busy hour hide a slowdown. The fastest calls hide less, and those of one process against the
    # fastest of three are a hard standard on purpose: most cases that fail it are innocent, which costs each two
    # pairs of processes, and of those that became a tenth slower few pass it (docs/measuring.md, "The gate, tried").
    fastest_ns, before_ns = (min(r.fastest_ns for r in group) for group in (now, before))
    return fastest_ns / before_ns > 1.0 + policy.threshold / 2.0 and fastest_ns - before_ns > policy.floor_ns


def as_ratios(logs: Sequence[float]) -> list[float]:
    """Log-ratios as ``Paired`` keeps them: seven digits, however small, since a ratio of 0 would have no logarithm."""
    return [float(f"{ratio_of(log):.7g}") for log in logs]


def _found_in_turns(paired: Paired, policy: Policy) -> PairedFinding:
    """What the pairs say, by the rules of an A/B comparison."""
    assert paired.base_ns is not None
    screen, confirm, control = (
        [math.log(ratio) for ratio in ratios] for ratios in (paired.screen, paired.confirm, paired.control)
    )
    floor = math.log1p(policy.floor_ns / paired.base_ns)
    # The control's ratios are of the calls that are judged already, and have no excess left.
    case = PairedCase(screen, confirm, paired.judged, paired.uneven, floor=floor)
    found = latency_findings({"": case}, {"": [Reading(log) for log in control]}, turns_policy(policy))[""]
    return found.timed(paired.base_ns, policy.floor_ns)


def after_turns(stored: Finding, paired: Paired, policy: Policy) -> Finding:
    """What counts of a case's time once it was measured A/B with the code that the stored one was saved from."""
    assert stored.change is not None
    found = _found_in_turns(paired, policy)
    said = f"A/B with {paired.against}: {format_change(found.change.ratio)}"
    if stored.verdict in (Verdict.INCONCLUSIVE, Verdict.IMPROVED) and found.verdict is Verdict.OK:
        said += f"; against the stored times: {format_change(stored.change.ratio)}"
        if stored.change.limit is not None and stored.change.ratio > stored.change.limit:
            said += "; if it stays slower, check the installed packages"
    return Finding(found.change, found.verdict, [said, *found.reasons])
