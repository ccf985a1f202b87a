"""Turns results into contents: the facts common to all cases, the tiers' own facts, and runs side by side. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from perflab.base.data import changed
from perflab.report.summary import unseen_failures
from perflab.results.documents import ended_early, weave
from perflab.results.environment import differing, exact_environment
from perflab.results.measurement import Evidence
from perflab.results.records import Environment, Verdict
from perflab.results.result import Document, Result, parameters_of
from perflab.tables import contents
from perflab.tables.lines import ACCEPTED, names_of, outcome, way_of
from perflab.tiers.interface import by_table, tier, tier_of

_WIDE = 10_000
"""A width in characters that no note reaches: pages wrap text by themselves."""
OTHER_MACHINE = "other machine"
Key = tuple[str, str]


@dataclass(frozen=True)
class Source:
    """One run with the label of the file that holds it, and notes about the file."""

    label: str
    document: Document
    notes: tuple[str, ...] = ()
    ended: bool = True
    """Whether the file says how the run ended."""


def gather(sources: Sequence[Source]) -> contents.Contents:
    """Return the contents of a report on these runs, in the order of the runs.

    Each case of any of several runs has its ratios, in the order of the cases. They are relative to the first run that
    has numbers of the case. If times cannot be compared, memory and counts may still be.
    """
    runs = [_run(source) for source in sources]
    compared = []
    if len(runs) > 1:
        places = [{(case.case, case.variant): at for at, case in enumerate(run.cases)} for run in runs]
        compared = [_compared(key, runs, [place.get(key) for place in places]) for key in weave(map(list, places))]
    return contents.Contents(kind=contents.KIND, schema=contents.SCHEMA, runs=runs, compared=compared)


def _run(source: Source) -> contents.RunContents:
    document = source.document
    results, found = document.results, by_table(document.results)
    environments = list(dict.fromkeys(one.record.environment for one in results if one.record is not None))
    often = Counter((one.case, _variant(one)) for one in results)
    cases = [_case(one, name, environments) for one, name in zip(results, names_of(results), strict=True)]
    cases = [
        changed(case, variant=one.way.strip()) if often[one.case, case.variant] > 1 else case
        for one, case in zip(results, cases, strict=True)
    ]
    tables = {key: data for name, ones in found.items() for key, data in tier(name).data(document, ones).items()}
    return contents.RunContents(
        label=source.label,
        created=document.created.isoformat(),
        perflab=document.perflab,
        commit=document.commit,
        exitstatus=document.exitstatus,
        complete=source.ended and not ended_early(document),
        verdicts=contents.counted(map(outcome, results), (*Verdict, ACCEPTED)),
        notes=[*source.notes, *unseen_failures(document), *document.preface],
        environments=environments,
        cases=cases,
        tables=tables,
        machine=_machine(cases),
        repository=document.repository,
        baselines=document.baselines,
        threshold=document.threshold,
        command=document.command,
        not_compared=[text for name, ones in found.items() for text in tier(name).notes(document, ones, _WIDE)],
    )


def _case(result: Result, name: str, environments: list[Environment]) -> contents.Case:
    judgement, record = result.judgement, result.record
    bare = contents.Case(
        case=result.case,
        name=name,
        variant=_variant(result),
        tier=way_of(result) or None,
        environment=environments.index(record.environment) if record is not None else None,
        verdict=judgement.verdict,
        reasons=judgement.reasons,
        parameters=parameters_of(result),
        quantities={},
        saved=result.saved,
        drift=judgement.drift,
        disturbed=judgement.disturbed,
        beside=judgement.beside,
        beside_alone=judgement.beside_alone,
        no_times=judgement.time_not_judged,
        not_compared=judgement.not_compared,
        short_of=judgement.short_of,
        failure=result.failure,
        study=result.study,
        side_by_side=result.side_by_side,
    )
    described: contents.Case = tier_of(result).describe(result, bare)
    return described


def _variant(result: Result) -> str:
    return (result.outcome.variant if result.outcome is not None else "") or result.mode.variant


def _machine(cases: Sequence[contents.Case]) -> list[contents.MachineReading]:
    """Return the spread over the cases of calibration workloads, whose code never changes, and of the counters."""
    read: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        for name, one in case.quantities.items():
            if name.startswith(contents.CALIBRATION):
                read.setdefault((name, one.unit), []).append(one.now)
        evidence = case.evidence or Evidence(span_ns=0)
        counters = {
            ("cores that other processes used", "cores"): evidence.neighbours_cores,
            ("time stolen by the hypervisor", "share"): evidence.steal_share,
            ("time waiting for a core", "share"): evidence.pressure_share,
            ("load average", "load"): evidence.load_average,
        }
        for counter, value in counters.items():
            if value is not None:
                read.setdefault(counter, []).append(value)
    return [
        contents.MachineReading(
            of=of, unit=unit, least=min(values), median=median(values), most=max(values), cases=len(values)
        )
        for (of, unit), values in read.items()
    ]


def _compared(key: Key, runs: Sequence[contents.RunContents], cases: list[int | None]) -> contents.Compared:
    there = {number: runs[number].cases[at] for number, at in enumerate(cases) if at is not None}
    first = next((number for number, case in there.items() if case.quantities), min(there))
    base, environments = there[first], [run.environments for run in runs]
    where = {
        at: environments[at][one.environment] if one.environment is not None else None for at, one in there.items()
    }
    ratios: dict[str, list[float | None]] = {name: [None] * len(runs) for name in base.quantities}
    elsewhere: list[str | None] = [None] * len(runs)
    for number, other in there.items():
        if number == first:
            continue
        why, why_exact = _obstacles(base, where[first], other, where[number])
        elsewhere[number] = why
        for name, before in base.quantities.items():
            now = other.quantities.get(name)
            if now is not None and (why_exact if before.exact else why) is None:
                ratios[name][number] = _ratio(before, now)
    kept = {name: found for name, found in ratios.items() if any(one is not None for one in found)}
    return contents.Compared(case=key[0], variant=key[1], cases=cases, ratios=kept, elsewhere=elsewhere)


def _obstacles(
    base: contents.Case, base_environment: Environment | None, other: contents.Case, environment: Environment | None
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


def _ratio(before: contents.Quantity, now: contents.Quantity) -> float | None:
    if before.unit != now.unit:
        return None
    if before.now == now.now:
        return 1.0
    return now.now / before.now if before.now > 0 else None
