"""Turns the rounds of an A/B comparison into results for each test, and compares both sides' machine code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from perflab.base.data import changed
from perflab.base.errors import InShort, UsageError
from perflab.judging.counts import FAILS_ALREADY, judge_counts, values_of, verdict_on
from perflab.judging.doubts import disturbances, is_witnessed
from perflab.judging.exact import judge_peaks, peaks_of, unless_calls_differ
from perflab.judging.finding import as_ratios, worst_of
from perflab.judging.judge import launching
from perflab.judging.paired import PairedFinding, PairedPolicy, latency_findings, log_of
from perflab.measure.calls.outputs import distance
from perflab.measurement.measurement import replicate_of
from perflab.results.measured import ComparedCase
from perflab.results.measurement import CallTimes, Evidence, KernelCode, Measurement, Paired, Replicate
from perflab.results.records import Change, Environment, Judgement, Uncompared, Verdict
from perflab.results.result import Result
from perflab.running.case.verdicts import compared_with, unless_beyond
from perflab.settings.settings import Settings
from perflab.turns.checkout import Tree
from perflab.turns.comparison import BASE, HEAD, Compared, Comparison
from perflab.turns.messages import Ended, Weighed
from perflab.turns.rounds import CaseTurns
from perflab.units import format_bytes

BEYOND_CHANCE = 10.0
"""How many times farther apart the outputs of the two sides must be than two outputs of one side to count as different:
atomic sums differ a little from run to run."""


def conclude(
    found: Comparison, base: Tree, policy: PairedPolicy, settings: Mapping[str, Settings]
) -> dict[str, Result]:
    """Return the result of every case that has been measured or tried.

    A result whose ``failure`` is set fails its test with that text, whatever the verdict.
    """
    findings = latency_findings(found.judged, found.controls, policy)
    results = {
        case: _judged(found, found.cases[case], finding, base, settings[case]) for case, finding in findings.items()
    }
    for case, one in found.cases.items():
        if case not in results and one.asked:
            results[case] = _not_compared(one, base)
    return results


def _judged(found: Comparison, one: Compared, finding: PairedFinding, base: Tree, settings: Settings) -> Result:
    finding = finding.timed(round(one.median_ns(BASE), 3), settings.floor_ns)
    slower, reasons = finding.verdict, list(finding.reasons)
    if one.lost is not None:
        slower, reasons = Verdict.INCONCLUSIVE, [f"could not be confirmed: {one.lost}"]
    elif one.fails and slower is Verdict.INCONCLUSIVE:
        reasons = [FAILS_ALREADY]
    before, now = _weighed(one, BASE), _weighed(one, HEAD)
    environment = one.turns(HEAD)[-1].ready.environment
    memory, missed = judge_peaks(peaks_of(before), now, environment.device, settings.policy)
    counts, uncounted = judge_counts(
        now,
        values_of(before),
        gated=settings.policy.gate_counts,
        lacking=f"not counted in each process of {base.label}",
    )
    off = {name: why for side in (BASE, HEAD) for turns in one.turns(side) for name, why in turns.weighed.off.items()}
    missed += [*uncounted, *(Uncompared(name, why) for name, why in off.items())]
    verdicts = {"latency": slower, "memory": memory.verdict, "counts": verdict_on(counts)}
    worst = worst_of(verdicts.values())
    if worst is Verdict.REGRESSED is not slower and not (one.lost or one.fails):
        reasons = []  # they explain why the time is inconclusive; a regression in an exact quantity needs no reason
    reasons = [*reasons, *memory.reasons]
    judgement = Judgement(
        verdict=Verdict.UNCHECKED if settings.check == "off" else worst,
        latency=finding.change,
        memory=memory.change,
        launching=launching(now, before),
        counts=counts,
        worse=[name for name, verdict in verdicts.items() if verdict is Verdict.REGRESSED],
        not_compared=missed,
    )
    judgement = with_evidence(judgement, one, environment)
    judgement = changed(judgement, reasons=[*reasons, *(judgement.beside if worst is Verdict.INCONCLUSIVE else [])])
    judgement = unless_calls_differ(judgement, [*before, *now])
    peaks = [one.memory.peak_bytes for one in now if one.memory is not None]
    if settings.check != "off":
        judgement = unless_beyond(judgement, settings, max(peaks, default=None))
    record = _record(found, one, finding.detectable, base)
    wanted = settings.side_by_side if settings.side_by_side in record.parameters else None
    was = one.turns(BASE)[-1].ready.case
    judgement = with_outputs(compared_with(judgement, was if was != one.case else None), one)
    return Result(case=one.case, outcome=record, judgement=judgement, policy=settings.policy, side_by_side=wanted)


def with_outputs(judgement: Judgement, one: Compared) -> Judgement:
    """Return the judgement with the outputs that differ between head and base, if each side's own are repeatable."""
    before, now = (
        [turns.warmed.outputs for turns in one.turns(side) if turns.warmed and turns.warmed.outputs is not None]
        for side in (BASE, HEAD)
    )
    said = []
    for what in before[0] if min(len(before), len(now)) > 1 else ():
        share = distance(before[0][what], now[0][what])
        if share > BEYOND_CHANCE * max(distance(side[0][what], side[1][what]) for side in (before, now)):
            said.append(
                f"{what} by {share:.1e} of the largest" if share < math.inf else f"{what} in shape, type or NaN"
            )
    if not said:
        return judgement
    reasons = [*judgement.reasons, f"outputs differ: {', '.join(said)}"]
    return changed(judgement, reasons=reasons, outputs_differ=True)


