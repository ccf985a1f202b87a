"""Judges an A/B comparison: computes verdicts from the log-ratios of fresh process pairs. Pure functions.

The procedure that compares two versions of the code on one machine:

1. *Screen*: two pairs of processes for every case, and a third pair where the first two do not clear the case. A case
   is suspect if the middle pair shows more than half of the threshold.
2. *Confirm*: suspects get more pairs, and are judged by all of their pairs after each of LOOKS. Between looks a case
   may only be cleared, never found slower, so that a screen which was high by chance costs time but no false alarm.
3. A case regressed if the best estimate lies past the threshold, and the whole interval past half of the threshold, at
   a level that controls the false discovery rate over all cases of the run (Benjamini & Hochberg 1995).
   If more pairs could decide a case, they are taken, up to a limit; a case that is still open then is
   ``inconclusive``.

A case's ratio is that of its fastest calls, which has the smallest error. The means are judged instead where they
certainly differ by another ratio, because only some calls changed, or where the means have the smaller error: users pay
for all calls. While the means seem to differ without certainty, the case is suspect.

``statistics.py`` computes the estimate and its interval. ``null_control.py`` computes how far the base differs from
itself, which widens the interval.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress
from statistics import NormalDist, fmean, median

import msgspec

from perflab.judging import null_control
from perflab.judging.interleave import Reading
from perflab.judging.statistics import (
    LEAST_PAIRS,
    LEAST_SPREAD,
    Estimate,
    estimate,
    ratio_of,
    spread_of,
    student_t_quantile,
    student_t_tail,
)
from perflab.results.measurement import CallTimes
from perflab.results.records import MEANINGLESS, Change, Verdict
from perflab.units import format_change, format_count

SCREEN_PAIRS = 3
LOOKS = (7, 8, 10, 12, 16, 24, 32)
"""The numbers of pairs, screening pairs included, after which a suspect is judged."""
FUTILE_AFTER = 5
"""The number of pairs from which on a suspect is cleared if the median pair does not show a slowdown. Clearing early
saves most of the cost of a false suspicion, and can only reduce alarms."""
LEVEL = 0.0125
"""The largest expected fraction of false slowdowns among those that a run reports; the actual fraction is far lower,
see the docs."""
CASE_LEVEL = 0.0015
"""The one-sided level of a single case, however few cases there are; it is low because a suspect is tested once for
each of LOOKS."""
RUINED, RUINED_BESIDE = 1.5, 2.5
"""A pair is dropped if its own error exceeds RUINED thresholds and also RUINED_BESIDE times the case's median error."""
POWER = 0.9
"""The probability with which the smallest detectable change is found."""
NEARLY = 0.75
"""The fraction of the threshold from which on a suspect gets more pairs, because it might be past the threshold."""
UNEVEN = {CallTimes.MEAN: 1.0, CallTimes.ALL: 1.5}
"""The mean calls look slower than the fastest calls if their excess is larger than this many standard errors and than
half of the threshold. This rule gives at most one unchanged case in five more pairs."""
CERTAINLY_UNEVEN = 0.005
"""The two-sided level at which the mean calls certainly differ from the fastest calls; it is low because a case is
tested once for each of LOOKS."""
KNOWN_BETTER = 0.7
"""The means are judged also where their standard error is less than this fraction of the fastest calls' error."""
RESOLUTION = 2.5
"""A case is called ok only if a change of this many thresholds would have been detected in nine of ten runs, by the
screen or by the confirming pairs."""


UNEVENLY = "some calls look slower, while the fastest are not: the mean of all calls is not known well enough"


