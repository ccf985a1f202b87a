"""Judges an A/B comparison: log-ratios of fresh process pairs in, verdicts out. Pure.

How two versions of the code are told apart on one machine:

1. *Screen*: two pairs of processes for every case, and a third one where these do not let it go. A case is suspect
   if the middle pair shows more than half of the threshold.
2. *Confirm*: suspects get more pairs, and are judged by all that they have after each of LOOKS. A case may only be let
   go in between, never found slower, so that a screen which was high by chance costs time and no false alarm.
3. A case regressed if the best estimate lies past the threshold, and the interval as a whole past half of it, at a
   level that controls the share of false discoveries over all cases of the run (Benjamini & Hochberg 1995).
   If more pairs could tell, they are taken, up to a limit; what is still open then is ``inconclusive``.

A case's ratio is that of its fastest calls, which is known best. Where the means of all calls certainly differ by
another ratio, because only some calls changed, or where they are known better, means are judged instead: users pay for
all calls. While it looks so and is not certain, the case is suspect.

``trimmed.py`` has the estimate and its interval, ``null_control.py`` how far the base is off from itself, which
widens both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import compress
from statistics import NormalDist, fmean, median

import msgspec

from perflab.compared.interleave import Reading
from perflab.compared.judge.null_control import (
    MEDIAN_OF_THREE,
    NO_CONTROL,
    Control,
    control_of,
    spread_of_case,
    widened,
)
from perflab.measure.records import CallTimes
from perflab.measured.judge.robust import ratio_of, student_t_quantile, student_t_tail
from perflab.measured.judge.trimmed import LEAST_PAIRS, LEAST_SPREAD, Estimate, estimate, spread_of
from perflab.records import MEANINGLESS, Change, Verdict
from perflab.units import format_change, format_count

SCREEN_PAIRS = 3
LOOKS = (7, 8, 10, 12, 16, 24, 32)
"""Numbers of pairs, those of the screen among them, after which a suspect is judged."""
FUTILE_AFTER = 5
"""Pairs from which on a suspect is let go that their middle does not show. It saves most of what a false suspicion
costs, and can only make the gate quieter."""
LEVEL = 0.0125
"""Expected share of false ones among the slowdowns that a run reports, at most; far fewer in fact, see the docs."""
CASE_LEVEL = 0.0015
"""One-sided level of a single case, however few there are: a suspect is looked at once for each of LOOKS."""
RUINED, RUINED_BESIDE = 1.5, 2.5
"""A pair is dropped if its own error is more than so many thresholds and so many times that of the case's others."""
POWER = 0.9
"""The smallest detectable change is found this often."""
NEARLY = 0.75
"""A suspect this share of the threshold above its base might be past it: more pairs tell."""
UNEVEN = {CallTimes.MEAN: 1.0, CallTimes.ALL: 1.5}
"""Means look slower than the fastest calls say past so many standard errors, and past half of the threshold: one
unchanged case in five at most gets more pairs for it."""
CERTAINLY_UNEVEN = 0.005
"""They certainly differ at this level (two-sided); a case is looked at once for each of LOOKS."""
KNOWN_BETTER = 0.7
"""Means are judged too where their standard error is below so much of the fastest calls'."""
RESOLUTION = 2.5
"""A case is called ok only if a change of so many thresholds would not have been: in nine of ten runs the screen would
have seen it, or the pairs of confirming would have found it."""


UNEVENLY = "some calls look slower, while the fastest are not: the mean of all calls is not known well enough"


@dataclass
class PairedCase:
    """Log-ratios (head over base) of fresh process pairs, by stage."""

    screen: list[float] = field(default_factory=list)
    confirm: list[float] = field(default_factory=list)
    judged: CallTimes = CallTimes.FASTEST
    """Which calls these are the ratios of."""
    uneven: bool = False
    """Whether the mean calls look slower than these say, and are not certain to be."""
    doubtful: int = 0
    """How many of them count though their own blocks leave them uncertain by more than RUINED thresholds."""
    floor: float = 0.0
    """A log-ratio: what the shortest slowdown that counts, in nanoseconds, is of this case."""

    @property
    def pairs(self) -> list[float]:
        """All of them, in the order taken."""
        return [*self.screen, *self.confirm]


