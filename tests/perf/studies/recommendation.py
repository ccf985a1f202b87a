"""From what was measured of a switch to a line of advice: use when, skip when, trade-off. Pure functions.

Nothing is said that the numbers do not show. A difference in time counts past what two readings of the same thing
differ by in this run, and past both readings' own intervals; one in loss, past what other seeds give; memory is exact,
and counts from three hundredths on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perflab.records import Result
from perflab.units import format_ns

from .switches import AGAIN, BASELINE, BOTTOM, SEEDS, switches

_LEAST_TIME = 0.02
"""Nobody changes a program for less, and two readings can agree by chance."""
_LEAST_LOSS = 0.005
_BLIND = 0.1
"""A difference in time that could hide is spoken of from here on."""
_LEAST_MEMORY = 0.03


@dataclass(frozen=True)
class Outcome:
    """One way to train, measured.

    step_ns     median of a whole step
    peak_bytes  peak memory of a step, None where it was not taken
    loss        held-out loss after the training, in nats; None where it was not read
    setup_ns    what the first step took beyond a later one
    noise       half the width of the median's interval, as a share of it
    """

    step_ns: float
    peak_bytes: int | None = None
    loss: float | None = None
    setup_ns: float = 0.0
    noise: float = 0.0


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
    return Outcome(
        record.summary.median_ns,
        memory.peak_bytes if memory is not None else None,
        number(facts.get("loss")),
        number(facts.get("setup_ns")) or 0.0,
        record.summary.noise,
    )


def number(fact: object) -> float | None:
    """A noted fact as a number, if it is one; NaN and infinities stand in records as text."""
    if isinstance(fact, int | float):
        return float(fact)
    return float(fact) if fact in ("nan", "inf", "-inf") else None


def noise_of(outcomes: Mapping[str, Outcome]) -> Noise:
    """From the baseline measured again, and from other seeds."""
    base = outcomes[BASELINE]
    again = outcomes.get(AGAIN)
    time_share = abs(again.step_ns / base.step_ns - 1) if again is not None else 0.0
    others = [outcomes[name].loss for name in SEEDS if name in outcomes]
    losses = [abs(loss - base.loss) for loss in others if loss is not None and base.loss is not None]
    return Noise(max(_LEAST_TIME, time_share), max([_LEAST_LOSS, *losses]))


def optimisation_findings(results: Sequence[Result]) -> list[str]:
    """A line for each switch, after what the lines rest on."""
    outcomes = {}
    for result in results:
        outcome = outcome_of(result)
        if outcome is not None:
            outcomes[str(result_parameters(result).get("switch"))] = outcome
    if BASELINE not in outcomes:
        return ["no advice: the baseline was not measured"]
    noise = noise_of(outcomes)
    said = [
        f"advice, against {BASELINE}: time counts from {_within(noise.time_share)} (the baseline measured "
        f"{'twice' if AGAIN in outcomes else 'once, so a guess'}), loss from ±{noise.loss:.3f} nats "
        f"({'other seeds' if any(name in outcomes for name in SEEDS) else 'a guess, without other seeds'})"
    ]
    against = {switch.name: switch.against for switch in switches(num_steps=1)}
    for name, one in outcomes.items():
        other = against.get(name, BASELINE)
        if name not in (BASELINE, AGAIN, *SEEDS) and other in outcomes:
            beside = "" if other == BASELINE else f" (against {other})"
            said.append(recommendation(name + beside, outcomes[other], one, noise))
    return said


def ladder_findings(results: Sequence[Result]) -> list[str]:
    """What each rung adds to the one below, and what every two are worth, as far as both sides were measured."""
    outcomes = {}
    for result in results:
        outcome = outcome_of(result)
        if outcome is not None:
            outcomes[str(result_parameters(result).get("rung"))] = outcome
    lines = []
    for name, one in outcomes.items():
        names = name.split("+")
        below = "+".join(names[:-1]) or BOTTOM
        other = below if below in outcomes else BOTTOM
        if name != BOTTOM and other in outcomes:
            added = names[-1] if other == below else name
            lines.append(f"{added} on top of {other}: {_changes(outcomes[other], one)}")
    return lines


def recommendation(name: str, base: Outcome, switched: Outcome, noise: Noise) -> str:
    """One line: `bf16: use when time counts (×1.42); skip when never, as far as seen; trade-off: none seen`."""
    speed = base.step_ns / switched.step_ns
    no_telling = max(noise.time_share, base.noise + switched.noise)
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
    blind = (
        f"time within {_within(no_telling)} not told" if no_telling > _BLIND and not _has(gains + costs, "time") else ""
    )
    return f"{name}: {_advice(gains, costs, _break_even(base, switched, gains), blind)}"


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
    return (
        f"use when {won} ({', '.join(text for _, text in gains)}); "
        f"skip when {' or '.join(skips) or 'never, as far as seen here'}; "
        f"trade-off: {', '.join([*spent, *filter(None, [blind])]) or 'none seen'}"
    )


def _break_even(base: Outcome, switched: Outcome, gains: list[tuple[str, str]]) -> str | None:
    """Steps until the set-up has paid for itself, where time was gained; None where it does at once."""
    if not _has(gains, "time"):
        return None
    extra_ns = switched.setup_ns - base.setup_ns
    steps = extra_ns / (base.step_ns - switched.step_ns)
    return f"{steps:,.0f} steps ({format_ns(extra_ns)} of set-up)" if steps > 10 else None


def _changes(base: Outcome, switched: Outcome) -> str:
    speed, no_telling = base.step_ns / switched.step_ns, max(_LEAST_TIME, base.noise + switched.noise)
    seen = abs(speed - 1) > no_telling
    parts = [f"×{speed:.2f} steps/s" if seen else f"steps/s the same within {_within(no_telling)}"]
    if base.peak_bytes and switched.peak_bytes is not None:
        parts.append(f"peak {switched.peak_bytes / base.peak_bytes - 1:+.0%}")
    if base.loss is not None and switched.loss is not None:
        parts.append(f"loss {switched.loss - base.loss:+.3f}")
    return ", ".join(parts)


def result_parameters(result: Result) -> Mapping[str, object]:
    """A case's parameters, measured or not."""
    return result.record.parameters if result.record is not None else result.parameters
