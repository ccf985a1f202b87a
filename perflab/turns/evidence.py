"""Explains why a case became worse: examines both versions, and reports what the head does differently."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from perflab.base.data import changed
from perflab.base.errors import RivalError
from perflab.profiles.difference import explain
from perflab.profiles.peak import explain_peak
from perflab.results.measurement import Record
from perflab.results.peak import PeakExplanation
from perflab.results.profile import Explanation, Profile
from perflab.results.records import Judgement, Verdict
from perflab.settings.settings import Settings
from perflab.turns.comparison import Limits, Look, Looked, StartSide, Weighed, looked_into
from perflab.turns.conclusions import with_option

_Record = TypeVar("_Record", bound=Record)
MOST = 3
"""The largest number of cases of a run that are examined, the worst ones first."""
ENOUGH = f"{MOST} cases of this run were, the worst ones, and more would take too long"
"""The reason why a case is not examined after MOST others were."""
_CALLS = 20
"""The least number of calls of a case on each side in an examination."""
LEAST_S = 10.0
"""The time in seconds that an examination of a case with short calls takes, mostly to start the processes."""


@dataclass(frozen=True)
class Found:
    """The explanations from examining both versions of a case; an explanation that was not requested is None."""

    explained: Explanation | None = None
    peak: PeakExplanation | None = None

    def within(self, record: _Record) -> _Record:
        """Return the case's record with these explanations."""
        return changed(record, explained=self.explained, explained_peak=self.peak)


def asks_for_profiles(judgement: Judgement) -> bool:
    """Whether a profile could say why a case failed."""
    return judgement.verdict is Verdict.REGRESSED and bool({"latency", "counts"} & set(judgement.worse))


def asks_for_peaks(judgement: Judgement) -> bool:
    """Whether a breakdown of the memory peak could say why a case failed."""
    return judgement.verdict is Verdict.REGRESSED and "memory" in judgement.worse and judgement.memory is not None


def is_to_explain(judgement: Judgement) -> bool:
    """Whether profiles or peaks could say why a case failed."""
    return asks_for_profiles(judgement) or asks_for_peaks(judgement)


def not_looked(judgement: Judgement, against: str, problem: str) -> Found:
    """Return explanations that hold only the problem, one for each kind that the judgement asks for."""
    return Found(
        Explanation(base=against, problem=problem) if asks_for_profiles(judgement) else None,
        PeakExplanation(base=against, problem=problem) if asks_for_peaks(judgement) else None,
    )


@dataclass(frozen=True)
class Asked:
    """A case that is to be explained: its judgement, and the settings with which it is measured."""

    judgement: Judgement
    settings: Settings

    @property
    def problem(self) -> str | None:
        """The reason why no profile is possible; None if one is possible."""
        mode = self.settings.mode
        return None if mode.is_plain else f"profiles measure plain calls, but the case is timed with {mode}"

    @property
    def look(self) -> Look | None:
        """The profiles and peaks that both sides are asked for; None if neither is needed."""
        profiled, apart = asks_for_profiles(self.judgement) and not self.problem, asks_for_peaks(self.judgement)
        return Look(self.settings.evidence_ns if profiled else None, apart) if profiled or apart else None


def explained_by_turns(
    asked: Mapping[str, Asked],
    start: StartSide,
    limits: Limits,
    against: str,
    name: str,
    say: Callable[[str, str], None],
) -> Iterator[tuple[str, Found]]:
    """Yield, case by case, what the head does differently from the base, from profiles and peaks of both.

    Args:
        asked: the cases to explain, in this order.
        start: returns the starts of both sides' processes, one process a side for all cases.
        limits: the time limits.
        against: the label of the base.
        name: the name of the base as --perf-against accepts it.
        say: called with the case and a description of the current step.
    """
    waiting = dict(asked)
    for case, one in asked.items():
        if one.look is None:
            yield case, _found(waiting.pop(case), str(one.problem), "it was not requested", against)
    try:
        looks = looked_into({case: look for case, one in waiting.items() if (look := one.look)}, start, limits, say)
        with contextlib.closing(looks):
            while waiting:
                left_s = limits.seconds_left()
                if left_s is not None and left_s < least_s(next(iter(waiting.values())).judgement):
                    break
                found = next(looks, None)
                if found is None:
                    break
                case, profiles, peaks = found
                yield case, _found(waiting.pop(case), profiles, peaks, against)
    except (RivalError, OSError) as error:
        why = with_option(error.in_short, name) if isinstance(error, RivalError) else str(error)
        for case in list(waiting):
            yield case, _found(waiting.pop(case), why, why, against)
    for case, one in waiting.items():
        over = one.settings.over_before("both versions could be examined")
        yield case, not_looked(one.judgement, against, over)


def _found(one: Asked, profiles: Looked, peaks: Weighed, against: str) -> Found:
    judgement, profiles = one.judgement, one.problem or profiles
    if isinstance(profiles, str):
        explained = not_looked(judgement, against, could_not(profiles)).explained
    else:
        explained = told_apart(*profiles, against, judgement)
    if isinstance(peaks, str):
        return Found(explained, not_looked(judgement, against, could_not(peaks)).peak)
    memory = judgement.memory
    assert memory is not None, "else nobody asked for peaks"
    try:
        return Found(explained, explain_peak(*peaks, against, int(memory.now) - int(memory.before)))
    except Exception as error:
        return Found(explained, PeakExplanation(base=against, problem=could_not(_failed("peaks", error))))


def told_apart(base: Profile, head: Profile, against: str, judgement: Judgement) -> Explanation:
    """Return why the time or the counts of a case became worse. An error in explaining never affects the verdict."""
    try:
        return explain(base, head, against, *change_of(judgement))
    except Exception as error:
        return Explanation(base=against, problem=could_not(_failed("profiles", error)))


def _failed(what: str, error: Exception) -> str:
    why = str(error).strip().partition("\n")[0]
    return f"comparing both {what} failed, a fault of perflab: {type(error).__name__}{': ' * bool(why)}{why}"


def could_not(why: str) -> str:
    """Return the text that stands in place of evidence, with the reason why there is none."""
    return f"could not look, because {why}"


def least_s(judgement: Judgement) -> float:
    """Return the least time in seconds to examine both sides: start, set-up, warm-up and profiles."""
    call_ns = judgement.latency.now if judgement.latency is not None else 0.0
    return LEAST_S + 2 * _CALLS * call_ns / 1e9


def kept_s(worse: Iterable[Judgement]) -> float:
    """Return the time in seconds to reserve for explaining cases: twice the ``least_s`` of the MOST longest ones."""
    return 2 * sum(sorted(map(least_s, worse), reverse=True)[:MOST])


def change_of(judgement: Judgement) -> tuple[float | None, tuple[float, float] | None]:
    """Return how many nanoseconds slower a call became in the gate's own measurement, and the interval of that change.

    Both are None if latency did not become worse; the interval is None if the measurement has none.
    """
    latency = judgement.latency
    if latency is None or "latency" not in judgement.worse:
        return None, None
    interval_ns = None
    if latency.low is not None and latency.high is not None:
        interval_ns = (latency.before * (latency.low - 1), latency.before * (latency.high - 1))
    return latency.now - latency.before, interval_ns
