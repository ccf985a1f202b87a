"""A report's contents for a case that ran: times, memory, counts, calibration, profile, evidence. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from perflab.base.data import changed
from perflab.measured.report.columns import generation_in, quantiles_of
from perflab.measured.report.facts import ranks_table
from perflab.measured.report.judged import judged
from perflab.profiles.text import by_category, by_device, explanation_texts, notes_of, on_host, peak_texts, top_rows
from perflab.results.measurement import Measurement, Memory, Record, Replicate, is_compared, per_call_ns
from perflab.results.profile import Profile
from perflab.results.records import Judgement
from perflab.results.result import Result
from perflab.tables import contents
from perflab.units import format_count

ROWS = 12


def describe(result: Result, case: contents.Case) -> contents.Case:
    """Return the case with its numbers added."""
    record = result.record
    if record is None:
        return case
    summary, measurement, explained = record.summary, record.measurement, record.explained
    memory = summary.memory if summary is not None else None
    return changed(
        case,
        quantities=_quantities(result, record, summary),
        times=_times(record, measurement, summary, result.judgement) if measurement and summary else None,
        memory={"held before the call": memory.held_bytes, "growth in the call": memory.growth_bytes}
        if memory is not None and memory.shown_bytes
        else {},
        memory_beside=_beside(memory) if memory is not None else {},
        paired=record.paired,
        paired_to_anchor=record.paired_to_anchor,
        tables=[
            *(_profile(measurement.profile) if measurement is not None and measurement.profile is not None else []),
            *ranks_table(record),
        ],
        noted=record.facts,
        quotes=record.quotes,
        explained=record.explained,
        explained_peak=record.explained_peak,
        cause=[
            *(explanation_texts(explained, timed="latency" in result.judgement.worse) if explained is not None else []),
            *(peak_texts(record.explained_peak) if record.explained_peak is not None else []),
        ],
        not_profiled=measurement.not_profiled if measurement is not None else None,
        evidence=measurement.evidence if measurement is not None else None,
    )


def _quantities(result: Result, record: Record, summary: Replicate | None) -> dict[str, contents.Quantity]:
    judgement = result.judgement
    reading = judged(result)
    if summary is None or reading is None:
        return {}
    found: dict[str, contents.Quantity] = {}
    latency = judgement.latency
    now_ns = latency.now if latency is not None else reading.median_ns
    found["latency"] = contents.quantity("ns", now_ns, latency, exact=False, worse="latency" in judgement.worse)
    if reading.fastest_ns is not None:
        found["fastest"] = contents.quantity("ns", reading.fastest_ns, exact=False)
    for name, ns in reading.phases_ns.items():
        change = judgement.phases.get(name)
        found[name] = contents.quantity("ns", change.now if change is not None else ns, change, exact=False)
    generation = generation_in(record.measurement)
    for name, one in generation.statistics.items() if generation is not None else ():
        found |= {name: contents.quantity("ns", one.value, exact=False)} if is_compared(name, one.formula) else {}
    if launching := [one.launch_ns for one in record.fresh or [summary] if one.launch_ns is not None]:
        found["launching"] = contents.quantity("ns", median(launching), judgement.launching, exact=False)
    change = judgement.memory
    if summary.memory is not None and (summary.memory.shown_bytes or (change is not None and change.before)):
        peak = int(change.now) if change is not None else summary.memory.peak_bytes
        found["peak"] = contents.quantity("bytes", peak, change, exact=True, worse="memory" in judgement.worse)
    gated = contents.exact_quantities(summary.counts, judgement.counts)
    counted = "counts" in judgement.worse
    found |= {name: changed(one, worse=one.worse and counted) for name, one in gated.items()}
    for name, ns in summary.calibration_ns.items():
        found[f"{contents.CALIBRATION}{name}"] = contents.quantity("ns", ns, exact=False)
    return found


def _times(record: Record, measurement: Measurement, summary: Replicate, judgement: Judgement) -> contents.Times:
    samples_ns = [round(one, 3) for one in per_call_ns(measurement.samples_ns, measurement.repetitions)]
    few = len(samples_ns) <= contents.STEPS + 1
    return contents.Times(
        samples=summary.samples,
        repetitions=measurement.repetitions,
        samples_ns=samples_ns if few else [],
        quantiles_ns=[] if few else contents.quantiles(samples_ns),
        median_ns=summary.median_ns,
        noise=summary.noise,
        clock=measurement.clock,
        fresh_ns=[one.median_ns for one in record.fresh],
        before_ns=judgement.before_ns,
        set_aside_ns=[one.median_ns for one in record.set_aside],
        warmup_calls=measurement.warmup_calls,
        settled=measurement.settled,
        cut_short=record.times_are_cut_short,
        first_ns=summary.first_ns,
        ran_on=measurement.ran_on,
        intervals_ns={name: list(numbers) for name, numbers in quantiles_of(measurement).items()},
        generation=measurement.generation,
    )


def _beside(memory: Memory) -> dict[str, int]:
    readings = {
        "allocated": memory.allocated_bytes,
        "reserved": memory.reserved_bytes,
        "resident growth": memory.resident_growth_bytes,
    }
    return {name: size for name, size in readings.items() if size is not None}


def _profile(profile: Profile) -> list[contents.Table]:
    """Return two tables: the categories, which add up to the call, and the rows that take most time."""
    whole = profile.whole_ns
    categories: list[Sequence[str | float | int | None]] = [
        (name, time_ns, time_ns / whole, round(instances, 1), flops or None)
        for name, time_ns, instances, flops in by_category(profile)
    ]
    categories.append(("unexplained", profile.unexplained_ns, profile.unexplained_ns / whole, None, None))
    rows = top_rows(profile)
    on_device = profile.device == "cuda"
    listed = [
        (
            ((row.kernel if on_device else row.operator) or row.category)
            + (f" on {profile.device}:{row.device}" if profile.devices > 1 else ""),
            row.time_ns,
            row.time_ns / whole,
            round(row.instances, 1),
            row.phase,
            row.module,
            row.line,
            row.shapes,
        )
        for row in rows
    ]
    title = f"Where the time of one call goes: {format_count(profile.calls, 'call')} on {profile.device}"
    numbers = [("time", "ns"), ("share", "share"), ("instances", "count")]
    return [
        contents.first_rows(
            "profile",
            title,
            [("category", "text"), *numbers, ("FLOPs", "count")],
            categories,
            len(categories),
            [*filter(None, (by_device(profile), on_host(profile))), *notes_of(profile)],
        ),
        contents.first_rows(
            "profile_rows",
            "What takes most time",
            [
                ("kernel" if on_device else "operator", "text"),
                *numbers,
                *((name, "text") for name in ("phase", "module", "line", "shapes")),
            ],
            listed,
            ROWS,
        ),
    ]