def _not_compared(one: Compared, base: Tree) -> Result:
    head, other = one.ended.get(HEAD), one.ended.get(BASE)
    if head is not None and head.outcome in ("failed", "died"):  # whatever the base did
        why = "the test failed" if head.outcome == "failed" else "its process died or hung"
        return changed(without_numbers(one.case, Verdict.FAILED, why), failure=head.text)
    if head is not None and head.outcome == "skipped":
        return without_numbers(one.case, Verdict.SKIPPED, head.text)
    if other is not None and other.outcome == "died":
        return without_numbers(one.case, Verdict.INCOMPARABLE, str(other.in_short))
    if head is None and one.lost is not None:
        return without_numbers(one.case, Verdict.INCONCLUSIVE, f"could not be compared: {one.lost}")
    if head is None:
        why = "it was not collected again in a fresh process"
        told = UsageError(
            f"{one.case}: {why} of this side, so nothing was compared",
            "give it an id that is the same in every process: no addresses, process numbers or unseeded chance in it",
        )
        return changed(without_numbers(one.case, Verdict.FAILED, why), failure=str(told))
    if other is None:
        return without_numbers(one.case, Verdict.NEW, f"not in {base.label}")
    if "oom" in (head.outcome, other.outcome):
        return _out_of_memory(one, head, other, base)
    if one.modes:
        return without_numbers(one.case, Verdict.INCOMPARABLE, f"{timed_otherwise(one)} in {base.label}")
    if other.outcome == "passed":
        why = "it was not timed" if one.lost is None else f"could not be compared: {one.lost}"
        return without_numbers(one.case, Verdict.INCONCLUSIVE, why)
    return without_numbers(one.case, Verdict.INCOMPARABLE, _how_it_ended(other, base))


def _how_it_ended(other: Ended, base: Tree) -> str:
    return f"{other.outcome} in {base.label}: {other.in_short}"


def _out_of_memory(one: Compared, head: Ended, other: Ended, base: Tree) -> Result:
    """Return the result of a case that ran out of memory.

    The head is set up first: if memory runs out then, the head had the device to itself and is the cause. If memory
    runs out later, the two sides together exceed the memory.
    """
    asked = head.out_of_memory.asked_bytes if head.out_of_memory is not None else None
    said = "out of memory" if asked is None else f"out of memory ({format_bytes(asked)} asked for)"
    if head.outcome == "oom" and one.head_was_alone:
        if other.outcome == "oom":
            return without_numbers(one.case, Verdict.OOM, f"{said}; in {base.label} too")
        if other.outcome != "passed":
            return without_numbers(one.case, Verdict.INCOMPARABLE, f"{said}; {_how_it_ended(other, base)}")
        return without_numbers(one.case, Verdict.REGRESSED, f"{said}, and not in {base.label}")
    reason = "head and base do not fit into memory together; compare on a larger device, or with saved baselines"
    return without_numbers(one.case, Verdict.INCONCLUSIVE, reason)


def timed_otherwise(one: Compared) -> str:
    """Return a description of the timing modes of the case on both sides, for modes that differ."""
    return f"timed with {one.modes[HEAD]} here, but with {one.modes[BASE]}"


def with_option(problem: InShort, commit: str) -> str:
    """Return a problem of an A/B comparison with this commit, and the option that shows the rest, which may be long."""
    said = problem.what if problem.whose == commit[:7] else str(problem)
    return f"{said} (see: --perf-against={commit[:7]})"


def without_numbers(case: str, verdict: Verdict, reason: str) -> Result:
    """Return the result of a case that has no measurements to compare."""
    return Result(case=case, judgement=Judgement(verdict=verdict, reasons=[reason]))


