"""Why a case became worse: both versions looked into, and what the head does otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from perflab.compared.comparison import Limits, Looked, StartSide, Weighed, looked_into
from perflab.compared.run.conclusions import in_short
from perflab.data import changed
from perflab.errors import RivalError
from perflab.measure.records import Record
from perflab.mode import DEFAULT
from perflab.plugin.config.settings import Settings
from perflab.profiles.difference import explain
from perflab.profiles.peak_difference import explain_peak
from perflab.profiles.records import Explanation, PeakExplanation
from perflab.records import Judgement, Verdict

_Record = TypeVar("_Record", bound=Record)
MOST = 3
"""Cases of a run that are looked into, the worst first: each takes two processes more."""
_CALLS = 20
"""Of a case on each side, at least."""
LEAST_S = 10.0
"""What that takes of a quick case: mostly their start."""


@dataclass(frozen=True)
class Found:
    """What was found in both versions of a case; None: it was not asked."""

    explained: Explanation | None = None
    peak: PeakExplanation | None = None

    def within(self, record: _Record) -> _Record:
        """The record of the case with it."""
        return changed(record, explained=self.explained, explained_peak=self.peak)


def asks_for_profiles(judgement: Judgement) -> bool:
    """Whether a profile could say why a case failed."""
    return judgement.verdict is Verdict.REGRESSED and bool({"latency", "counts"} & set(judgement.worse))


def asks_for_peaks(judgement: Judgement) -> bool:
    """Whether what is alive at the peak could."""
    return judgement.verdict is Verdict.REGRESSED and "memory" in judgement.worse and judgement.memory is not None


def is_to_explain(judgement: Judgement) -> bool:
    """Whether anything could."""
    return asks_for_profiles(judgement) or asks_for_peaks(judgement)


def not_looked(judgement: Judgement, against: str, problem: str) -> Found:
    """Nothing was found, and why."""
    return Found(
        Explanation(base=against, problem=problem) if asks_for_profiles(judgement) else None,
        PeakExplanation(base=against, problem=problem) if asks_for_peaks(judgement) else None,
    )


def explained_by_turns(
    case: str,
    judgement: Judgement,
    settings: Settings,
    start: StartSide,
    limits: Limits,
    against: str,
    name: str,
    say: Callable[[str], None],
) -> Found:
    """What the head does otherwise than the base, by profiles and peaks of both.

    Args:
        case: which.
        judgement: what is to be explained.
        settings: the case's own.
        start: makes the processes of both sides.
        limits: of time.
        against: the base, as people call it.
        name: the base, as --perf-against takes it.
        say: called with what is under way.
    """
    is_plain = settings.mode == DEFAULT
    profiles: Looked = f"a profile is of plain calls, and the case is timed with {settings.mode}"
    peaks: Weighed = "it was not asked"
    left_s = limits.seconds_left()
    if left_s is not None and left_s < least_s(judgement):
        return not_looked(judgement, against, settings.over_before("both versions could be looked into"))
    if is_plain or asks_for_peaks(judgement):
        profile_ns = settings.evidence_ns if is_plain and asks_for_profiles(judgement) else None
        try:
            seen, peaks = looked_into(case, start, limits, profile_ns, say, takes_apart=asks_for_peaks(judgement))
        except (RivalError, OSError) as error:
            seen = peaks = in_short(error.problem, name) if isinstance(error, RivalError) else str(error)
        profiles = seen if is_plain else profiles
    unseen = not_looked(judgement, against, could_not(profiles) if isinstance(profiles, str) else "").explained
    unweighed = not_looked(judgement, against, could_not(peaks) if isinstance(peaks, str) else "").peak
    return Found(
        unseen if isinstance(profiles, str) else explain(*profiles, against, *change_of(judgement)),
        unweighed if isinstance(peaks, str) else explain_peak(*peaks, against, grown_bytes(judgement)),
    )


def could_not(why: str) -> str:
    """How evidence says that there is none."""
    return f"could not look, because {why}"


def looked_into_enough() -> str:
    """Why a case is not looked into after others were."""
    return f"{MOST} cases of this run were, and each takes two processes more"


def grown_bytes(judgement: Judgement) -> int:
    """How much higher the peak is by the gate's own measurement."""
    memory = judgement.memory
    return int(memory.now) - int(memory.before) if memory is not None else 0


def least_s(judgement: Judgement) -> float:
    """What both sides take at least: their start, set-up, warm-up and profiles."""
    call_ns = judgement.latency.now if judgement.latency is not None else 0.0
    return LEAST_S + 2 * _CALLS * call_ns / 1e9


def change_of(judgement: Judgement) -> tuple[float | None, tuple[float, float] | None]:
    """How much longer a call takes by the gate's own measurement, and between which changes that lies."""
    latency = judgement.latency
    if latency is None or "latency" not in judgement.worse:
        return None, None
    interval_ns = None
    if latency.low is not None and latency.high is not None:
        interval_ns = (latency.before * (latency.low - 1), latency.before * (latency.high - 1))
    return latency.now - latency.before, interval_ns
