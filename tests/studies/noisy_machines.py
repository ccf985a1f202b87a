"""Machines of known noise, for the judge of stored numbers: a baseline is saved on one, and judged on another. Seeded.

A model of noise says what a session does to each of its processes: to the typical and the fastest call, to the fixed
pieces of work that are timed beside them, and what the process sees of the cause. Each is applied while the baseline
is saved, while it is compared with, and both times; the other time is an ordinary hour. The path is the whole one:
first reading, fresh processes until they decide, and the real judge.

    python -m tests.studies.noisy_machines [TRIALS]     the table of docs/measuring.md; some minutes
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import msgspec

from perflab.measured.run.replicates import cleared, processes_wanted
from perflab.results.measurement import Replicate
from perflab.results.records import Policy, Verdict
from tests.harness.make import MS, entry, judge, record, replicate

REPLICATES = 3
YARDSTICKS = {"interpreter": 0.01, "memory": 0.02, "threads": 0.03}
"""Fixed pieces of work, and by how much their readings differ from process to process."""


@dataclass(frozen=True)
class Effect:
    """What a machine does to one process. Factors are of times."""

    typical: float = 1.0
    fastest: float = 1.0
    machine: float = 1.0
    """Of the fixed pieces of work."""
    within: float = 0.002
    """What the process knows of its own noise."""
    seen: dict[str, float] = field(default_factory=dict)


Session = Iterator[Effect]
Noise = Callable[[random.Random], Session]


def spread(share: float, tails: bool = False) -> Noise:
    """Processes differ, and nothing tells why."""

    def session(draw: random.Random) -> Session:
        while True:
            factor = draw.gauss(0.0, share)
            if tails:  # Student's t with three degrees of freedom
                factor /= math.sqrt(sum(draw.gauss(0.0, 1.0) ** 2 for _ in range(3)) / 3.0)
            yield Effect(math.exp(factor), math.exp(factor))

    return session


def speeds(*factors: float) -> Noise:
    """Code that runs at one of several speeds, which a process keeps to its end."""

    def session(draw: random.Random) -> Session:
        while True:
            factor = draw.choice(factors)
            yield Effect(factor, factor)

    return session


def busy(seen: bool, often: float = 1.0) -> Noise:
    """Other processes on the same cores: they delay most calls, and few not at all."""

    def session(draw: random.Random) -> Session:
        while True:
            if draw.random() >= often:
                yield Effect()
                continue
            yield Effect(
                draw.uniform(1.2, 2.0),
                draw.uniform(1.0, 1.06),
                draw.uniform(1.0, 1.5),
                draw.uniform(0.002, 0.05),
                {"neighbours_cores": draw.uniform(0.5, 1.9)} if seen else {},
            )

    return session


def stolen(draw: random.Random) -> Session:
    """A hypervisor that gives time to other machines, much or little of it for the length of a session."""
    usual = draw.uniform(0.05, 0.3)
    while True:
        share = usual * draw.uniform(0.7, 1.3)
        slower = 1.0 / (1.0 - share)
        yield Effect(slower * draw.uniform(1.0, 1.1), draw.uniform(1.0, 1.06), slower, 0.01, {"steal_share": share})


def slow_clock(draw: random.Random) -> Session:
    """A machine that does everything slower for the length of a session: heat, a power limit, a neighbour's turbo."""
    usual = draw.uniform(1.05, 1.8)
    while True:
        factor = usual * math.exp(draw.gauss(0.0, 0.01))
        yield Effect(factor, factor, factor)


def bursts(draw: random.Random) -> Session:
    """Something that delays most calls by a little, none of the fastest, and nothing that is timed between them."""
    usual = draw.uniform(1.0, 1.4)
    while True:
        yield Effect(usual * math.exp(draw.gauss(0.0, 0.02)), within=draw.uniform(0.005, 0.05))