@dataclass(frozen=True)
class TakenPair:
    """A pair of processes, whether it counts or not."""

    reading: Reading
    late: bool = False
    """Whether it was taken while confirming."""


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
    pairs_are: str = "process pairs"
    """What a pair is, as reasons call it."""

    @property
    def bound(self) -> float:
        """The threshold as a log-ratio."""
        return math.log1p(self.threshold)

    def of(self, case: PairedCase) -> PairedPolicy:
        """The same for this case, of which the floor may ask for a larger change."""
        return self if case.floor <= self.bound else replace(self, threshold=math.expm1(case.floor))


def stage(case: PairedCase, policy: PairedPolicy, cases: int, control: Control = NO_CONTROL) -> Stage:
    """Whether a case needs pairs, and whether it is decided.

    Args:
        case: its log-ratios so far.
        policy: threshold and limits.
        cases: how many cases the run compares: the level is shared among them.
        control: how far the base is off from itself, as far as that is known yet.
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
    found = widened(estimate(pairs), control)
    if found.value > policy.bound:
        sure = found.chance_of(policy.bound / 2.0) <= min(CASE_LEVEL, LEVEL / cases)
        return Stage.DECIDED if sure else Stage.OPEN
    near = case.uneven or found.value > NEARLY * policy.bound
    return Stage.OPEN if near or detectable(found, policy) > RESOLUTION * policy.bound else Stage.DECIDED


def case_of(taken: Sequence[TakenPair], policy: PairedPolicy) -> PairedCase:
    """What is judged of the pairs that were taken."""
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
    """The log-ratio of these calls."""
    excess = {CallTimes.FASTEST: 0.0, CallTimes.MEAN: reading.excess, CallTimes.ALL: reading.excess_of_all}
    return reading.log + excess[judged]


def calls_judged(readings: Sequence[Reading], policy: PairedPolicy) -> tuple[CallTimes, bool]:
    """Which calls are judged; and whether the mean ones look slower than the fastest say, without being certain to be.

    An excess below half of the threshold changes no verdict that the fastest calls give.
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
        if means.error < KNOWN_BETTER * fastest.error:  # a turn of one sample has no faster one where calls differ
            return mean, False
        found = estimate(excesses)
        size = abs(found.value)
        if size > least and 2.0 * student_t_tail(size / found.error, found.freedom) <= CERTAINLY_UNEVEN:
            return mean, False
        looks_so = fmean(excesses) > least if rare else found.value > max(least, UNEVEN[mean] * found.error)
        uneven = uneven or looks_so
    return CallTimes.FASTEST, uneven and many > 0


