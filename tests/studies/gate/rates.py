"""Computes false alarms and power from a log of trials: unchanged code, and code slower by a known share. Pure.

Slowdowns are injected into the recorded data: every time of the later side is multiplied. Both gates see the same data.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from statistics import NormalDist, fmean, median

from perflab.base.data import changed
from perflab.judging.exact import judge_memory, peaks_of
from perflab.judging.finding import turns_policy
from perflab.judging.interleave import Reading
from perflab.judging.judge import judge
from perflab.judging.null_control import wants_more
from perflab.judging.paired import (
    SCREEN_PAIRS,
    PairedCase,
    PairedPolicy,
    Stage,
    TakenPair,
    case_of,
    controls_of,
    latency_findings,
    log_of,
    stage,
)
from perflab.measured.baselines import split
from perflab.measured.run.replicates import cleared
from perflab.results.measured import Entry, MeasuredCase
from perflab.results.measurement import Paired, Replicate
from perflab.results.records import Environment, Policy, Verdict
from tests.studies.gate.trials import REPLICATES, Benchmarked, Line, Pair, Parent, Session
from tests.studies.gate.workloads import MIXED

SLOWDOWNS = (0.0, 0.02, 0.03, 0.05, 0.10)
BENCHMARK_LIMIT = 1.05
"""Ratio of medians above which pytest-benchmark fails: ``--benchmark-compare-fail=median:5%``, the usual rule."""


@dataclass
class Rate:
    """How often a gate flagged a case, among how many tries, and the cost of the runs."""

    found: int = 0
    tried: int = 0
    unsure: int = 0
    """Number of tries whose verdict was ``inconclusive``; these count as not found."""
    seconds: list[float] = field(default_factory=list)
    """Seconds of each run over all cases."""

    @property
    def share(self) -> float:
        """Share of the tries in which the case was flagged; NaN without tries."""
        return self.found / self.tried if self.tried else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return Wilson's score interval (1927) of ``share``; 0 to 1 without tries."""
        if not self.tried:
            return 0.0, 1.0
        z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
        n, p = self.tried, self.share
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    @property
    def cost_s(self) -> float:
        """Mean seconds of a run over all cases; NaN without runs."""
        return fmean(self.seconds) if self.seconds else math.nan


