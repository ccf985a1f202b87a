"""Finds what became worse between runs, for ``perflab compare --fail``: each tier judges its own cases. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perflab.base.data import changed
from perflab.report.gather import Source
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.tables.beside_text import cases_of, name_in, pair_texts
from perflab.tables.contents import Case, Compared, Contents
from perflab.tiers.interface import tier_of
from perflab.units import format_change, format_names, parse_fraction

LATENCY, PEAK = "latency", "peak"
_JUDGED = {LATENCY: "latency", PEAK: "memory"}
"""The names of these quantities in a judgement; other quantities have their own names in it."""
_WORSE = (Verdict.FAILED, Verdict.OOM)
"""Verdicts that are worse than any run with numbers, whether the case has numbers too."""
UNDECIDED = "one process a run does not tell whether code or machine did it"


@dataclass
class Found:
    """The findings on the later runs of a comparison."""

    worse: list[str] = field(default_factory=list)
    """A line for each case of a run that became worse."""
    undecided: list[str] = field(default_factory=list)
    """A line for each case of a run whose time may have become worse."""
    missed: dict[str, list[str]] = field(default_factory=dict)
    """The names of cases of which something was not compared, by reason."""
    compared: int = 0
    """The number of cases of later runs of which something was compared."""


def parse_limits(text: str) -> dict[str, float]:
    """Parse ``latency:5%,peak:1%`` into shares by quantity; an empty text gives no shares.

    Raises:
        ValueError: a part is no quantity with a share, or a quantity occurs twice.
    """
    limits: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, colon, share = part.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"{part!r} is not QUANTITY:SHARE")
        if name.strip() in limits:
            raise ValueError(f"{name.strip()!r} stands twice")
        limits[name.strip()] = parse_fraction(share.strip())
    return limits


def found_worse(sources: Sequence[Source], contents: Contents, limits: Mapping[str, float]) -> Found:
    """Judge each case of the later runs against the first run that has numbers of the case.

    Args:
        sources: the runs.
        contents: the contents gathered from these runs.
        limits: the share by which each gated quantity may rise. Empty: the quantities on which the case's own verdict
            rests are gated, by the case's policy.
    """
    found = Found()
    for compared in contents.compared:
        name = name_in(contents, compared)
        cases = cases_of(contents, compared)
        first = next((number for number, case in enumerate(cases) if case and case.quantities), len(cases))
        for number, case in enumerate(cases[first + 1 :], first + 1):
            if case is None:
                found.missed.setdefault(f"not in run {number + 1}", []).append(name)
            else:
                _judge_one(found, f"{name} in run {number + 1}", sources, compared, (first, number), case, limits)
    return found


def _judge_one(
    found: Found,
    name: str,
    sources: Sequence[Source],
    compared: Compared,
    runs: tuple[int, int],
    case: Case,
    limits: Mapping[str, float],
) -> None:
    places = [compared.cases[number] for number in runs]
    before, now = (sources[number].document.results[at or 0] for number, at in zip(runs, places, strict=True))
    policy = now.policy or Policy()
    if limits:
        policy = changed(
            policy,
            threshold=limits.get(LATENCY, policy.threshold),
            memory_threshold=limits.get(PEAK, policy.memory_threshold),
            gate_counts=True,
        )
    judgement: Judgement | None = tier_of(before).judge_runs(before, now, policy)
    if now.judgement.verdict in _WORSE or (judgement is not None and judgement.verdict is Verdict.OOM):
        found.worse.append(f"{name}: {now.judgement.verdict}: {(now.judgement.reasons or [''])[0]}".rstrip(": "))
        return
    if judgement is None:
        if now.judgement.verdict is not Verdict.SKIPPED:
            why = compared.elsewhere[runs[1]] or f"{case.verdict} has no numbers"
            found.missed.setdefault(why, []).append(name)
        return
    if judgement.verdict in (Verdict.NEW, Verdict.INCOMPARABLE):
        found.missed.setdefault(judgement.reasons[0], []).append(name)
        return
    changes = {LATENCY: judgement.latency, PEAK: judgement.memory, **judgement.counts}
    missing = [one for one in limits or (LATENCY,) if one in case.quantities and changes.get(one) is None]
    reasons = [one.reason for one in judgement.not_compared if not limits]
    for one in missing:
        why_not = compared.elsewhere[runs[1]] or judgement.no_times if one == LATENCY else None
        reasons.append(why_not or f"{one.replace('_', ' ')} not judged")
    for reason in dict.fromkeys(reasons):
        found.missed.setdefault(reason, []).append(name)
    found.compared += any(changes.get(one) is not None for one in limits or changes)
    alone = judgement.few_runs is not None
    worse = [*_worse(judgement, limits, alone)]
    said = [_said(one, changes[one], case) for one in worse]
    if not limits and judgement.verdict is Verdict.REGRESSED and not said and not alone:
        said = judgement.reasons  # spills, or out of memory
    if said:
        found.worse.append(f"{name}: {', '.join(said)}")
    latency = judgement.latency
    is_open = alone or judgement.verdict is Verdict.INCONCLUSIVE
    if is_open and latency is not None and latency.ratio > 1.0 and LATENCY in (limits or _JUDGED):
        why = judgement.reasons[0] if judgement.reasons else f"{format_change(latency.ratio)}, but {UNDECIDED}"
        found.undecided.append(f"{name}: {why}")


def _worse(judgement: Judgement, limits: Mapping[str, float], is_open: bool) -> Iterator[str]:
    """Yield the gated quantities that rose past their limit; not the latency if ``is_open``."""
    for name, judged in _JUDGED.items():
        if judged in judgement.worse and (not limits or name in limits) and not (is_open and name == LATENCY):
            yield name
    for name, change in judgement.counts.items():
        if limits:
            rose = name in limits and change.now > change.before * (1.0 + limits[name])
        else:
            rose = change.is_past_limit and ("counts" in judgement.worse or name in judgement.worse)
        if rose:
            yield name


def _said(name: str, change: Change | None, case: Case) -> str:
    """Return a change in words: ``latency 100 ms -> 112 ms (+12.0%)``."""
    assert change is not None
    unit = case.quantities[name].unit if name in case.quantities else "count"
    then, now = pair_texts(change.before, change.now, unit)
    more = f" ({format_change(change.ratio)})" if change.before else ""
    return f"{name.replace('_', ' ')} {then} -> {now}{more}"


def in_words(found: Found) -> list[str]:
    """Return the findings as lines for people, the worst first."""
    lines = [f"worse: {line}" for line in found.worse]
    lines += [f"not decided: {line}" for line in found.undecided]
    lines += [f"not compared: {format_names(names)}: {why}" for why, names in found.missed.items()]
    if found.undecided:
        lines.append("  -> decide it in turns on one machine: pytest -m perf --perf-against=COMMIT")
    return lines
