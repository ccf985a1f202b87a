"""What stored numbers cannot tell, and what turns with the code that they were saved from then say. Pure.

A stored number is as good as the hour in which it was taken. The commit that it was taken at is as good today: on a
shared machine the two versions, side by side, tell in a few pairs what medians of two hours never will.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from perflab.gate.finding import BAD, Finding
from perflab.gate.paired import PairedCase, PairedPolicy, latency_findings
from perflab.records import Drift, Paired, Policy, Replicate, Verdict
from perflab.units import format_change

LOOKS = (8, 12, 16)
"""Numbers of confirming pairs after which a case is judged. Fewer than where a comparison in turns was asked for: the
threshold is a larger one, and somebody waits for a test."""


def turns_policy(policy: Policy) -> PairedPolicy:
    """How turns are judged that settle what stored numbers cannot tell: by the threshold of stored numbers."""
    return PairedPolicy(threshold=policy.threshold, looks=LOOKS)


def is_unsettled(stored: Finding, now: Sequence[Replicate], before: Sequence[Replicate], policy: Policy) -> bool:
    """Whether more than stored numbers is needed to tell whether the code became slower."""
    if stored.verdict is not Verdict.OK:
        return stored.verdict is Verdict.INCONCLUSIVE
    # Medians of a busy hour hide a slowdown. The fastest calls hide less. Most cases whose fastest calls are this
    # much slower are innocent all the same; that costs each two pairs of processes.
    fastest_ns, before_ns = min(r.fastest_ns for r in now), min(r.fastest_ns for r in before)
    return fastest_ns / before_ns > 1.0 + policy.threshold / 2.0 and fastest_ns - before_ns > policy.floor_ns


def after_turns(stored: Finding, paired: Paired, policy: Policy) -> Finding:
    """What counts of a case's time once it was measured in turns with the code that its baseline was saved from."""
    assert stored.change is not None
    assert paired.base_ns is not None
    screen, confirm, control = (
        [math.log(ratio) for ratio in ratios] for ratios in (paired.screen, paired.confirm, paired.control)
    )
    found = latency_findings({"": PairedCase(screen, confirm)}, control, turns_policy(policy))[""]
    now_ns = round(paired.base_ns * found.change.ratio, 3)
    change = msgspec.structs.replace(found.change, before=paired.base_ns, now=now_ns)
    said = f"in turns with {paired.against}: {format_change(change.ratio)}"
    if found.verdict is Verdict.REGRESSED and now_ns - paired.base_ns <= policy.floor_ns:
        return Finding(change, Verdict.OK, [f"{said}, less than --perf-floor"])
    if found.verdict is Verdict.REGRESSED:
        return Finding(change, found.verdict, found.reasons)  # whom it is compared with, the headline says
    if found.verdict is Verdict.OK:
        said += f"; the stored number alone ({format_change(stored.change.ratio)}) could not tell"
    return Finding(change, found.verdict, [said, *found.reasons])


def drift_after_turns(drift: Drift, settled: Finding) -> Drift:
    """A comparison with an anchor: if it was the one that decided, the turns were with the anchor's code."""
    if not drift.decides or settled.change is None:
        return drift
    return msgspec.structs.replace(drift, change=settled.change, decides=settled.verdict in BAD)
