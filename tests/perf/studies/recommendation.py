"""From what was measured of a switch to a line of advice: use when, skip when, trade-off. Pure functions.

Nothing is said that the numbers do not show. Speed is that of turns with the baseline (`perflab.compare`), and counts
past its interval and past what the baseline and its other seeds show against themselves; without turns nothing is said
of it. A loss counts past what other seeds give; memory is exact, and counts from three hundredths on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perflab import Result
from perflab.units import format_ns

from .switches import BASELINE, BOTTOM, SEEDS

LEAST_TIME = 0.02
"""Nobody changes a program for less, and two readings can agree by chance."""
_LEAST_LOSS = 0.005
_BLIND = 0.1
"""A difference in time that could hide is spoken of from here on."""
_LEAST_MEMORY = 0.03
_NO_TURNS = "time not told, for want of turns"


@dataclass(frozen=True)
class Outcome:
    """One way to train, measured.

    step_ns     a whole step: the median of its turns, or of its samples where there were none
    peak_bytes  peak memory of a step, None where it was not taken
    loss        held-out loss after the training, in nats; None where it was not read
    setup_ns    what the first three steps took beyond later ones
    noise       half the width of the median's interval, as a share of it
    speed       times the baseline's, in turns with it; None where there were none
    parameters  of the model; None where they were not counted
    against     what its speed was taken in turns with
    """

    step_ns: float
    peak_bytes: int | None = None
    loss: float | None = None
    setup_ns: float = 0.0
    noise: float = 0.0
    speed: float | None = None
    parameters: float | None = None
    against: str = BASELINE


@dataclass(frozen=True)
class Noise:
    """What differs for no reason: a share of time, nats of loss."""

    time_share: float
    loss: float


def outcome_of(result: Result) -> Outcome | None:
    """What a case's result says; None where it measured nothing."""
    record = result.record
    if record is None or record.summary is None:
        return None
    memory, facts = record.summary.memory, record.facts
    speed, speed_noise = (number(facts.get(name)) for name in ("speed_ratio", "speed_noise_share"))
    return Outcome(
        number(facts.get("turn_ns")) or record.summary.median_ns,
        memory.peak_bytes if memory is not None else None,
        number(facts.get("loss")),
        number(facts.get("setup_ns")) or 0.0,
        speed_noise if speed_noise is not None else record.summary.noise,
        speed,
        number(facts.get("parameters")),
        str(facts.get("against") or BASELINE),
    )


def number(fact: object) -> float | None:
    """A noted fact as a number, if it is one; NaN and infinities stand in records as text."""
    if isinstance(fact, int | float):
        return float(fact)
    return float(fact) if fact in ("nan", "inf", "-inf") else None


def noise_of(outcomes: Mapping[str, Outcome]) -> Noise:
    """From the baseline in turns with its twin, and from other seeds of it: of losses, what any two differ by."""
    same = [outcomes[name] for name in (BASELINE, *SEEDS) if name in outcomes]
    times = [abs(one.speed - 1) for one in same if one.speed is not None]
    losses = [one.loss for one in same if one.loss is not None]
    return Noise(max([LEAST_TIME, *times]), max(_LEAST_LOSS, max(losses, default=0.0) - min(losses, default=0.0)))


def optimisation_findings(results: Sequence[Result]) -> list[str]:
    """A line for each switch, after what the lines rest on."""
    outcomes = _by_parameter(results, "switch")
    if BASELINE not in outcomes:
        return ["no advice: the baseline was not measured"]
    noise = noise_of(outcomes)
    twins = sum(name in outcomes for name in SEEDS)
    said = [
        f"advice, against {BASELINE}: speed counts from {_within(noise.time_share)}, loss from ±{noise.loss:.3f} nats: "
        f"what the baseline shows against itself and {f'{twins} other seeds' if twins else 'no other seed'}"
    ]
    for name, one in outcomes.items():
        if name not in (BASELINE, *SEEDS) and one.against in outcomes:
            beside = "" if one.against == BASELINE else f" (against {one.against})"
            said.append(recommendation(name + beside, outcomes[one.against], one, noise))
    return said


def ladder_findings(results: Sequence[Result]) -> list[str]:
    """What each rung is worth against the bottom, and what it adds to the rung below, where that was measured too."""
    outcomes = _by_parameter(results, "rung")
    bottom = outcomes.get(BOTTOM)
    if bottom is None:
        return []
    lines = []
    for name, one in outcomes.items():
        if name == BOTTOM:
            continue
        line = f"{name} against {BOTTOM}: {_changes(bottom, one)}"
        *below, added = name.split("+")
        lower = outcomes.get("+".join(below))
        if lower is not None and one.speed is not None and lower.speed is not None:
            line += f"; {added} is ×{one.speed / lower.speed:.2f} of it"
        lines.append(line)
    return lines