ORDINARY = spread(0.0)
OF_THE_MACHINE: dict[str, Noise] = {
    "one process in five delayed": busy(seen=False, often=0.2),
    "neighbours, seen": busy(seen=True),
    "neighbours, not seen": busy(seen=False),
    "stolen time": stolen,
    "slow clock": slow_clock,
    "bursts": bursts,
}
OF_THE_CODE: dict[str, Noise] = {
    "processes differ by 0.3 %": spread(0.003),
    "processes differ by 3 %": spread(0.03),
    "processes differ by 10 %": spread(0.10),
    "processes differ, heavy tails": spread(0.02, tails=True),
    "two speeds, 1.4 apart": speeds(1.0, 1.4),
    "two speeds, 2.2 apart": speeds(1.0, 2.2),
    "three speeds": speeds(1.0, 1.3, 2.0),
}
"""Where its memory comes to lie, say: the same at all times, and no evidence tells."""
SIDES = ("the baseline", "now", "both")


def measured(draw: random.Random, session: Session, factor: float) -> Iterator[Replicate]:
    """Processes that measure the case in a session, one after another; an ordinary process is off by a percent."""
    while True:
        effect = next(session)
        own_ns = 100 * MS * factor * math.exp(draw.gauss(0.0, 0.01))
        median_ns = own_ns * effect.typical
        yield replicate(
            median_ns,
            fastest_ns=min(median_ns, own_ns * effect.fastest * 0.99 * math.exp(draw.gauss(0.0, 0.003))),
            noise=effect.within,
            calibration_ns={
                name: 1000.0 * effect.machine * math.exp(draw.gauss(0.0, own)) for name, own in YARDSTICKS.items()
            },
            cores_busy=1.9,
            **{"neighbours_cores": draw.uniform(0.0, 0.05), "steal_share": 0.0, **effect.seen},
        )


def verdict(draw: random.Random, before: Noise, now: Noise, slowdown: float) -> Verdict:
    """What one case comes to where there is no commit to settle it with."""
    baseline = entry(list(islice(measured(draw, before(draw), 1.0), REPLICATES)))
    processes = measured(draw, now(draw), slowdown)
    case = record(next(processes))
    judgement = judge(case, baseline, Policy())
    if judgement.suspect:
        most = processes_wanted(judgement, REPLICATES, settles=False)
        while len(case.fresh) < most:
            case = msgspec.structs.replace(case, fresh=[*case.fresh, next(processes)])
            judgement = judge(case, baseline, Policy())
            if cleared(judgement, Policy().threshold):
                break
    return judgement.verdict


def verdicts(name: str, side: str, slowdown: float, trials: int) -> Counter[Verdict]:
    """How often each verdict is given."""
    draw = random.Random(f"{name} {side} {slowdown}")
    noise = (OF_THE_MACHINE | OF_THE_CODE)[name]
    before, now = noise if side != "now" else ORDINARY, noise if side != "the baseline" else ORDINARY
    return Counter(verdict(draw, before, now, slowdown) for _ in range(trials))


def rows() -> list[tuple[str, str]]:
    """Every model with every time that it can be applied to."""
    return [(name, side) for name in OF_THE_MACHINE for side in SIDES] + [(name, "both") for name in OF_THE_CODE]


def main(trials: int) -> None:
    """Print the table: shares of the trials, of code that is 10 % slower and of unchanged code."""
    print(
        "| noise | in | slower: ok | improved | can't tell | regressed | unchanged: improved | can't tell | regressed |"
    )
    print(f"|---|---|{'--:|' * 7}")
    for name, side in rows():
        slower, same = (verdicts(name, side, slowdown, trials) for slowdown in (1.1, 1.0))
        order = (Verdict.IMPROVED, Verdict.INCONCLUSIVE, Verdict.REGRESSED)
        shares = [slower[one] for one in (Verdict.OK, *order)] + [same[one] for one in order]
        print(f"| {name} | {side} | {' | '.join(f'{100 * share / trials:.2f} %' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20_000)
