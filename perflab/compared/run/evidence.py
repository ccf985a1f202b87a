"""Why a case became worse: both versions profiled, and what the head does otherwise."""

from __future__ import annotations

from collections.abc import Callable

from perflab.compared.comparison import Limits, StartSide, profiles_of
from perflab.compared.run.conclusions import in_short
from perflab.errors import RivalError
from perflab.mode import DEFAULT
from perflab.plugin.config.settings import Settings
from perflab.profiles.difference import explain
from perflab.profiles.records import Explanation
from perflab.records import Change, Judgement, Verdict

MOST = 3
"""Cases of a run that are looked into, the worst first: each takes two processes more."""
_CALLS = 20
"""Of a case on each side, at least."""
LEAST_S = 10.0
"""What that takes of a quick case: mostly their start."""


def is_to_explain(judgement: Judgement) -> bool:
    """Whether a profile could say why a case failed."""
    return judgement.verdict is Verdict.REGRESSED and bool({"latency", "counts"} & set(judgement.worse))


def explained_by_turns(
    case: str,
    judgement: Judgement,
    settings: Settings,
    start: StartSide,
    limits: Limits,
    against: str,
    name: str,
    say: Callable[[str], None],
) -> Explanation:
    """What the head does otherwise than the base, by profiles of both.

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
    if settings.mode != DEFAULT:
        return Explanation(
            base=against,
            problem=f"could not look, because a profile is of plain calls, and the case is timed with {settings.mode}",
        )
    left_s = limits.seconds_left()
    if left_s is not None and left_s < least_s(judgement):
        return Explanation(base=against, problem=settings.over_before("both versions could be profiled"))
    try:
        found = profiles_of(case, start, limits, settings.evidence_ns, say)
    except (RivalError, OSError) as error:
        found = in_short(error.problem, name) if isinstance(error, RivalError) else str(error)
    if isinstance(found, str):
        return Explanation(base=against, problem=f"could not look, because {found}")
    change_ns, room_ns = change_of(judgement)
    return explain(*found, against, change_ns, room_ns)


def least_s(judgement: Judgement) -> float:
    """What both sides take at least: their start, set-up, warm-up and profiles."""
    call_ns = judgement.latency.now if judgement.latency is not None else 0.0
    return LEAST_S + 2 * _CALLS * call_ns / 1e9


def change_of(judgement: Judgement) -> tuple[float | None, float]:
    """How much longer a call takes by the gate's own measurement, and half the width of the interval around that."""
    latency = judgement.latency
    if latency is None or "latency" not in judgement.worse:
        return None, 0.0
    return latency.now - latency.before, _half_width(latency)


def _half_width(latency: Change) -> float:
    if latency.low is None or latency.high is None:
        return 0.0
    return latency.before * (latency.high - latency.low) / 2
