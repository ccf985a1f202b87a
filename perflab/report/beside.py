"""Sets runs side by side: which cases they share, and which numbers may be compared. Judges nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.results.documents import weave
from perflab.results.environment import differing, exact_environment
from perflab.results.records import Environment
from perflab.tables.contents import Case, Compared, Quantity, RunContents

OTHER_MACHINE = "other machine"
Key = tuple[str, str]


def beside_each_other(runs: Sequence[RunContents]) -> list[Compared]:
    """Return each case of any run, with its ratios, in the order of the cases.

    Ratios are relative to the first run that has numbers of the case. If times cannot be compared, memory and counts
    may still be.
    """
    places = [{(case.case, case.variant): at for at, case in enumerate(run.cases)} for run in runs]
    return [_compared(key, runs, [place.get(key) for place in places]) for key in weave(map(list, places))]


def _compared(key: Key, runs: Sequence[RunContents], cases: list[int | None]) -> Compared:
    there = {number: runs[number].cases[at] for number, at in enumerate(cases) if at is not None}
    first = next((number for number, case in there.items() if case.quantities), min(there))
    base, base_environment = there[first], _environment(runs[first], there[first])
    ratios: dict[str, list[float | None]] = {name: [None] * len(runs) for name in base.quantities}
    elsewhere: list[str | None] = [None] * len(runs)
    for number, other in there.items():
        if number == first:
            continue
        why, why_exact = _obstacles(base, base_environment, other, _environment(runs[number], other))
        elsewhere[number] = why
        for name, before in base.quantities.items():
            now = other.quantities.get(name)
            if now is not None and (why_exact if before.exact else why) is None:
                ratios[name][number] = _ratio(before, now)
    kept = {name: found for name, found in ratios.items() if any(one is not None for one in found)}
    return Compared(case=key[0], variant=key[1], cases=cases, ratios=kept, elsewhere=elsewhere)


def _environment(run: RunContents, case: Case) -> Environment | None:
    return run.environments[case.environment] if case.environment is not None else None


def _obstacles(
    base: Case, base_environment: Environment | None, other: Case, environment: Environment | None
) -> tuple[str | None, str | None]:
    """Return why times, and why exact quantities, cannot be compared; None for those that can be."""
    if base.tier != other.tier and (base_environment is None or environment is None):
        return (f"{other.tier or other.verdict} here, {base.tier or base.verdict} there",) * 2
    if base_environment is None or environment is None:
        pairs = {name: (value, other.compared_by.get(name)) for name, value in base.compared_by.items()}
        told = ", ".join(f"{name} {then} -> {now}" for name, (then, now) in pairs.items() if then != now)
        return told or None, told or None
    times = differing(base_environment, environment)
    exact = list(differing(exact_environment(base_environment), exact_environment(environment)).values())
    label = [OTHER_MACHINE] if times.pop("machine", None) else []
    return ", ".join([*label, *times.values()]) or None, ", ".join(exact) or None


def _ratio(before: Quantity, now: Quantity) -> float | None:
    if before.unit != now.unit:
        return None
    if before.now == now.now:
        return 1.0
    return now.now / before.now if before.now > 0 else None