@dataclass
class PairedCase:
    """Log-ratios head / base of a case's fresh process pairs, by stage."""

    screen: list[float] = field(default_factory=list)
    confirm: list[float] = field(default_factory=list)
    judged: CallTimes = CallTimes.FASTEST
    """The calls that the log-ratios compare."""
    uneven: bool = False
    """Whether the mean calls look slower than the log-ratios show, without certainty."""
    doubtful: int = 0
    """The number of pairs that count although the error from their own blocks exceeds RUINED thresholds."""
    floor: float = 0.0
    """The case's floor, the largest slowdown in nanoseconds that does not count, as a log-ratio."""

    @property
    def pairs(self) -> list[float]:
        """The log-ratios of all pairs, screening pairs first, in the order taken."""
        return [*self.screen, *self.confirm]


@dataclass(frozen=True)
class TakenPair:
    """A pair of processes that has been measured, whether the pair counts or not."""

    reading: Reading
    late: bool = False
    """Whether the pair was taken while confirming."""


# --- what to do next ----------------------------------------------------------------------------------------


class Stage(Enum):
    """The stage of a case in a comparison."""

    UNSCREENED = "unscreened"
    """The case needs more screening pairs."""
    CLEARED = "cleared"
    """The screen, or the first confirming pairs, showed no change."""
    OPEN = "open"
    """The case needs more confirming pairs."""
    DECIDED = "decided"
    """The verdict is final: more pairs would not change it, or no more pairs are taken."""


@dataclass(frozen=True)
class PairedPolicy:
    """The criteria of a paired comparison: the change that counts, and how many pairs may be spent."""

    threshold: float = 0.02
    looks: Sequence[int] = LOOKS
    screen_pairs: int = SCREEN_PAIRS
    pairs_are: str = "process pairs"
    """The term for pairs in the reasons of a verdict."""

    @property
    def bound(self) -> float:
        """The threshold as a log-ratio."""
        return math.log1p(self.threshold)

    def of(self, case: PairedCase) -> PairedPolicy:
        """Return the policy for a case: its floor may require a larger change than the threshold."""
        return self if case.floor <= self.bound else replace(self, threshold=math.expm1(case.floor))


def stage(
    case: PairedCase, policy: PairedPolicy, cases: int, control: null_control.Control = null_control.NO_CONTROL
) -> Stage:
    """Return the stage of a case: whether the case needs more pairs, and whether it is decided.

    Args:
        case: the case's log-ratios so far.
        policy: threshold and limits.
        cases: the number of cases that the run compares, which share the level of significance.
        control: how far the base differs from itself, as far as that is known yet.
    """
    policy = policy.of(case)
    pairs = case.pairs
    taken = len(pairs)
    if not case.confirm and taken < policy.screen_pairs:
        clear = taken >= 2 and shows_nothing(pairs, policy) and case.doubtful < taken and not case.uneven
        return Stage.CLEARED if clear else Stage.UNSCREENED
    if not case.confirm or FUTILE_AFTER <= taken < policy.looks[0]:
        ruined = not case.confirm and case.doubtful == taken
        doubted = ruined or case.uneven or is_suspect(pairs, policy) or looks_faster(pairs, policy)
        return Stage.OPEN if doubted else Stage.CLEARED
    if taken >= policy.looks[-1]:
        return Stage.DECIDED
    if taken not in policy.looks:
        return Stage.OPEN
    found = null_control.widened(estimate(pairs), control)
    if found.value > policy.bound:
        sure = found.chance_of(policy.bound / 2.0) <= min(CASE_LEVEL, LEVEL / cases)
        return Stage.DECIDED if sure else Stage.OPEN
    near = case.uneven or found.value > NEARLY * policy.bound
    return Stage.OPEN if near or detectable(found, policy) > RESOLUTION * policy.bound else Stage.DECIDED


def case_of(taken: Sequence[TakenPair], policy: PairedPolicy) -> PairedCase:
    """Return the log-ratios to judge from all pairs that were taken: ruined pairs are dropped, and the calls chosen."""
    kept = list(compress(taken, counted([pair.reading.error for pair in taken], policy)))
    judged, uneven = calls_judged([pair.reading for pair in kept], policy)
    return PairedCase(
        screen=[log_of(pair.reading, judged) for pair in kept if not pair.late],
        confirm=[log_of(pair.reading, judged) for pair in kept if pair.late],
        judged=judged,
        uneven=uneven,
        doubtful=sum(pair.reading.error > RUINED * policy.bound for pair in kept),
    )