def _by_parameter(results: Sequence[Result], parameter: str) -> dict[str, Outcome]:
    found = ((str(result_parameters(result).get(parameter)), outcome_of(result)) for result in results)
    return {name: outcome for name, outcome in found if outcome is not None}


def recommendation(name: str, base: Outcome, switched: Outcome, noise: Noise) -> str:
    """One line: `bf16: use when time is short (×1.42 steps/s); no reason to skip it was seen; trade-off: none seen`."""
    speed, no_telling = _speed(switched)
    no_telling = max(noise.time_share, no_telling)
    gains, costs = [], []
    if speed > 1 + no_telling:
        gains.append(("time", f"×{speed:.2f} steps/s"))
    elif speed < 1 - no_telling:
        costs.append(("time", f"×{speed:.2f} steps/s"))
    if base.peak_bytes and switched.peak_bytes is not None:
        growth = switched.peak_bytes / base.peak_bytes - 1
        if abs(growth) >= _LEAST_MEMORY:
            (gains if growth < 0 else costs).append(("memory", f"peak {growth:+.0%}"))
    if base.loss is not None and switched.loss is not None:
        rise = switched.loss - base.loss
        if not abs(rise) <= noise.loss:  # a NaN counts
            (gains if rise < 0 else costs).append(("loss", f"loss {rise:+.3f}"))
    blind = ""
    if no_telling > _BLIND and not _has(gains + costs, "time"):
        blind = f"time within {_within(no_telling)} not told" if switched.speed is not None else _NO_TURNS
    another = ""
    if base.parameters and switched.parameters and abs(switched.parameters / base.parameters - 1) >= _LEAST_MEMORY:
        another = f"; it is a model with {switched.parameters / base.parameters - 1:+.0%} parameters"
    return f"{name}: {_advice(gains, costs, _break_even(base, switched, gains), blind)}{another}"


def _speed(switched: Outcome) -> tuple[float, float]:
    """Times the base's, and by how much that may be off: without turns by anything."""
    return (1.0, math.inf) if switched.speed is None else (switched.speed, switched.noise)


def _within(share: float) -> str:
    """A share in percent; from the whole on, as a factor."""
    return f"±{share:.1%}" if share < 1 else f"×{1 + share:.1f}"


def _has(changes: list[tuple[str, str]], what: str) -> bool:
    return what in [name for name, _ in changes]


def _advice(gains: list[tuple[str, str]], costs: list[tuple[str, str]], break_even: str | None, blind: str) -> str:
    spent = [text for _, text in costs]
    if not gains:
        found = f"it only costs {', '.join(spent)}" if costs else "no difference seen"
        return f"skip here: {', '.join([found, *filter(None, [blind])])}"
    won = " or ".join("loss counts" if what == "loss" else f"{what} is short" for what, _ in gains)
    skips = [f"{' or '.join(what for what, _ in costs)} matters more"] if costs else []
    if break_even is not None:
        skips.append(f"training is shorter than {break_even}")
        spent.append("set-up time")
    skip = f"skip when {' or '.join(skips)}" if skips else "no reason to skip it was seen"
    return (
        f"use when {won} ({', '.join(text for _, text in gains)}); {skip}; "
        f"trade-off: {', '.join([*spent, *filter(None, [blind])]) or 'none seen'}"
    )


def _break_even(base: Outcome, switched: Outcome, gains: list[tuple[str, str]]) -> str | None:
    """Steps until the set-up has paid for itself, where time was gained; None where it does at once."""
    if not _has(gains, "time"):
        return None
    extra_ns = switched.setup_ns - base.setup_ns
    steps = extra_ns / (switched.step_ns * (_speed(switched)[0] - 1))
    return f"{steps:,.0f} steps ({format_ns(extra_ns)} of set-up)" if steps > 100 else None


def _changes(base: Outcome, switched: Outcome) -> str:
    speed, no_telling = _speed(switched)
    no_telling = max(LEAST_TIME, no_telling)
    seen = abs(speed - 1) > no_telling
    parts = [f"×{speed:.2f} steps/s" if seen else f"steps/s the same within {_within(no_telling)}"]
    if switched.speed is None:
        parts = [_NO_TURNS]
    if base.peak_bytes and switched.peak_bytes is not None:
        parts.append(f"peak {switched.peak_bytes / base.peak_bytes - 1:+.0%}")
    if base.loss is not None and switched.loss is not None:
        parts.append(f"loss {switched.loss - base.loss:+.3f}")
    return ", ".join(parts)


def result_parameters(result: Result) -> Mapping[str, object]:
    """A case's parameters, measured or not."""
    return result.record.parameters if result.record is not None else result.parameters
