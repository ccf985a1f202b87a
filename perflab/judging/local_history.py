"""Decides which readings form a machine's own history of a case. Pure.

Later runs are compared with a history, so it holds readings of only one state of the code and the machine. A new
reading joins a history that it agrees with, replaces the history, or is left out. Readings of two states never mix.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from perflab.base.data import changed
from perflab.judging.judge import judge
from perflab.results.measured import Baseline, Entry, MeasuredCase
from perflab.results.records import ENOUGH_RUNS, Policy, Verdict
from perflab.units import format_ns

KEPT_REPLICATES = 5
"""The largest number of runs in a history. Later runs with unchanged times add no information."""
FAR = 1.5
"""Readings of the same code whose ratio is at least this come from two states of the machine; the report says so."""


@dataclass(frozen=True)
class Reading:
    """A run's measurement of a case."""

    entry: Entry
    policy: Policy
    """The policy that judges the case."""
    is_worse: bool = False
    """Whether the case regressed, so that later runs must not be compared with its times."""


@dataclass(frozen=True)
class Step:
    """The effect of a run on a case's history."""

    entry: Entry
    """The history after the run."""
    is_begun: bool = False
    """Whether the case had no comparable history before."""
    begun_anew: str | None = None
    """Why the reading replaced a history that times were compared with; None if it replaced no such history."""
    left_out: str | None = None
    """The typical times before and now, if the reading was left out although the code is the same and the times are
    ``FAR`` apart; None otherwise."""


def next_step(old: Entry | None, new: Entry, policy: Policy) -> Step:
    """Return the step of a history ``old`` once a run has measured ``new``.

    A reading that the judge finds unchanged joins the history. So does a reading of the same code that is not ``FAR``
    off, while the history has too few runs to know their noise. A faster reading replaces a history of other code, or a
    single reading of the same code: a disturbance makes a reading slower. Any other reading is left out, else later
    runs would be compared with a slowdown.
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
    """Format times ``FAR`` apart that no change of code explains (``1 ms before, 2 ms now``); None if none are."""
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
    """Whether a history mixes readings of two states, as earlier versions allowed: such a history hides slowdowns."""
    medians = [one.median_ns for one in history.replicates]
    return max(medians) >= FAR * min(medians) and max(medians) - min(medians) > policy.floor_ns


def _agrees(old: Entry, new: Entry, policy: Policy) -> bool:
    """Whether the judge finds the time unchanged. Only time is compared: missing exact quantities do not matter."""
    time_alone = changed(policy, gate_counts=False)
    replicates = new.replicates
    several = replicates if len(replicates) > 1 else []
    record = MeasuredCase(case="", environment=new.environment, summary=replicates[0], fresh=several)
    return judge(record, Baseline(times=old), time_alone).verdict is Verdict.OK
