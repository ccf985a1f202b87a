"""The paired judge: log-ratios of fresh process pairs in, verdicts out. Pure.

How two versions of the code are told apart on one machine:

1. *Screen*: two pairs of processes for every case, and a third one where these do not let it go. A case is suspect
   if the middle pair shows more than half of the threshold.
2. *Confirm*: suspects get new pairs, and are judged by those alone: the screen's were picked for being high.
3. A case regressed if the best estimate lies past the threshold, and the interval as a whole past half of it, at a
   level that controls the share of false discoveries over all cases of the run (Benjamini & Hochberg 1995).
   If more pairs could tell, they are taken, up to a limit; what is still open then is ``inconclusive``. A suspect
   that its first few confirming pairs do not show at all is let go.

The estimate is a trimmed mean, and its interval Tukey & McLaughlin's (1963; also Yuen 1974): one disturbed pair in
each tail moves neither. About one pair in a hundred is off by a tenth on a shared machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from statistics import NormalDist, fmean, median

import msgspec

from perflab.gate.robust import ratio_of, student_t_quantile, student_t_tail
from perflab.records import MEANINGLESS, Change, Verdict
from perflab.units import format_change

SCREEN_PAIRS = 3
LOOKS = (8, 12, 16, 24, 32)
"""Numbers of confirming pairs after which a suspect is judged."""
FUTILE_AFTER = 4
"""Confirming pairs after which a suspect is let go that their middle does not show; two may be enough, as in the
screen. It saves most of what a false suspicion costs, and can only make the gate quieter."""
TRIMMED = 0.1
"""Share of the pairs that is trimmed at each end, and at least one."""
CONFIDENCE = 0.95
LEVEL = 0.0125
"""Expected share of false ones among the slowdowns that a run reports, at most; far fewer in fact, see the docs."""
CASE_LEVEL = 0.0015
"""One-sided level of a single case, however few there are: a suspect is looked at once for each of LOOKS."""
CONTROL_LEVEL = 0.0025
"""One-sided level at which the null control is believed to have found a difference where there is none."""
POWER = 0.9
"""The smallest detectable change is found this often."""
LEAST_SPREAD = 0.004
"""Pairs that agree better than this do so by luck: fresh processes of the same code differ by about as much."""

LEAST_PAIRS = 5
"""Fewer have no interval: one at each end is trimmed, and a degree of freedom must be left."""
_MEDIAN_OF_THREE = 0.67
"""Standard deviation of the median of three normal values, in units of theirs."""
_RANGE_OF_TWO, _RANGE_OF_THREE = 1.128, 1.693
"""Expected range of two and of three normal values, in standard deviations."""
NEARLY = 0.75
"""A suspect this share of the threshold above its base might be past it: more pairs tell."""
SCATTERED = 4.0
"""Screening pairs further apart than so many thresholds have shown nothing, in either direction."""
RESOLUTION = 2.5
"""A case is called ok only if a change of so many thresholds would have been found."""


@dataclass(frozen=True)
class Estimate:
    """A log-ratio with its interval."""

    value: float
    low: float
    high: float
    error: float
    """Standard error."""
    freedom: int
    """Degrees of freedom of ``error``."""
    lowest: float
    """The lowest pair that was not trimmed."""

    def chance_of(self, bound: float) -> float:
        """One-sided p-value: how likely an estimate this high is if the true value is ``bound`` or lower.

        Pairs that do not even agree on the sign are no evidence, whatever their mean: code that runs at one of
        several speeds gives such.
        """
        if self.lowest <= 0.0:
            return 1.0
        return student_t_tail((self.value - bound) / self.error, self.freedom)


@dataclass
class PairedCase:
    """Log-ratios (head over base) of fresh process pairs, by stage."""

    screen: list[float] = field(default_factory=list)
    confirm: list[float] = field(default_factory=list)


def estimate(log_ratios: Sequence[float]) -> Estimate:
    """Trimmed mean of some log-ratios, with a 95 % interval that one bad pair at either end cannot ruin."""
    ordered = sorted(log_ratios)
    n = len(ordered)
    trimmed = max(1, math.floor(TRIMMED * n))
    kept = ordered[trimmed : n - trimmed]
    winsorized = [kept[0]] * trimmed + kept + [kept[-1]] * trimmed
    middle = fmean(winsorized)
    variance = sum((value - middle) ** 2 for value in winsorized) / (n - 1)
    error = max(math.sqrt(variance), LEAST_SPREAD * len(kept) / n) * math.sqrt(n) / len(kept)
    # One fewer than the kept pairs give: in samples this small the winsorized variance is itself too low at times,
    # and this brings the interval's coverage to its nominal rate (simulated in the tests).
    freedom = len(kept) - 2
    value = fmean(kept)
    half = student_t_quantile(1.0 - (1.0 - CONFIDENCE) / 2.0, freedom) * error
    return Estimate(value, value - half, value + half, error, freedom, kept[0])


# --- what to do next ----------------------------------------------------------------------------------------


class Stage(Enum):
    """Where a case stands."""

    UNSCREENED = "unscreened"
    """More screening pairs are wanted."""
    CLEARED = "cleared"
    """Nothing was seen in the screen, or in the first pairs of confirming."""
    OPEN = "open"
    """More confirming pairs are wanted."""
    DECIDED = "decided"
    """More pairs would change nothing, or no more are taken."""


@dataclass(frozen=True)
class PairedPolicy:
    """What counts as worse in a paired comparison, and how much may be spent on knowing."""

    threshold: float = 0.02
    looks: Sequence[int] = LOOKS
    screen_pairs: int = SCREEN_PAIRS

    @property
    def bound(self) -> float:
        """The threshold as a log-ratio."""
        return math.log1p(self.threshold)


def stage(case: PairedCase, policy: PairedPolicy, cases: int) -> Stage:
    """Whether a case needs pairs, and whether it is decided.

    Args:
        case: its log-ratios so far.
        policy: threshold and limits.
        cases: how many cases the run compares: the level is shared among them.
    """
    if not case.confirm:
        if len(case.screen) < 2 or (len(case.screen) < policy.screen_pairs and not shows_nothing(case.screen, policy)):
            return Stage.UNSCREENED
        suspect = len(case.screen) >= policy.screen_pairs and is_suspect(case.screen, policy)
        return Stage.OPEN if suspect else Stage.CLEARED
    taken = len(case.confirm)
    if taken >= 2 and shows_nothing(case.confirm[:2], policy):
        return Stage.CLEARED
    if taken >= FUTILE_AFTER and not is_suspect(case.confirm[:FUTILE_AFTER], policy):
        return Stage.CLEARED
    if taken >= policy.looks[-1]:
        return Stage.DECIDED
    if taken not in policy.looks:
        return Stage.OPEN
    found = estimate(case.confirm)
    if found.value > policy.bound:
        sure = found.chance_of(policy.bound / 2.0) <= min(CASE_LEVEL, LEVEL / cases)
        return Stage.DECIDED if sure else Stage.OPEN
    near = found.value > NEARLY * policy.bound
    return Stage.OPEN if near or detectable(found, policy) > RESOLUTION * policy.bound else Stage.DECIDED


def shows_nothing(two: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether two pairs are enough to let a case go: neither is near the threshold, and they are not far apart.

    One disturbed pair alone cannot let a slow case go: the other one shows it.
    """
    return max(two) < NEARLY * policy.bound and max(two) - min(two) <= SCATTERED * policy.bound


