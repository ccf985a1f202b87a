"""Judging a log: what each gate would have said of unchanged code, and of code made slower by a known share. Pure.

Slowdowns are injected into the recorded data: every time of the later side is multiplied. Both gates see the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from statistics import NormalDist, fmean, median

import msgspec

from perflab.doctor.trials import REPLICATES, Benchmarked, Line, Pair, Parent, Session
from perflab.gate.judge import judge, judge_memory, peaks_of
from perflab.gate.paired import SCREEN_PAIRS, PairedCase, PairedPolicy, Stage, latency_findings, stage
from perflab.gate.unsettled import turns_policy
from perflab.plugin.suspects import cleared
from perflab.records import Entry, Environment, Paired, Policy, Record, Replicate, Verdict

SLOWDOWNS = (0.0, 0.02, 0.03, 0.05, 0.10)
BENCHMARK_LIMIT = 1.05
"""``--benchmark-compare-fail=median:5%``, the usual rule."""


@dataclass
class Rate:
    """How often something was found, of so many times, and what that cost."""

    found: int = 0
    tried: int = 0
    unsure: int = 0
    """Times that the answer was ``inconclusive``; they count as not found."""
    seconds: list[float] = field(default_factory=list)
    """Of each run over all cases."""

    @property
    def share(self) -> float:
        """Found, of those tried."""
        return self.found / self.tried if self.tried else math.nan

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Wilson's score interval (1927) of ``share``."""
        if not self.tried:
            return 0.0, 1.0
        z = NormalDist().inv_cdf(0.5 + confidence / 2.0)
        n, p = self.tried, self.share
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return max(0.0, middle - half), min(1.0, middle + half)

    @property
    def cost_s(self) -> float:
        """Mean seconds of a run over all cases."""
        return fmean(self.seconds) if self.seconds else math.nan


def paired_rate(lines: Sequence[Line], slowdown: float, policy: PairedPolicy | None = None) -> Rate:
    """The paired gate: each screen is of its own pairs; suspects go on with the pairs that were recorded next."""
    policy = policy or PairedPolicy()
    drawing = _Drawing(lines)
    parent_s = fmean([line.seconds for line in lines if isinstance(line, Parent)] or [0.0])
    rate = Rate()
    if not drawing.names:
        return rate
    for trial, first in enumerate(range(0, len(drawing.pairs) - SCREEN_PAIRS + 1, SCREEN_PAIRS)):
        cases = {name: PairedCase() for name in drawing.names}
        seconds, rounds = drawing.fill(cases, first, slowdown, policy)
        control = drawing.control(rounds, trial, drawing.names[trial % len(drawing.names)])
        for finding in latency_findings(cases, control, policy).values():
            _count(rate, finding.verdict)
        rate.seconds.append(parent_s + seconds)
    return rate


