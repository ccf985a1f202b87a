"""The measured tier's part of files of the past: readings of results, accepted levels of baselines."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

import msgspec

from perflab.results.measurement import is_compared
from perflab.results.readings import (
    CALIBRATION,
    PEAK,
    UNIT_BYTES,
    UNIT_NS,
    Amount,
    Level,
    Narrow,
    Number,
    Numbers,
    Reading,
    WrittenBaselines,
    WrittenResult,
    counted,
    exact_place,
    places_of,
)
from perflab.results.records import Environment, ExactEnvironment


class _Memory(Narrow):
    peak_bytes: Amount
    least: dict[str, Amount] = {}


class _Replicate(Narrow):
    """The measurements of one process."""

    median_ns: Number
    fastest_ns: Number
    phases_ns: dict[str, Number] = {}
    launch_ns: Number | None = None
    memory: _Memory | None = None
    calibration_ns: dict[str, Number] = {}
    counts: dict[str, Amount] = {}


class _Statistic(Narrow):
    """One statistic of a generation of tokens, with its formula."""

    value: Number
    formula: str


class _Generation(Narrow):
    statistics: dict[str, _Statistic] = {}


class _Measurement(Narrow):
    """The measurement that the session of pytest made itself."""

    generation: _Generation | None = None
    cut_short: bool = False


class _Measured(Narrow):
    environment: Environment | None = None
    summary: _Replicate | None = None
    fresh: list[_Replicate] = []
    measurement: _Measurement | None = None


class _Accepted(Narrow):
    date: str
    reason: str | None = None


class _Times(Narrow):
    environment: str
    recorded: str
    replicates: list[_Replicate] = []
    accepted: list[_Accepted] = []


class _Needs(Narrow):
    recorded: str
    peak_bytes: list[Amount] = []
    counts: dict[str, Amount] = {}
    accepted: list[_Accepted] = []


class _Exact(Narrow):
    needs: dict[str, _Needs]


def numbers_of(result: WrittenResult) -> Numbers:
    """Return the numbers of a case that was measured, or compared: those of the processes that were judged."""
    outcome = msgspec.json.decode(result.outcome, type=_Measured)
    judged = outcome.fresh or ([outcome.summary] if outcome.summary is not None else [])
    places = places_of(outcome.environment, "")
    readings = _readings(result, outcome, judged) if judged else {}
    is_cut_short = outcome.measurement is not None and outcome.measurement.cut_short and not outcome.fresh
    counts = tuple(one.counts for one in judged)
    return Numbers(readings, places, result.mode.variant, counts, is_cut_short)


def _readings(result: WrittenResult, outcome: _Measured, judged: list[_Replicate]) -> dict[str, Reading]:
    memory = result.judgement.memory
    found = {
        "latency": _time(median(one.median_ns for one in judged)),  # of all samples, since turns pick fast ones
        "fastest": _time(min(one.fastest_ns for one in judged)),
    }
    for name in judged[0].phases_ns:
        change = result.judgement.phases.get(name)
        ns = [one.phases_ns[name] for one in judged if name in one.phases_ns]
        found[name] = _time(change.now if change is not None else median(ns))
    if outcome.measurement is not None and (generation := outcome.measurement.generation) is not None:
        statistics = generation.statistics.items()
        found |= {name: _time(one.value) for name, one in statistics if is_compared(name, one.formula)}
    if launching := [one.launch_ns for one in judged if one.launch_ns is not None]:
        found["launching"] = _time(median(launching))
    peaks = [one.memory.peak_bytes for one in judged if one.memory is not None and "memory" not in one.memory.least]
    if peaks:
        found[PEAK] = Reading(memory.now if memory is not None else max(peaks), UNIT_BYTES, True)
    for name in judged[0].counts:
        found[name] = counted(name, min(one.counts[name] for one in judged if name in one.counts))
    for name in (outcome.summary or judged[0]).calibration_ns:
        ns = [one.calibration_ns[name] for one in judged if name in one.calibration_ns]
        found[CALIBRATION + name] = _time(median(ns))
    return found


def levels_of(file: WrittenBaselines) -> Iterator[Level]:
    """Yield the accepted levels of a file of times, or of exact quantities."""
    if any(b'"needs"' in bytes(raw) for raw in file.cases.values()):
        return _exact(file)
    return _times(file)


def _times(file: WrittenBaselines) -> Iterator[Level]:
    environments = msgspec.json.decode(file.environments, type=dict[str, Environment])
    places = {name: places_of(one, "") for name, one in environments.items()}
    found = {name: msgspec.json.decode(raw, type=_Times | list[_Times]) for name, raw in file.cases.items()}
    levels = [(name, one) for name, ones in found.items() for one in (ones if isinstance(ones, list) else [ones])]
    for name, one in levels:
        if not one.replicates:
            continue
        readings = {"latency": _time(median(each.median_ns for each in one.replicates))}
        peaks = [each.memory.peak_bytes for each in one.replicates if each.memory is not None]
        if peaks:
            readings[PEAK] = Reading(max(peaks), UNIT_BYTES, True)
        readings |= {count: counted(count, value) for count, value in one.replicates[0].counts.items()}
        yield Level(name, "", places[one.environment], one.recorded, _reason(one.accepted, one.recorded), readings)


def _exact(file: WrittenBaselines) -> Iterator[Level]:
    environments = msgspec.json.decode(file.environments, type=dict[str, ExactEnvironment])
    places = {name: exact_place(one) for name, one in environments.items()}
    for name, raw in file.cases.items():
        for key, one in msgspec.json.decode(raw, type=_Exact).needs.items():
            readings = {count: counted(count, value) for count, value in one.counts.items()}
            if one.peak_bytes:
                readings[PEAK] = Reading(max(one.peak_bytes), UNIT_BYTES, True)
            where = (places[key], places[key])
            yield Level(name, "", where, one.recorded, _reason(one.accepted, one.recorded), readings)


def _reason(accepted: list[_Accepted], recorded: str) -> str | None:
    """Return the reason of the latest accepted change if that change was accepted in this very save; else None."""
    return accepted[-1].reason if accepted and accepted[-1].date == recorded else None


def _time(value_ns: float) -> Reading:
    return Reading(value_ns, UNIT_NS, False)
