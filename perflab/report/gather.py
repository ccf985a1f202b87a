"""Turns results into contents: the facts common to all cases, the tiers' own facts, and runs side by side. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from perflab.base.data import changed
from perflab.report.beside import beside_each_other
from perflab.report.summary import unseen_failures
from perflab.results.documents import ended_early
from perflab.results.records import Environment, Verdict
from perflab.results.result import Document, Result, parameters_of
from perflab.tables.contents import CALIBRATION, KIND, SCHEMA, Case, Contents, MachineReading, RunContents, counted
from perflab.tables.lines import ACCEPTED, names_of, outcome, way_of
from perflab.tiers.interface import by_table, tier, tier_of

_WIDE = 10_000
"""A width in characters that no note reaches: pages wrap text by themselves."""


@dataclass(frozen=True)
class Source:
    """One run with the label of the file that holds it, and notes about the file."""

    label: str
    document: Document
    notes: tuple[str, ...] = ()
    ended: bool = True
    """Whether the file says how the run ended."""


def gather(sources: Sequence[Source]) -> Contents:
    """Return the contents of a report on these runs, in the order of the runs."""
    runs = [_run(source) for source in sources]
    return Contents(kind=KIND, schema=SCHEMA, runs=runs, compared=beside_each_other(runs) if len(runs) > 1 else [])


def _run(source: Source) -> RunContents:
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
    return RunContents(
        label=source.label,
        created=document.created.isoformat(),
        perflab=document.perflab,
        commit=document.commit,
        exitstatus=document.exitstatus,
        complete=source.ended and not ended_early(document),
        verdicts=counted(map(outcome, results), (*Verdict, ACCEPTED)),
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


def _case(result: Result, name: str, environments: list[Environment]) -> Case:
    judgement, record = result.judgement, result.record
    bare = Case(
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
        no_times=judgement.time_not_judged,
        not_compared=judgement.not_compared,
        short_of=judgement.short_of,
        failure=result.failure,
        study=result.study,
        side_by_side=result.side_by_side,
    )
    described: Case = tier_of(result).describe(result, bare)
    return described


def _variant(result: Result) -> str:
    return (result.outcome.variant if result.outcome is not None else "") or result.mode.variant


def _machine(cases: Sequence[Case]) -> list[MachineReading]:
    """Return the spread over the cases of calibration workloads, whose code never changes, and of the counters."""
    read: dict[tuple[str, str], list[float]] = {}
    for case in cases:
        for of, unit, value in _readings(case):
            read.setdefault((of, unit), []).append(value)
    return [
        MachineReading(of=of, unit=unit, least=min(values), median=median(values), most=max(values), cases=len(values))
        for (of, unit), values in read.items()
    ]


def _readings(case: Case) -> Iterator[tuple[str, str, float]]:
    """Yield each reading of the machine beside a case, as a name, a unit and a value."""
    for name, one in case.quantities.items():
        if name.startswith(CALIBRATION):
            yield name, one.unit, one.now
    evidence = case.evidence
    if evidence is None:
        return
    counters = (
        ("cores that other processes used", "cores", evidence.neighbours_cores),
        ("time stolen by the hypervisor", "share", evidence.steal_share),
        ("time waiting for a core", "share", evidence.pressure_share),
        ("load average", "load", evidence.load_average),
    )
    for of, unit, value in counters:
        if value is not None:
            yield of, unit, value
