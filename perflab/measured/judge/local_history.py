"""Decides which readings form a machine's own history of a case. Pure.

A history is what later runs are compared with, so it holds readings of one state of the code and the machine alone: a
new one joins those that it agrees with, takes their place, or is left out. They never mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from perflab.data import changed
from perflab.measured.judge.judge import judge
from perflab.measured.records import Baseline, Entry, MeasuredCase
from perflab.records import ENOUGH_RUNS, Policy, Verdict
from perflab.units import format_ns

KEPT_REPLICATES = 5
"""Runs of unchanged times that a history is made of. Later ones add nothing that these do not tell."""
FAR = 1.5
"""Readings of the same code that are this far apart are of two states of the machine: people are told."""


@dataclass(frozen=True)
class Reading:
    """What a run measured of a case."""

    entry: Entry
    policy: Policy
    """What the case is judged by."""
    is_worse: bool = False
    """Whether it regressed: its times are nothing to compare with."""


@dataclass(frozen=True)
class Step:
    """What a run does to a case's history."""

    entry: Entry
    """The history from now on."""
    is_begun: bool = False
    """Whether there was none before."""
    begun_anew: str | None = None
    """Why the reading took the place of a history that times were compared with."""
    left_out: str | None = None
    """The typical time before and now, where it did not, though the code is the same and they are ``FAR`` apart."""


def next_step(old: Entry | None, new: Entry, policy: Policy) -> Step:
    """What becomes of a history ``old`` once a run has measured ``new``.

    A reading that the judge finds unchanged joins; so does one of the same code that is not ``FAR`` off, while there
    are too few to know what they differ by. A faster one takes the place of a history of other code, and of a single
    reading of the same code: what disturbs a reading makes it slower. Any other is left out, else a slowdown would
    become what later runs are compared with.
    """
    if old is None or old.environment != new.environment or not old.replicates:
        return Step(new, is_begun=True)
    before, now = _typical_ns(old), _typical_ns(new)
    is_short = len(old.replicates) < ENOUGH_RUNS
    joined = changed(old, replicates=[*old.replicates, *new.replicates][:KEPT_REPLICATES])
    if _is_mixed(old, policy):
        return Step(new, begun_anew=f"two kinds of times before, {format_ns(now)} now")
    if _agrees(old, new, policy) or (is_short and _is_same_code(old, new) and not _is_mixed(joined, policy)):
        return Step(joined)
    if now < before and (len(old.replicates) == 1 or not _is_same_code(old, new)):
        return Step(new, begun_anew=None if is_short else f"faster code: {_beside(before, now)}")
    return Step(old, left_out=unexplained(old, new))


def unexplained(old: Entry, new: Entry) -> str | None:
    """What is said of times ``FAR`` apart that no change of code explains; None where there is nothing to say."""
    if old.environment != new.environment or not _is_same_code(old, new) or not (old.replicates and new.replicates):
        return None
    before, now = _typical_ns(old), _typical_ns(new)
    return _beside(before, now) if max(before / now, now / before) >= FAR else None


def _is_same_code(old: Entry, new: Entry) -> bool:
    return new.commit is not None and old.commit == new.commit and not new.commit.endswith("+dirty")


def _typical_ns(entry: Entry) -> float:
    return median(one.median_ns for one in entry.replicates)


def _beside(before_ns: float, now_ns: float) -> str:
    return f"{format_ns(before_ns)} before, {format_ns(now_ns)} now"


def _is_mixed(history: Entry, policy: Policy) -> bool:
    """Whether readings of two states stand in it, as earlier versions let them: it would see no slowdown."""
    medians = [one.median_ns for one in history.replicates]
    return max(medians) >= FAR * min(medians) and max(medians) - min(medians) > policy.floor_ns


def _agrees(old: Entry, new: Entry, policy: Policy) -> bool:
    """Whether the judge finds the time unchanged. Nothing but time is compared, so nothing else makes it ``new``."""
    time_alone = changed(policy, gate_counts=False)
    replicates = new.replicates
    several = replicates if len(replicates) > 1 else []
    record = MeasuredCase(case="", environment=new.environment, summary=replicates[0], fresh=several)
    return judge(record, Baseline(times=old), time_alone).verdict is Verdict.OK