def counted(errors: Sequence[float], policy: PairedPolicy) -> list[bool]:
    """Which pairs of a case count, by what each pair's own blocks leave it uncertain by; the others were ruined.

    A pair is ruined if that is much both for the threshold and for this case: on a machine that is always disturbed
    another pair is no better. What a pair came out at has no say, so dropping it favours no verdict.
    """
    usual = sorted(errors)[(len(errors) - 1) // 2] if errors else 0.0
    return [error <= max(RUINED * policy.bound, RUINED_BESIDE * usual) for error in errors]


def shows_nothing(two: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether two pairs are enough to let a case go: neither is near the threshold, and they are not far apart.

    One disturbed pair alone cannot let a slow case go: the other one shows it. Two that are both far too fast are
    either code that got faster or a machine that was disturbed, and a third one tells.
    """
    return -policy.bound <= max(two) < NEARLY * policy.bound and not are_scattered(two, policy)


def is_suspect(pairs: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether a few pairs saw something, or too little to say that they did not."""
    return median(pairs) > policy.bound / 2.0 or are_scattered(pairs, policy)


def are_scattered(pairs: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether a few pairs are so far apart that they have shown nothing, in either direction."""
    return noticeable(spread_of(pairs), policy) > RESOLUTION * policy.bound


def noticeable(spread: float, policy: PairedPolicy) -> float:
    """The smallest log-ratio that the screen would not have let go in nine of ten runs, if pairs spread so."""
    # Of a slowdown that both of two pairs miss, each misses one of ten's square root.
    of_two = NEARLY * policy.bound + NormalDist().inv_cdf(1.0 - math.sqrt(1.0 - POWER)) * spread
    return max(of_two, policy.bound / 2.0 + NormalDist().inv_cdf(POWER) * MEDIAN_OF_THREE * spread)


def looks_faster(pairs: Sequence[float], policy: PairedPolicy) -> bool:
    """Whether a few pairs all saw an improvement, which is confirmed as a slowdown is: beside the null control."""
    return max(pairs) < -policy.bound


def detectable(found: Estimate, policy: PairedPolicy) -> float:
    """The smallest log-ratio that pairs of this spread would have shown in nine of ten runs."""
    level = student_t_quantile(1.0 - CASE_LEVEL, found.freedom)
    least = max(policy.bound, found.allowance + policy.bound / 2.0 + level * found.error)
    return least + NormalDist().inv_cdf(POWER) * found.error


def discoveries(found: Mapping[str, Estimate], policies: Mapping[str, PairedPolicy], cases: int) -> set[str]:
    """Which of the confirmed cases regressed: past the threshold, and beyond doubt past half of it.

    Beyond doubt by the rule of Benjamini & Hochberg over all ``cases``, of which those that the screen cleared
    count as having nothing to show.
    """
    chances = sorted((seen.chance_of(policies[name].bound / 2.0), name) for name, seen in found.items())
    passed = [rank for rank, (chance, _) in enumerate(chances, 1) if chance <= min(CASE_LEVEL, LEVEL * rank / cases)]
    best = {name for _, name in chances[: max(passed, default=0)]}
    return {name for name in best if found[name].value > policies[name].bound}


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
        looks_slower = self.verdict is Verdict.REGRESSED or (self.verdict is Verdict.OK and self.change.is_past_limit)
        if looks_slower and now_ns - base_ns <= floor_ns:
            return replace(timed, verdict=Verdict.OK, reasons=["slower by less than --perf-floor"])
        return timed


def latency_findings(
    cases: Mapping[str, PairedCase], controls: Mapping[str, Sequence[Reading]], policy: PairedPolicy
) -> dict[str, PairedFinding]:
    """The verdict on every case's latency.

    Args:
        cases: log-ratios of all cases of the run, which share the level of significance.
        controls: the base against itself, by the case in which it was taken.
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
    seen = {name: widened(found, control[name]) for name, found in confirmed.items()}
    slower = discoveries(seen, policies, len(cases))
    doubted = discoveries(confirmed, policies, len(cases)) - slower
    # What process pairs of this run typically differ by, as a standard deviation, from each case's first ones.
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
            one = _unfinished(case, policy)
        # The limit that is shown is everybody's; a case with a floor says in words why it is no slower.
        found[name] = replace(one, change=msgspec.structs.replace(one.change, limit=1.0 + policy.threshold))
    return found


def controls_of(cases: Mapping[str, PairedCase], controls: Mapping[str, Sequence[Reading]]) -> dict[str, Control]:
    """What the null control says about each case, of the calls that are judged there."""
    spreads = {name: spread_of_case(case.pairs) for name, case in cases.items()}
    logs = {
        judged: {name: [log_of(one, judged) for one in readings] for name, readings in controls.items()}
        for judged in CallTimes
    }
    return {name: control_of(logs[case.judged], name, spreads) for name, case in cases.items()}


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


def _of_screen(case: PairedCase, usual: float, control: Control, policy: PairedPolicy) -> PairedFinding:
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
    # Two or three pairs may agree by luck where others of the run do not; of more, their own spread has been asked.
    if not case.confirm and noticeable(max(usual, spread_of(case.screen)), policy) > RESOLUTION * policy.bound:
        return PairedFinding(Verdict.INCONCLUSIVE, change, [_differ(least, policy)], least)
    return PairedFinding(Verdict.OK, change, [], least)


def _unfinished(case: PairedCase, policy: PairedPolicy) -> PairedFinding:
    change = _screen_change(case, policy)
    pairs = format_count(len(case.pairs), "pair")
    reason = f"{format_change(change.ratio)} after {pairs}; the comparison ended before it was decided"
    return PairedFinding(Verdict.INCONCLUSIVE, change, [reason])


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