def _measurement(turns: CaseTurns, evidence: Evidence | None) -> Measurement:
    """Return one side's turns in a round as a ``Measurement``."""
    return Measurement(
        samples_ns=turns.samples_ns,
        repetitions=turns.repetitions,
        warmup_calls=turns.warmed.calls if turns.warmed else 0,
        settled=turns.warmed.settled if turns.warmed else None,
        clock=turns.weighed.clock,
        phases_ns=turns.phases_ns,
        memory=turns.weighed.memory,
        counts=turns.weighed.counts,
        launch_ns=turns.weighed.launch_ns,
        evidence=evidence,
    )


def _weighed(one: Compared, side: str) -> list[Replicate]:
    """Return the side's processes that measured memory and counts, as replicates."""
    return [replicate_of(_measurement(found.turns[side], None)) for found in one.weighed if side in found.turns]


def with_evidence(judgement: Judgement, one: Compared, environment: Environment) -> Judgement:
    """Return the judgement with the changes of the case's phases, and with what disturbed the head's processes."""
    processes = [replicate_of(_measurement(found.turns[HEAD], found.evidence)) for found in one.rounds]
    disturbed = disturbances(processes, [], environment)
    witnessed = bool(disturbed) or is_witnessed(processes, environment)
    return changed(judgement, phases=_phases(one), disturbed=disturbed if witnessed else None, beside=disturbed)


def _phases(one: Compared) -> dict[str, Change]:
    """Return the changes of the phases that both sides have: the median over processes of the process's fastest sample
    if the case is judged by its fastest calls, else of its median sample."""
    typical: Callable[[list[int]], float] = min if one.logs.judged is CallTimes.FASTEST else median
    changes = {}
    for name in one.turns(HEAD)[0].phases_ns:
        before, now = (
            [
                typical(turns.phases_ns[name]) / turns.repetitions
                for turns in one.turns(side)
                if turns.phases_ns.get(name)
            ]
            for side in (BASE, HEAD)
        )
        if before and now and median(before) > 0:
            changes[name] = Change(before=median(before), now=median(now), ratio=median(now) / median(before))
    return changes


def _record(found: Comparison, one: Compared, detectable: float | None, base: Tree) -> ComparedCase:
    """Return the record of a case: the head's measurement of the last pair, and the results of all pairs."""
    turns = one.turns(HEAD)[-1]
    measurement = _measurement(turns, one.rounds[-1].evidence)
    if one.weighed and HEAD in one.weighed[0].turns:
        weighed = one.weighed[0].turns[HEAD].weighed
        measurement = changed(measurement, memory=weighed.memory, counts=weighed.counts, clock=weighed.clock)
    return ComparedCase(
        case=one.case,
        device=turns.ready.device,
        environment=turns.ready.environment,
        parameters=turns.ready.parameters,
        work=one.ended[HEAD].work,
        facts=one.ended[HEAD].facts,
        measurement=measurement,
        summary=replicate_of(measurement),
        paired=paired_of(found, one, base.label, base.commit, detectable),
    )


def paired_of(found: Comparison, one: Compared, label: str, commit: str | None, detectable: float | None) -> Paired:
    """Return the record of a case's pairs, with the null control's ratios if the control was taken with the case."""
    base, head = ([each.turns[side].weighed for each in one.weighed if side in each.turns] for side in (BASE, HEAD))
    return Paired(
        against=label,
        commit=commit,
        screen=as_ratios(one.logs.screen),
        confirm=as_ratios(one.logs.confirm),
        control=as_ratios([log_of(pair, one.logs.judged) for pair in found.controls.get(one.case, [])]),
        judged=one.logs.judged,
        uneven=one.logs.uneven,
        detectable=detectable,
        base_memory=base[0].memory if base else None,
        base_ns=round(one.median_ns(BASE), 3),
        kernels=compare_code(base, head),
    )


def compare_code(base: Sequence[Weighed], head: Sequence[Weighed]) -> KernelCode | None:
    """Return which kernels have the same machine code on both sides; None if a side launched none, as far as is known.

    Code that only some processes of a side launch, as when an autotuner decides by times, is not the same.
    """
    every = [*base, *head]
    if not all(call.kernels for call in every) or not (base and head):
        return None
    before, now = _digests(base), _digests(head)
    both = sorted(before.keys() & now.keys())
    same = [name for name in both if before[name] == now[name] and len(now[name]) == 1]
    return KernelCode(
        same=same,
        changed=[name for name in both if name not in same],
        gone=sorted(before.keys() - now.keys()),
        new=sorted(now.keys() - before.keys()),
        is_all=all(call.counts.get("kernel_launches") == sum(one.launches for one in call.kernels) for call in every),
    )


def _digests(side: Sequence[Weighed]) -> dict[str, set[frozenset[str]]]:
    """Return by kernel the digests that a process launched, one set for each different choice of processes."""
    names = {one.name for call in side for one in call.kernels}
    return {
        name: {frozenset(one.digest for one in call.kernels if one.name == name) for call in side} for name in names
    }