def is_suspect(screen: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether the screen saw something, or too little to say that it did not."""
    return median(screen) > policy.bound / 2.0 or max(screen) - min(screen) > SCATTERED * policy.bound


def detectable(found: Estimate, policy: PairedPolicy) -> float:
    """The smallest log-ratio that pairs of this spread would have shown in nine of ten runs."""
    level = student_t_quantile(1.0 - CASE_LEVEL, found.freedom)
    return max(policy.bound, policy.bound / 2.0 + level * found.error) + NormalDist().inv_cdf(POWER) * found.error


def discoveries(found: Mapping[str, Estimate], policy: PairedPolicy, cases: int) -> set[str]:
    """Which of the confirmed cases regressed: past the threshold, and beyond doubt past half of it.

    Beyond doubt by the rule of Benjamini & Hochberg over all ``cases``, of which those that the screen cleared
    count as having nothing to show.
    """
    chances = sorted((estimate_.chance_of(policy.bound / 2.0), name) for name, estimate_ in found.items())
    passed = [rank for rank, (chance, _) in enumerate(chances, 1) if chance <= min(CASE_LEVEL, LEVEL * rank / cases)]
    best = {name for _, name in chances[: max(passed, default=0)]}
    return {name for name in best if found[name].value > policy.bound}


# --- verdicts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedFinding:
    """What the pairs say of one case. ``change`` is in units of the base, until ``timed`` has put times in."""

    verdict: Verdict
    change: Change
    reasons: list[str] = field(default_factory=list)
    detectable: float | None = None
    """The smallest ratio that nine of ten such runs would have found; None where that is unknown, infinite if none."""

    def timed(self, base_ns: float, floor_ns: float) -> PairedFinding:
        """The same in nanoseconds, the other side's time being known; a slowdown below the floor is none.

        This side's time follows from the ratio, which is known far better than either.
        """
        now_ns = round(base_ns * self.change.ratio, 3)
        timed = replace(self, change=msgspec.structs.replace(self.change, before=base_ns, now=now_ns))
        if self.verdict is Verdict.REGRESSED and now_ns - base_ns <= floor_ns:
            return replace(timed, verdict=Verdict.OK, reasons=["slower by less than --perf-floor"])
        return timed


def latency_findings(
    cases: Mapping[str, PairedCase], control: Sequence[float], policy: PairedPolicy
) -> dict[str, PairedFinding]:
    """The verdict on every case's latency.

    Args:
        cases: log-ratios of all cases of the run, which share the level of significance.
        control: log-ratios of the base against itself, where that was measured beside the suspects.
        policy: threshold and limits.
    """
    confirmed = {
        name: estimate(case.confirm)
        for name, case in cases.items()
        if len(case.confirm) >= LEAST_PAIRS and stage(case, policy, len(cases)) is not Stage.CLEARED
    }
    slower = discoveries(confirmed, policy, len(cases))
    alarm = control_alarm(control, policy)
    usual = median([_spread(case.screen) for case in cases.values()] or [0.0])
    found = {}
    for name, case in cases.items():
        seen = confirmed.get(name)
        if seen is None:
            cleared = stage(case, policy, len(cases)) is Stage.CLEARED
            found[name] = _of_screen(case, usual, policy) if cleared else _unfinished(case, policy)
        elif name in slower and alarm is not None:
            found[name] = PairedFinding(
                Verdict.INCONCLUSIVE, _change(seen, policy), [alarm], ratio_of(detectable(seen, policy))
            )
        else:
            found[name] = _of_confirmation(seen, policy, regressed=name in slower)
    return found


def control_alarm(control: Sequence[float], policy: PairedPolicy) -> str | None:
    """What the null control says against the run: the base came out different from itself."""
    if len(control) < LEAST_PAIRS:
        return None
    seen = estimate(control)
    chance = student_t_tail(abs(seen.value) / seen.error, seen.freedom)
    if abs(seen.value) <= policy.bound / 2.0 or chance > CONTROL_LEVEL:
        return None
    return f"null control: the base, measured against itself, came out at {format_change(ratio_of(seen.value))}"


def _of_confirmation(seen: Estimate, policy: PairedPolicy, *, regressed: bool) -> PairedFinding:
    change, least = _change(seen, policy), ratio_of(detectable(seen, policy))
    told = f"; this run could have found {format_change(least)} and more" if least < MEANINGLESS else ""
    verdict, reasons = Verdict.OK, []
    if regressed:
        verdict = Verdict.REGRESSED
    elif seen.value < -policy.bound and seen.high < -policy.bound / 2.0:
        verdict = Verdict.IMPROVED
    elif seen.value > policy.bound and seen.lowest <= 0.0:
        verdict, reasons = Verdict.INCONCLUSIVE, ["looks slower, but its process pairs do not agree that it is"]
    elif seen.value > policy.bound:
        verdict, reasons = Verdict.INCONCLUSIVE, [f"looks slower, but its process pairs differ too much{told}"]
    elif math.log(least) > RESOLUTION * policy.bound:
        verdict, reasons = Verdict.INCONCLUSIVE, [f"its process pairs differ too much{told}"]
    return PairedFinding(verdict, change, reasons, least)


def _of_screen(case: PairedCase, usual: float, policy: PairedPolicy) -> PairedFinding:
    faster = max(_witnesses(case)) < -policy.bound
    spread = max(usual, _spread(case.screen), LEAST_SPREAD)
    sure = NormalDist().inv_cdf(POWER)
    # Of a slowdown that both of two pairs miss, each misses one of ten's square root.
    both = NormalDist().inv_cdf(1.0 - math.sqrt(1.0 - POWER))
    in_screen = max(NEARLY * policy.bound + both * spread, policy.bound / 2.0 + sure * spread * _MEDIAN_OF_THREE)
    pairs = policy.looks[0]
    level = student_t_quantile(1.0 - CASE_LEVEL, pairs - 4)
    confirmed = max(policy.bound, policy.bound / 2.0 + level * spread / math.sqrt(pairs)) + sure * spread / math.sqrt(
        pairs
    )
    least = ratio_of(max(in_screen, confirmed))
    return PairedFinding(Verdict.IMPROVED if faster else Verdict.OK, _screen_change(case, policy), [], least)


def _unfinished(case: PairedCase, policy: PairedPolicy) -> PairedFinding:
    change = _screen_change(case, policy)
    taken = len(case.screen) + len(case.confirm)
    reason = (
        f"{format_change(change.ratio)} after {taken} pair{'s' * (taken != 1)}, which was not followed up to the end"
    )
    return PairedFinding(Verdict.INCONCLUSIVE, change, [reason])


def _spread(screen: Sequence[float]) -> float:
    """Standard deviation of the pairs, from the range of a few."""
    expected = _RANGE_OF_TWO if len(screen) == 2 else _RANGE_OF_THREE
    return (max(screen) - min(screen)) / expected if len(screen) > 1 else 0.0


def _witnesses(case: PairedCase) -> list[float]:
    """The pairs that a case without an interval is judged by: a suspect's screen was picked for being high."""
    return case.confirm or case.screen


def _screen_change(case: PairedCase, policy: PairedPolicy) -> Change:
    ratio = ratio_of(median(_witnesses(case)))
    return Change(before=1.0, now=ratio, ratio=ratio, limit=1.0 + policy.threshold)


def _change(seen: Estimate, policy: PairedPolicy) -> Change:
    return Change(
        before=1.0,
        now=ratio_of(seen.value),
        ratio=ratio_of(seen.value),
        low=ratio_of(seen.low),
        high=ratio_of(seen.high),
        limit=1.0 + policy.threshold,
    )