class _Drawing:
    """Process pairs out of a log, as a comparison in turns asks for them."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.pairs = [line for line in lines if isinstance(line, Pair)]
        self._twins = [pair.twin_over_base for pair in self.pairs if pair.twin_over_base]
        self._two = _costs([pair for pair in self.pairs if not pair.twin_over_base])
        self._three = _costs([pair for pair in self.pairs if pair.twin_over_base])
        every = [set(pair.head_over_base) for pair in self.pairs]
        self.names = sorted(set.intersection(*every)) if every else []

    def fill(
        self, cases: Mapping[str, PairedCase], first: int, slowdown: float, policy: PairedPolicy
    ) -> tuple[float, int]:
        """Give the cases pairs, from the ``first`` one on, until none asks for more; the seconds, and the last rounds.

        The last trials confirm with the first ones' pairs.
        """
        added = math.log1p(slowdown)
        taken, seconds = 0, 0.0
        for wanted_stage, costs in ((Stage.UNSCREENED, self._two), (Stage.OPEN, self._three)):
            while wanted := [name for name, case in cases.items() if stage(case, policy, len(cases)) is wanted_stage]:
                pair = self.pairs[(first + taken) % len(self.pairs)]
                taken += 1
                seconds += costs[""] + sum(costs[name] for name in wanted)
                for name in wanted:
                    logs = cases[name].screen if wanted_stage is Stage.UNSCREENED else cases[name].confirm
                    logs.append(pair.head_over_base[name] + added)
            if wanted_stage is Stage.UNSCREENED:
                taken = max(taken, SCREEN_PAIRS)
        return seconds, taken - SCREEN_PAIRS

    def control(self, rounds: int, trial: int, name: str) -> list[float]:
        """So many pairs of the base with itself."""
        return [self._twins[(trial + 1 + n) % len(self._twins)][name] for n in range(rounds)] if self._twins else []


def _costs(pairs: Sequence[Pair]) -> dict[str, float]:
    """Mean seconds of a round: of each case, and under the name "" until the processes are up."""
    if not pairs:
        return defaultdict(lambda: math.nan)
    names = pairs[0].case_s
    return {"": fmean(pair.start_s for pair in pairs), **{n: fmean(pair.case_s[n] for pair in pairs) for n in names}}


def benchmark_rate(lines: Sequence[Line], slowdown: float, *, stored: bool = False) -> Rate:
    """pytest-benchmark's rule: two runs back to back; with ``stored``, each run against the very first one."""
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
    """The gate over a stored baseline: each session judged by the baseline that each other one would have saved.

    ``settle``: whether the baseline's commit is at hand, so that what is unsettled is measured in turns with it.
    """
    sessions = [line for line in lines if isinstance(line, Session)]
    drawing = _Drawing(lines)
    rate = Rate()
    for number, (saved, session) in enumerate(permutations(sessions, 2)):
        processes, turns_s = 1, 0.0
        for name, replicates in session.replicates.items():
            entry = Entry(environment=_HERE, recorded="", replicates=saved.replicates[name][:REPLICATES])
            here, *fresh = [_slower(replicate, slowdown) for replicate in replicates]
            record = Record(case=name, environment=_HERE, summary=here)
            judgement = judge(record, entry, Policy())
            if judgement.suspect:
                for taken in range(1, len(fresh) + 1):
                    processes = max(processes, 1 + taken)
                    record = msgspec.structs.replace(record, fresh=fresh[:taken])
                    judgement = judge(record, entry, Policy())
                    if cleared(judgement, Policy().threshold):
                        break
            if settle and judgement.unsettled and judgement.verdict is not Verdict.REGRESSED and name in drawing.names:
                logs = PairedCase()
                seconds, rounds = drawing.fill({name: logs}, number * SCREEN_PAIRS, slowdown, turns_policy(Policy()))
                turns_s += seconds
                paired = Paired(
                    against="",
                    screen=[math.exp(log) for log in logs.screen],
                    confirm=[math.exp(log) for log in logs.confirm],
                    control=[math.exp(log) for log in drawing.control(rounds, number, name)],
                    base_ns=median(r.median_ns for r in entry.replicates),
                )
                judgement = judge(msgspec.structs.replace(record, paired=paired), entry, Policy())
            _count(rate, judgement.verdict)
        rate.seconds.append(sum(session.seconds[:processes]) + turns_s)
    return rate


def memory_rate(lines: Sequence[Line], added_bytes: int) -> Rate:
    """The exact gate on peak memory: each process of every session but the first, against the first one's."""
    sessions = [line for line in lines if isinstance(line, Session)]
    rate = Rate()
    for session in sessions[1:]:
        for name, replicates in session.replicates.items():
            before = peaks_of(sessions[0].replicates[name][:REPLICATES])
            for peak_bytes in peaks_of(replicates):
                _count(rate, judge_memory(before, [peak_bytes + added_bytes], "cpu", Policy()).verdict)
    return rate


def _slower(replicate: Replicate, slowdown: float) -> Replicate:
    """The same process with code that takes so much longer; the machine's yardsticks stay what they were."""
    factor = 1.0 + slowdown
    return msgspec.structs.replace(
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