def log_of(reading: Reading, judged: CallTimes) -> float:
    """Return the log-ratio of the judged calls in a pair."""
    if judged is CallTimes.FASTEST:
        return reading.log
    return reading.log + (reading.excess if judged is CallTimes.MEAN else reading.excess_of_all)


def calls_judged(readings: Sequence[Reading], policy: PairedPolicy) -> tuple[CallTimes, bool]:
    """Return the calls to judge, and whether the mean calls look slower than the fastest calls, without certainty.

    An excess below half of the threshold does not change the verdict of the fastest calls.
    """
    least, many = policy.bound / 2.0, len(readings)
    rare = many > 0 and 2 * sum(one.one_sided for one in readings) >= many
    uneven = False
    for mean in (CallTimes.ALL,) if rare else (CallTimes.MEAN, CallTimes.ALL):
        excesses = [log_of(one, mean) - one.log for one in readings]
        if many < LEAST_PAIRS:
            errors = [one.excess_error if mean is CallTimes.MEAN else one.excess_of_all_error for one in readings]
            error = 0.0 if rare else math.hypot(*errors)
            uneven = uneven or sum(excesses) > max(many * least, UNEVEN[mean] * error)
            continue
        fastest, means = (estimate([log_of(one, calls) for one in readings]) for calls in (CallTimes.FASTEST, mean))
        if means.error < KNOWN_BETTER * fastest.error:  # in turns of one sample the fastest sample is no better
            return mean, False
        found = estimate(excesses)
        size = abs(found.value)
        if size > least and 2.0 * student_t_tail(size / found.error, found.freedom) <= CERTAINLY_UNEVEN:
            return mean, False
        looks_so = fmean(excesses) > least if rare else found.value > max(least, UNEVEN[mean] * found.error)
        uneven = uneven or looks_so
    return CallTimes.FASTEST, uneven and many > 0


