"""The paired judge on process pairs of known noise: what it calls slower, what it finds, what its interval covers."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable
from statistics import median

import pytest
from syrupy.assertion import SnapshotAssertion

from perflab.judging.interleave import Reading
from perflab.judging.paired import (
    LOOKS,
    PairedCase,
    PairedFinding,
    PairedPolicy,
    Stage,
    controls_of,
    latency_findings,
    stage,
)
from perflab.judging.statistics import estimate, student_t_quantile, student_t_tail
from perflab.results.records import MEANINGLESS, Verdict
from tests.harness.machine import steady

Noise = Callable[[random.Random], float]
POLICY = PairedPolicy()


def gaussian(spread: float) -> Noise:
    return lambda draw: draw.gauss(0.0, spread)


def heavy_tailed(spread: float) -> Noise:
    """Student's t with three degrees of freedom."""

    def noise(draw: random.Random) -> float:
        return spread * draw.gauss(0.0, 1.0) / math.sqrt(sum(draw.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3.0)

    return noise


def disturbed(spread: float) -> Noise:
    """Three pairs in a hundred off by a lot, as was seen on a shared machine."""

    def noise(draw: random.Random) -> float:
        if draw.random() < 0.03:
            return draw.choice([-1.0, 1.0]) * draw.uniform(0.05, 0.30)
        return draw.gauss(0.0, spread)

    return noise


def two_speeds(gap: float, often: float) -> Noise:
    """Each process runs at one of two speeds to its end."""
    return lambda draw: draw.gauss(0.0, 0.005) + gap * ((draw.random() < often) - (draw.random() < often))


def drifting(spread: float) -> Noise:
    """A machine that slows down and recovers over the run: what taking turns does not cancel, a tenth of it."""
    moments: dict[random.Random, int] = {}

    def noise(draw: random.Random) -> float:
        moments[draw] = moments.get(draw, 0) + 1
        return 0.1 * 0.10 * math.sin(moments[draw] / 7.0) + draw.gauss(0.0, spread)

    return noise


NOISES = {
    "quiet": gaussian(0.005),
    "usual": gaussian(0.01),
    "wide": gaussian(0.02),
    "very wide": gaussian(0.05),
    "heavy-tailed": heavy_tailed(0.01),
    "disturbed": disturbed(0.009),
    "two speeds, near": two_speeds(0.03, 0.5),
    "two speeds, far": two_speeds(0.10, 0.5),
    "rarely slow processes": two_speeds(0.20, 0.1),
    "drifting": drifting(0.008),
}


def run(draw: random.Random, noise: Noise, slowdowns: list[float]) -> dict[str, PairedFinding]:
    """One run over as many cases as there are slowdowns, the null control included."""
    cases = {f"{number}": PairedCase() for number in range(len(slowdowns))}

    def pair(name: str) -> float:
        return math.log1p(slowdowns[int(name)]) + noise(draw)

    while wanted := [name for name, case in cases.items() if stage(case, POLICY, len(cases)) is Stage.UNSCREENED]:
        for name in wanted:
            cases[name].screen.append(pair(name))
    controls: dict[str, list[Reading]] = {}

    def suspects() -> list[str]:
        known = controls_of(cases, controls)
        return [name for name, case in cases.items() if stage(case, POLICY, len(cases), known[name]) is Stage.OPEN]

    while wanted := suspects():
        fewest = min(wanted, key=lambda name: len(controls.get(name, ())))
        controls.setdefault(fewest, []).append(Reading(noise(draw)))
        for name in wanted:
            cases[name].confirm.append(pair(name))
    return latency_findings(cases, controls, POLICY)


def verdicts(noise: Noise, slowdown: float, runs: int, cases: int = 4) -> Counter[Verdict]:
    draw = random.Random(20251120)
    return Counter(finding.verdict for _ in range(runs) for finding in run(draw, noise, [slowdown] * cases).values())


@pytest.mark.parametrize("cases", [1, 20])
@pytest.mark.parametrize("name", [name for name in NOISES if name != "wide"])
def test_unchanged_code_is_called_slower_in_less_than_two_of_a_thousand_cases(name: str, cases: int) -> None:
    # One of a thousand in these, which 2,400 trials do not tell from two.
    trials = 4800 if name in ("two speeds, far", "very wide") else 2400
    found = verdicts(NOISES[name], 0.0, runs=trials // cases, cases=cases)
    assert found[Verdict.REGRESSED] <= 0.002 * found.total()


@pytest.mark.parametrize(
    ("name", "slowdown", "least"),
    [
        ("quiet", 0.03, 0.99),
        ("usual", 0.03, 0.97),
        ("usual", 0.05, 0.99),
        ("wide", 0.05, 0.97),
        ("wide", 0.10, 0.99),
        ("very wide", 0.20, 0.97),
        ("heavy-tailed", 0.05, 0.97),
        ("disturbed", 0.03, 0.93),
        ("disturbed", 0.05, 0.97),
        ("drifting", 0.05, 0.98),
    ],
)
def test_a_slowdown_is_found_where_the_noise_allows_it(name: str, slowdown: float, least: float) -> None:
    found = verdicts(NOISES[name], slowdown, runs=100)
    assert found[Verdict.REGRESSED] >= least * found.total()


def test_one_slow_case_among_many_is_found_and_the_others_are_left_alone() -> None:
    draw = random.Random(20251120)
    runs = [run(draw, gaussian(0.01), [0.05, *[0.0] * 19]) for _ in range(100)]
    assert sum(found["0"].verdict is Verdict.REGRESSED for found in runs) >= 98
    assert not [name for found in runs for name in found if name != "0" and found[name].verdict is Verdict.REGRESSED]


@pytest.mark.parametrize("name", ["very wide", "two speeds, far"])
def test_too_much_noise_is_inconclusive_and_says_what_it_could_have_found(name: str) -> None:
    draw = random.Random(20251120)
    found = [finding for _ in range(100) for finding in run(draw, NOISES[name], [0.05] * 4).values()]
    unsure = [finding for finding in found if finding.verdict is Verdict.INCONCLUSIVE]
    assert len(unsure) > 100
    for finding in unsure:
        assert finding.detectable is not None
        if "that this run can detect" in finding.reasons[0]:
            assert finding.detectable > 1.03


@pytest.mark.parametrize("count", LOOKS)
@pytest.mark.parametrize("name", ["quiet", "heavy-tailed"])
def test_the_interval_covers_the_truth_at_its_nominal_rate(name: str, count: int) -> None:
    """Above the least credible spread the width of the noise makes no difference; the quiet one is near it."""
    draw = random.Random(20251120)
    covered = 0
    for _ in range(3000):
        found = estimate([0.03 + NOISES[name](draw) for _ in range(count)])
        covered += found.low <= 0.03 <= found.high
    assert 0.943 <= covered / 3000 <= 0.99


@pytest.mark.parametrize("name", ["quiet", "usual", "heavy-tailed", "disturbed", "drifting"])
def test_the_interval_that_is_reported_covers_the_truth_though_pairs_were_taken_until_it_was_clear(name: str) -> None:
    draw = random.Random(20251120)
    slowdowns = [0.0, 0.02, 0.03, 0.05]
    covered = reported = 0
    for _ in range(400):
        for case, finding in run(draw, NOISES[name], slowdowns).items():
            if finding.change.low is None or finding.change.high is None:
                continue
            reported += 1
            covered += finding.change.low <= 1.0 + slowdowns[int(case)] <= finding.change.high
    assert reported > 300
    assert covered / reported >= 0.93


def test_a_bad_pair_at_either_end_moves_neither_the_estimate_nor_the_interval() -> None:
    pairs = [0.048, 0.049, 0.050, 0.050, 0.051, 0.052]
    calm, shaken = estimate([*pairs, 0.045, 0.055]), estimate([*pairs, -0.9, 2.0])
    assert shaken.value == pytest.approx(calm.value)
    assert (shaken.low, shaken.high) == pytest.approx((calm.low, calm.high))


def test_a_control_as_large_as_the_slowdown_makes_it_inconclusive_and_a_smaller_one_does_not(
    snapshot: SnapshotAssertion,
) -> None:
    slow = PairedCase(screen=[0.1] * 3, confirm=[0.1] * 8)
    honest = latency_findings({"case": slow}, {"case": steady(*[0.001, -0.002] * 4)}, POLICY)["case"]
    assert honest.verdict is Verdict.REGRESSED
    off = latency_findings({"case": slow}, {"case": steady(*[0.03, 0.031] * 4)}, POLICY)["case"]
    assert off.verdict is Verdict.REGRESSED, "seven hundredths are left of the ten, and are more than the threshold"
    unfit = latency_findings({"case": slow}, {"case": steady(*[0.1, 0.101] * 4)}, POLICY)["case"]
    assert unfit.verdict is Verdict.INCONCLUSIVE
    assert unfit.reasons[0] == snapshot
    single = latency_findings({"case": slow}, {"case": steady(*[0.1])}, POLICY)["case"]
    assert single.verdict is Verdict.REGRESSED, "a single pair of the base with itself is no evidence"


def test_code_that_got_faster_is_confirmed_beside_a_control_as_a_slowdown_is() -> None:
    screened = PairedCase(screen=[-0.05, -0.06, -0.05])
    assert stage(screened, POLICY, 1) is Stage.OPEN
    assert latency_findings({"case": screened}, {}, POLICY)["case"].verdict is Verdict.INCONCLUSIVE, "not followed up"
    faster = PairedCase(screen=[-0.05, -0.06, -0.05], confirm=[-0.05, -0.06, -0.05, -0.055])
    assert stage(faster, POLICY, 1) is Stage.DECIDED
    found = latency_findings({"case": faster}, {"case": steady(*[0.001, -0.002, 0.0, 0.001])}, POLICY)["case"]
    assert found.verdict is Verdict.IMPROVED
    assert found.change.ratio == pytest.approx(math.exp(-0.053), abs=0.002)
    assert found.change.high is not None
    assert found.change.high < 0.97
    off = latency_findings({"case": faster}, {"case": steady(*[-0.05, -0.051, -0.05, -0.049])}, POLICY)["case"]
    assert off.verdict is not Verdict.IMPROVED, "the base came out as much faster than itself"


def test_a_screen_clears_a_case_only_where_its_pairs_leave_no_room() -> None:
    mixed = PairedCase(screen=[-0.03, -0.04, -0.03], confirm=[-0.03, 0.0])
    assert stage(mixed, POLICY, 1) is Stage.CLEARED
    assert latency_findings({"case": mixed}, {}, POLICY)["case"].verdict is Verdict.OK
    assert stage(PairedCase([0.01, -0.03]), POLICY, 1) is Stage.CLEARED
    assert stage(PairedCase([0.01, -0.065]), POLICY, 1) is Stage.UNSCREENED
    assert stage(PairedCase([0.01, -0.065, 0.03]), POLICY, 1) is Stage.OPEN
    for pairs in ([0.0, 0.0], [0.0, 0.0, 0.0]):
        assert stage(PairedCase(pairs, doubtful=len(pairs)), POLICY, 1) is not Stage.CLEARED
        assert stage(PairedCase(pairs), POLICY, 1) is Stage.CLEARED


def test_pairs_that_agree_by_luck_in_a_run_whose_pairs_do_not_are_no_reason_to_call_a_case_ok(
    snapshot: SnapshotAssertion,
) -> None:
    lucky = PairedCase([0.01, 0.005])
    wild = {f"{number}": PairedCase([0.0, 0.09, -0.09]) for number in range(4)}
    assert latency_findings({"case": lucky}, {}, POLICY)["case"].verdict is Verdict.OK
    found = latency_findings({"case": lucky, **wild}, {}, POLICY)["case"]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons[0] == snapshot


@pytest.mark.parametrize("name", ["usual", "wide", "very wide", "disturbed"])
def test_of_code_that_is_slower_by_two_and_a_half_thresholds_one_case_of_ten_is_called_ok_at_most(name: str) -> None:
    found = verdicts(NOISES[name], math.expm1(2.5 * POLICY.bound), runs=150)
    assert found[Verdict.OK] <= 0.1 * found.total()


def test_a_floor_asks_for_a_larger_change_of_the_case_that_has_it_and_of_no_other(snapshot: SnapshotAssertion) -> None:
    pairs = [0.10, 0.101, 0.099]
    short, long = PairedCase(pairs, floor=math.log1p(0.4)), PairedCase(pairs)
    assert stage(short, POLICY, 2) is Stage.CLEARED
    assert stage(long, POLICY, 2) is Stage.OPEN
    found = latency_findings({"short": short, "long": long}, {}, POLICY)
    assert found["short"].timed(5_000.0, 2_000.0).reasons == snapshot
    assert found["short"].verdict is Verdict.OK
    assert found["long"].verdict is Verdict.INCONCLUSIVE
    assert stage(PairedCase([-0.10, -0.101, -0.099], floor=math.log1p(0.4)), POLICY, 1) is Stage.CLEARED


@pytest.mark.parametrize("case", [PairedCase([0.04] * 3, [0.04]), PairedCase([0.04] * 3), PairedCase([0.009])])
def test_a_case_that_was_not_followed_up_is_inconclusive(case: PairedCase, snapshot: SnapshotAssertion) -> None:
    found = latency_findings({"case": case}, {}, POLICY)["case"]
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.reasons[0] == snapshot
    assert found.detectable is None


def test_what_a_cleared_screen_says_it_could_have_found_it_does_find() -> None:
    draw = random.Random(20251120)
    noise = gaussian(0.01)
    said = [
        finding.detectable
        for _ in range(50)
        for finding in run(draw, noise, [0.0] * 4).values()
        if finding.verdict is Verdict.OK and finding.detectable is not None
    ]
    typical = median(said)
    assert 1.02 < typical < 1.05
    found = verdicts(noise, typical - 1.0, runs=50)
    assert found[Verdict.REGRESSED] >= 0.9 * found.total()


TEXTBOOK = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 10: 2.228, 15: 2.131, 16: 2.120, 20: 2.086, 30: 2.042}


def test_students_t_agrees_with_the_textbooks_table() -> None:
    for freedom, t in TEXTBOOK.items():
        assert student_t_tail(t, freedom) == pytest.approx(0.025, abs=3e-5)
        assert student_t_quantile(0.975, freedom) == pytest.approx(t, abs=6e-4)
        assert student_t_tail(-t, freedom) == pytest.approx(0.975, abs=3e-5)


@pytest.mark.parametrize("apart", [5.0, 50.0])
def test_pairs_too_wild_for_any_interval_are_inconclusive_and_promise_nothing(
    apart: float, snapshot: SnapshotAssertion
) -> None:
    wild = PairedCase(screen=[6.0, 6.0, 6.0], confirm=[0.1, 0.2, apart, 2.0 * apart, 2.0 * apart])
    finding = latency_findings({"wild": wild}, {}, PairedPolicy(looks=(8,)))["wild"]
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert finding.reasons == snapshot
    assert finding.detectable is not None
    assert finding.detectable > MEANINGLESS