def paired_rate(
    lines: Sequence[Line],
    slowdown: float,
    policy: PairedPolicy | None = None,
    *,
    kind: str = MIXED,
    cases: int | None = None,
    slow: int | None = None,
    only: str | None = None,
) -> Rate:
    """Return the rate of the paired gate: each screen has its own pairs; suspects go on with the pairs recorded next.

    Args:
        lines: the recorded lines.
        slowdown: share by which the slower cases are slower.
        policy: threshold and limits.
        kind: the kind of workloads.
        cases: number of cases in a run; None: as many as the kind has. Further cases are the same ones, with pairs that
            were recorded at other times.
        slow: number of cases that are slower, the others being unchanged, and only the slower ones are counted; None:
            all cases.
        only: the name of the case that is counted; None: all cases.
    """
    policy = policy or PairedPolicy()
    drawing = _Drawing(lines, kind)
    parent_s = fmean([line.seconds for line in lines if isinstance(line, Parent)] or [0.0])
    rate = Rate()
    if not drawing.names:
        return rate
    many = len(drawing.names) if cases is None else cases
    for trial, first in enumerate(range(0, len(drawing.pairs) - SCREEN_PAIRS + 1, SCREEN_PAIRS)):
        # In each trial another case comes first, and so is the slow case.
        run = [drawing.column(trial + number, number // len(drawing.names)) for number in range(many)]
        slowdowns = {one: slowdown * (slow is None or number < slow) for number, one in enumerate(run)}
        judged = {one: PairedCase() for one in run}
        seconds, controls = drawing.fill(judged, first, slowdowns, policy)
        counted = run if slow is None else run[:slow]
        findings = latency_findings(judged, controls, policy)
        for one in counted:
            if only in (None, _own(one)):
                _count(rate, findings[one].verdict)
        rate.seconds.append(parent_s + seconds)
    return rate


def cases_of(lines: Sequence[Line], kind: str) -> list[str]:
    """Return the names of a kind's cases that all pairs of the kind have."""
    return _Drawing(lines, kind).names


class _Drawing:
    """Process pairs that are drawn from a log, as a comparison in turns asks for them."""

    def __init__(self, lines: Sequence[Line], kind: str = MIXED) -> None:
        self.pairs = [line for line in lines if isinstance(line, Pair) and line.kind == kind]
        self._twins = [pair for pair in self.pairs if pair.twin_over_base]
        self._two = _costs([pair for pair in self.pairs if not pair.twin_over_base])
        self._three = _costs([pair for pair in self.pairs if pair.twin_over_base])
        every = [set(pair.head_over_base) for pair in self.pairs]
        self.names = sorted(set.intersection(*every)) if every else []

    def column(self, number: int, copy: int) -> str:
        """Return a case's name in a run; copy ``n`` of a case has the pairs ``n`` sevenths of the recording later."""
        return f"{self.names[number % len(self.names)]}~{copy}"

    def fill(
        self, cases: dict[str, PairedCase], first: int, slowdowns: Mapping[str, float], policy: PairedPolicy
    ) -> tuple[float, dict[str, list[Reading]]]:
        """Give the cases pairs, from the ``first`` one on, until no case asks for more; return seconds and controls.

        The last trials confirm with the pairs of the first trials.
        """
        taken, seconds = 0, 0.0
        had: dict[str, list[TakenPair]] = {name: [] for name in cases}
        controls: dict[str, list[Reading]] = {}
        costs = self._two
        for wanted_stage in (Stage.UNSCREENED, Stage.OPEN):
            while True:
                known = controls_of(cases, controls)
                wanted = [
                    name for name, case in cases.items() if stage(case, policy, len(cases), known[name]) is wanted_stage
                ]
                if not wanted:
                    break
                seconds += costs[""] + sum(costs[_own(name)] for name in wanted)
                for name in wanted:
                    pair = self._pair(name, first + taken)
                    own = _own(name)
                    log = pair.head_over_base[own] + math.log1p(slowdowns[name])
                    seen = Reading(
                        log, pair.own_error.get(own, 0.0), *pair.excess.get(own, (0.0, 0.0, 0.0, 0.0, False))
                    )
                    had[name].append(TakenPair(seen, wanted_stage is Stage.OPEN))
                    cases[name] = case_of(had[name], policy)
                short = [name for name in wanted if wants_more(controls, name, known[name])]
                if wanted_stage is Stage.OPEN and self._twins and short:
                    fewest = min(short, key=lambda name: len(controls.get(name, ())))
                    twin = self._twins[(first + taken) % len(self._twins)]
                    own = _own(fewest)
                    control = Reading(
                        twin.twin_over_base[own], 0.0, *twin.twin_excess.get(own, (0.0, 0.0, 0.0, 0.0, False))
                    )
                    controls.setdefault(fewest, []).append(control)
                    seconds += self._three[""] - self._two[""] + self._three[_own(fewest)] - self._two[_own(fewest)]
                taken += 1
            taken = max(taken, SCREEN_PAIRS)
        return seconds, controls

    def _pair(self, column: str, number: int) -> Pair:
        later = int(column.rpartition("~")[2]) * (len(self.pairs) // 7)
        return self.pairs[(number + later) % len(self.pairs)]


def _own(column: str) -> str:
    """Return the name under which a column's case was recorded."""
    return column.rpartition("~")[0]


def _costs(pairs: Sequence[Pair]) -> dict[str, float]:
    """Return mean seconds of a round by case; the name "" stands for the start and the end of the processes."""
    if not pairs:
        return defaultdict(lambda: math.nan)
    names = pairs[0].case_s
    return {"": fmean(pair.start_s for pair in pairs), **{n: fmean(pair.case_s[n] for pair in pairs) for n in names}}


def benchmark_rate(lines: Sequence[Line], slowdown: float, *, stored: bool = False) -> Rate:
    """Return the rate of pytest-benchmark's rule on two runs back to back; if ``stored``, on each run and the first."""
    runs = [line for line in lines if isinstance(line, Benchmarked)]
    couples = (
        [(runs[0], run) for run in runs[1:]] if stored and runs else list(zip(runs[::2], runs[1::2], strict=False))
    )
    rate = Rate()
    for before, now in couples:
        for name, median_ns in now.medians_ns.items():
            rate.tried += 1
            rate.found += median_ns * (1.0 + slowdown) / before.medians_ns[name] > BENCHMARK_LIMIT
        rate.seconds.append(now.seconds + (0.0 if stored else before.seconds))
    return rate


def stored_rate(lines: Sequence[Line], slowdown: float, *, settle: bool = False) -> Rate:
    """Return the rate of the gate over a stored baseline.

    Each session is judged by the baseline that each other session would have saved. ``settle``: whether the baseline's
    commit is at hand, so that unsettled cases are measured in turns with that commit.
    """
    sessions = [line for line in lines if isinstance(line, Session)]
    drawing = _Drawing(lines)
    rate = Rate()
    for number, (saved, session) in enumerate(permutations(sessions, 2)):
        processes, turns_s = 1, 0.0
        for name, replicates in session.replicates.items():
            entry = Entry(environment=_HERE, recorded="", replicates=saved.replicates[name][:REPLICATES])
            here, *fresh = [_slower(replicate, slowdown) for replicate in replicates]
            record = MeasuredCase(case=name, environment=_HERE, summary=here)
            judgement = judge(record, split(entry), Policy())
            if judgement.suspect:
                for taken in range(1, len(fresh) + 1):
                    processes = max(processes, 1 + taken)
                    record = changed(record, fresh=fresh[:taken])
                    judgement = judge(record, split(entry), Policy())
                    if cleared(judgement, Policy().threshold):
                        break
            if settle and judgement.unsettled and judgement.verdict is not Verdict.REGRESSED and name in drawing.names:
                column = f"{name}~0"
                filled = {column: PairedCase()}
                seconds, controls = drawing.fill(
                    filled, number * SCREEN_PAIRS, {column: slowdown}, turns_policy(Policy())
                )
                turns_s += seconds
                logs = filled[column]
                paired = Paired(
                    against="",
                    screen=[math.exp(log) for log in logs.screen],
                    confirm=[math.exp(log) for log in logs.confirm],
                    control=[math.exp(log_of(one, logs.judged)) for one in controls.get(column, ())],
                    judged=logs.judged,
                    uneven=logs.uneven,
                    base_ns=median(r.median_ns for r in entry.replicates),
                )
                judgement = judge(changed(record, paired=paired), split(entry), Policy())
            _count(rate, judgement.verdict)
        rate.seconds.append(sum(session.seconds[:processes]) + turns_s)
    return rate


def memory_rate(lines: Sequence[Line], added_bytes: int) -> Rate:
    """Return the rate of the exact gate on peak memory: each process of later sessions against the first session's."""
    sessions = [line for line in lines if isinstance(line, Session)]
    rate = Rate()
    for session in sessions[1:]:
        for name, replicates in session.replicates.items():
            before = peaks_of(sessions[0].replicates[name][:REPLICATES])
            for peak_bytes in peaks_of(replicates):
                _count(rate, judge_memory(before, [peak_bytes + added_bytes], "cpu", Policy()).verdict)
    return rate


def _slower(replicate: Replicate, slowdown: float) -> Replicate:
    """Return the replicate with times longer by the share ``slowdown``; the calibration workload's readings stay."""
    factor = 1.0 + slowdown
    return changed(
        replicate,
        median_ns=replicate.median_ns * factor,
        fastest_ns=replicate.fastest_ns * factor,
        mean_ns=replicate.mean_ns * factor,
    )


def _count(rate: Rate, verdict: Verdict) -> None:
    rate.tried += 1
    rate.found += verdict is Verdict.REGRESSED
    rate.unsure += verdict is Verdict.INCONCLUSIVE


_HERE = Environment(device="cpu", device_name="", cores=0, threads=0, isa="", system="", python="", torch="")