def counted(errors: Sequence[float], policy: PairedPolicy) -> list[bool]:
    """Return for each pair of a case whether it counts, given the error that each pair's own blocks show.

    A pair is ruined, and does not count, if its error is large both against the threshold and against the case's usual
    error: on a machine that is always disturbed, another pair would be no better. The log-ratio of a pair is ignored,
    so that dropping the pair favours no verdict.
    """
    usual = sorted(errors)[(len(errors) - 1) // 2] if errors else 0.0
    return [error <= max(RUINED * policy.bound, RUINED_BESIDE * usual) for error in errors]


def shows_nothing(two: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether two pairs are enough to clear a case: neither pair is near the threshold, and the two are close together.

    One disturbed pair alone cannot clear a slow case, because the other pair shows the slowdown. If both pairs are far
    too fast, either the code got faster or the machine was disturbed, and a third pair decides.
    """
    return -policy.bound <= max(two) < NEARLY * policy.bound and not are_scattered(two, policy)


def is_suspect(pairs: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether a few pairs show a slowdown, or are too scattered to exclude one."""
    return median(pairs) > policy.bound / 2.0 or are_scattered(pairs, policy)


def are_scattered(pairs: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether a few pairs are so far apart that they are no evidence in either direction."""
    return noticeable(spread_of(pairs), policy) > RESOLUTION * policy.bound


def noticeable(spread: float, policy: PairedPolicy) -> float:
    """Return the smallest log-ratio that the screen would not clear in nine of ten runs, if pairs have this spread."""
    # Two pairs both miss a slowdown with probability 1 - POWER if each misses it with the square root of that.
    of_two = NEARLY * policy.bound + NormalDist().inv_cdf(1.0 - math.sqrt(1.0 - POWER)) * spread
    return max(of_two, policy.bound / 2.0 + NormalDist().inv_cdf(POWER) * null_control.MEDIAN_OF_THREE * spread)


def looks_faster(pairs: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether a few pairs all show an improvement, which is then confirmed like a slowdown, with the null control."""
    return max(pairs) < -policy.bound


def detectable(found: Estimate, policy: PairedPolicy) -> float:
    """Return the smallest log-ratio that pairs of this spread would have shown in nine of ten runs."""
    level = student_t_quantile(1.0 - CASE_LEVEL, found.freedom)
    least = max(policy.bound, found.allowance + policy.bound / 2.0 + level * found.error)
    return least + NormalDist().inv_cdf(POWER) * found.error


def discoveries(found: Mapping[str, Estimate], policies: Mapping[str, PairedPolicy], cases: int) -> set[str]:
    """Return the confirmed cases that regressed: past the threshold, and significantly past half of the threshold.

    Significance is by the rule of Benjamini & Hochberg over all ``cases``; cases that the screen cleared count as
    showing no slowdown.
    """
    chances = sorted((seen.chance_of(policies[name].bound / 2.0), name) for name, seen in found.items())
    passed = [rank for rank, (chance, _) in enumerate(chances, 1) if chance <= min(CASE_LEVEL, LEVEL * rank / cases)]
    best = {name for _, name in chances[: max(passed, default=0)]}
    return {name for name in best if found[name].value > policies[name].bound}


# --- verdicts -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairedFinding:
    """The verdict of the pairs on one case. ``change`` is in units of the base's time until ``timed`` sets times."""

    verdict: Verdict
    change: Change
    reasons: list[str] = field(default_factory=list)
    detectable: float | None = None
    """The smallest ratio that nine of ten such runs would have detected; None if unknown, infinite if there is none."""

    def timed(self, base_ns: float, floor_ns: float) -> PairedFinding:
        """Return the finding with times in nanoseconds, given the base's time; a slowdown up to the floor becomes ok.

        The head's time is computed from the ratio, which is far more precise than either time.
        """
        now_ns = round(base_ns * self.change.ratio, 3)
        timed = replace(self, change=msgspec.structs.replace(self.change, before=base_ns, now=now_ns))
        looks_slower = self.verdict is Verdict.REGRESSED or (self.verdict is Verdict.OK and self.change.is_past_limit)
        if looks_slower and now_ns - base_ns <= floor_ns:
            return replace(timed, verdict=Verdict.OK, reasons=["slower by less than --perf-floor"])
        return timed


def latency_findings(
    cases: Mapping[str, PairedCase], controls: Mapping[str, Sequence[Reading]], policy: PairedPolicy
) -> dict[str, PairedFinding]:
    """Return the verdict on every case's latency.

    Args:
        cases: log-ratios of all cases of the run, which share the level of significance.
        controls: log-ratios of the base to itself, by the case in which they were taken.
        policy: threshold and limits.
    """
    control = controls_of(cases, controls)
    policies = {name: policy.of(case) for name, case in cases.items()}
    standing = {name: stage(case, policy, len(cases), control[name]) for name, case in cases.items()}
    confirmed = {
        name: estimate(case.pairs)
        for name, case in cases.items()
        if case.confirm and len(case.pairs) >= LEAST_PAIRS and standing[name] is not Stage.CLEARED
    }
    seen = {name: null_control.widened(found, control[name]) for name, found in confirmed.items()}
    slower = discoveries(seen, policies, len(cases))
    doubted = discoveries(confirmed, policies, len(cases)) - slower
    # The typical standard deviation of process pairs in this run, from each case's first pairs.
    usual = median([spread_of(case.pairs[:SCREEN_PAIRS]) for case in cases.values()] or [0.0])
    found = {}
    for name, case in cases.items():
        if name in doubted:
            least = ratio_of(detectable(seen[name], policies[name]))
            one = PairedFinding(Verdict.INCONCLUSIVE, _change(seen[name], policy), [control[name].told()], least)
        elif name in seen:
            one = _of_confirmation(seen[name], policies[name], regressed=name in slower)
            if case.uneven and one.verdict in (Verdict.OK, Verdict.IMPROVED):
                one = replace(one, verdict=Verdict.INCONCLUSIVE, reasons=[UNEVENLY])
        elif standing[name] is Stage.CLEARED:
            one = _of_screen(case, usual, control[name], policies[name])
        else:
            change, pairs = _screen_change(case, policy), format_count(len(case.pairs), "pair")
            reason = f"{format_change(change.ratio)} after {pairs}; the comparison ended before it was decided"
            one = PairedFinding(Verdict.INCONCLUSIVE, change, [reason])
        # The limit that is shown is the run's; for a case with a floor, a reason explains why it is not slower.
        found[name] = replace(one, change=msgspec.structs.replace(one.change, limit=1.0 + policy.threshold))
    return found


def controls_of(
    cases: Mapping[str, PairedCase], controls: Mapping[str, Sequence[Reading]]
) -> dict[str, null_control.Control]:
    """Return the null control of each case, from the log-ratios of the calls that are judged in the case."""
    spreads = {name: null_control.spread_of_case(case.pairs) for name, case in cases.items()}
    logs = {
        judged: {name: [log_of(one, judged) for one in readings] for name, readings in controls.items()}
        for judged in {case.judged for case in cases.values()}
    }
    return {name: null_control.control_of(logs[case.judged], name, spreads) for name, case in cases.items()}


def _of_confirmation(seen: Estimate, policy: PairedPolicy, *, regressed: bool) -> PairedFinding:
    change, least = _change(seen, policy), ratio_of(detectable(seen, policy))
    verdict, reasons = Verdict.OK, []
    if regressed:
        verdict = Verdict.REGRESSED
    elif seen.value < -policy.bound and seen.high < -policy.bound / 2.0:
        verdict = Verdict.IMPROVED
    elif seen.value > policy.bound and seen.lowest <= 0.0:
        verdict, reasons = Verdict.INCONCLUSIVE, [f"looks slower, but its {policy.pairs_are} disagree"]
    elif seen.value > policy.bound:
        verdict, reasons = Verdict.INCONCLUSIVE, [f"looks slower, but {_differ(least, policy)}"]
    elif math.log(least) > RESOLUTION * policy.bound:
        verdict, reasons = Verdict.INCONCLUSIVE, [_differ(least, policy)]
    return PairedFinding(verdict, change, reasons, least)


def _differ(least: float, policy: PairedPolicy) -> str:
    told = f"; the smallest change that this run can detect is {format_change(least)}" if least < MEANINGLESS else ""
    return f"its {policy.pairs_are} differ too much{told}"


def _of_screen(case: PairedCase, usual: float, control: null_control.Control, policy: PairedPolicy) -> PairedFinding:
    spread = max(usual, spread_of(case.pairs[:SCREEN_PAIRS]), LEAST_SPREAD)
    in_screen = noticeable(spread, policy)
    pairs = policy.looks[0]
    level = student_t_quantile(1.0 - CASE_LEVEL, pairs - 3)
    error = math.hypot(spread / math.sqrt(pairs), control.doubt)
    confirmed = max(policy.bound, control.allowance + policy.bound / 2.0 + level * error)
    confirmed += NormalDist().inv_cdf(POWER) * error
    least = ratio_of(max(in_screen, confirmed))
    change = _screen_change(case, policy)
    if control.allowance > RESOLUTION * policy.bound:
        return PairedFinding(Verdict.INCONCLUSIVE, change, [control.told()], least)
    # Two or three pairs may agree by luck where other cases' pairs do not; more pairs are judged by their own spread.
    if not case.confirm and noticeable(max(usual, spread_of(case.screen)), policy) > RESOLUTION * policy.bound:
        return PairedFinding(Verdict.INCONCLUSIVE, change, [_differ(least, policy)], least)
    return PairedFinding(Verdict.OK, change, [], least)


def _screen_change(case: PairedCase, policy: PairedPolicy) -> Change:
    ratio = ratio_of(median(case.pairs))
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
