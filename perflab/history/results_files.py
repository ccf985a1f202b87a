"""Reads the numbers of one results file, report or journal into a history. Skips samples, profiles and reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from statistics import median

import msgspec

from perflab.errors import DocumentError
from perflab.history import narrow
from perflab.history.narrow import UNIT_BYTES, UNIT_COUNT, UNIT_NS
from perflab.history.places import basis_text, places_of
from perflab.history.series import CALIBRATION, INEXACT_COUNTS, History, Reading, Run
from perflab.measure.records import is_compared
from perflab.records import Environment

REPORT = "perflab report"
NEWEST_RESULTS, NEWEST_REPORT = 3, 1
_MEMORY = "peak"
_AGAIN = "write it again: pytest -m perf --perf-json=FILE"


def read_into(history: History, raw: bytes, file: str) -> None:
    """Add the run, or the runs, of one file to a history.

    Raises:
        DocumentError: the file is damaged, or was written by a newer perflab or another program. Nothing was added.
    """
    try:
        head = narrow.decoded(raw, narrow.Head)
        if head.kind is not None and head.kind != REPORT:
            raise DocumentError(f"it is a {head.kind!r}", "name results of runs")
        if head.schema > (NEWEST_REPORT if head.kind == REPORT else NEWEST_RESULTS):
            raise DocumentError("it was written by a newer perflab", "upgrade perflab")
        if head.kind == REPORT:
            runs = msgspec.json.decode(raw, type=narrow.Report).runs
            _refuse_nowhere(runs)
            for run in runs:
                _add_report(history, run, file)
        else:
            _add_results(history, msgspec.json.decode(raw, type=narrow.Document), file)
    except narrow.DAMAGED as error:
        what = "it is damaged" if not isinstance(error, msgspec.ValidationError) else "it holds no results of perflab"
        raise DocumentError(f"{what}: {error}", _AGAIN) from error


def readings_of(raw: bytes, case: str, variant: str) -> dict[str, Reading]:
    """Return the readings of one case in a results file, by quantity.

    Raises:
        DocumentError: the content is no results file, or the case has no numbers in it; the error's text says why.
    """
    try:
        results = narrow.decoded(raw, narrow.Document).results
    except narrow.DAMAGED as error:
        raise DocumentError(f"it holds no results of perflab: {error}", _AGAIN) from error
    problem = "the case is not there"
    for one in results:
        if one.case != case:
            continue
        if one.outcome is not None and _variant(one) == variant:
            return _readings(one, one.outcome)
        problem = in_a_line(one.failure) or next(iter(one.judgement.reasons), one.judgement.verdict)
    raise DocumentError(problem, "run the case by itself")


def in_a_line(failure: str | None) -> str:
    """Return the most telling line of a test's failure: the first that pytest marks as an error, or else the last."""
    lines = (failure or "").strip().splitlines()
    errors = [line[1:].strip() for line in lines if line.startswith("E ")]
    return next(iter(errors or lines[-1:]), "")


def read_journal_into(history: History, raw: bytes, file: str, created: datetime) -> None:
    """Add a run from its journal. The last line of each case counts; an incomplete last line is no damage.

    Raises:
        DocumentError: a line before the last one is no result.
    """
    lines = raw.split(b"\n")
    results: dict[tuple[str, str, bool], narrow.Result] = {}
    for number, line in enumerate(lines, 1):
        try:
            if line:
                one = narrow.decoded(line, narrow.Result)
                results[one.case, _variant(one), _is_comparison(one)] = one
        except narrow.DAMAGED as error:
            if number < len(lines):
                raise DocumentError(f"line {number} is damaged: {error}", "remove the file") from error
    commit = next((one.commit for one in results.values()), None)
    _add_results(history, narrow.Document(created, list(results.values()), commit), file, is_journal=True)


def _refuse_nowhere(runs: Sequence[narrow.ReportRun]) -> None:
    """Raise DocumentError for a case that names an environment that its run does not have."""
    for run in runs:
        for case in run.cases:
            if case.environment is not None and not 0 <= case.environment < len(run.environments):
                raise DocumentError(f"{case.case} names an environment that is not there", "write the report again")


def _add_report(history: History, run: narrow.ReportRun, file: str) -> None:
    history.repository = run.repository or history.repository
    number = history.begin(Run(_aware(run.created), run.commit, file))
    places = [_numbers(history, environment, "") for environment in run.environments]
    for case in run.cases:
        name, variant = case.case, case.variant
        if case.times is not None and "latency" in case.quantities:
            case.quantities["latency"].now = median(case.times.fresh_ns or [case.times.median_ns])
        if case.environment is None:
            where = _numbers(history, None, basis_text(case.compared_by))
        else:
            where = places[case.environment]
            exact = {quantity: one.before for quantity, one in case.quantities.items() if one.exact}
            compared = [quantity for quantity, before in exact.items() if before is not None]
            history.varying.update((name, variant, count, where[1]) for count in _varying(exact, compared))
        readings = {
            quantity: Reading(one.now, one.unit, one.exact and quantity not in INEXACT_COUNTS)
            for quantity, one in case.quantities.items()
            if one.now is not None
        }
        history.add(number, name, variant, where, case.verdict, readings)
    history.end(number)


def _varying(counts: Iterable[str], compared: Collection[str]) -> set[str]:
    """Return the counts that a run did not compare, although it compared memory or other counts with a baseline.

    Such counts vary, or may vary, from run to run.
    """
    return {*counts} - {*compared, _MEMORY} if compared else set()


def _numbers(history: History, environment: Environment | None, variant: str) -> tuple[int, int]:
    times, exact = places_of(environment, variant)
    return history.place(times), history.place(exact)


def _add_results(history: History, document: narrow.Document, file: str, *, is_journal: bool = False) -> None:
    history.repository = document.repository or history.repository
    number = history.begin(Run(_aware(document.created), document.commit, file, is_journal))
    history.note_collected(_aware(document.created), document.collected, document.stale)
    numbers: dict[tuple[Environment | None, str], tuple[int, int]] = {}
    seen = set()
    for result in sorted(document.results, key=_is_comparison):  # of two readings, that judged by the baseline counts
        outcome = result.outcome
        if outcome is None:
            continue
        variant, where = _variant(result), outcome.now.where if outcome.now is not None else ""
        if _is_comparison(result) and (result.case, variant, where) in seen:
            continue
        seen.add((result.case, variant, where))
        key = (outcome.environment, where)
        if key not in numbers:
            numbers[key] = _numbers(history, outcome.environment, where)
        readings = _readings(result, outcome)
        counts = [one.counts for one in outcome.fresh or filter(None, [outcome.summary])]
        judged = [*result.judgement.counts, *[_MEMORY] * (result.judgement.memory is not None)]
        varying = _varying(counts[0] if counts else (), judged)
        # A count that the gate judged is exact, although processes may disagree on how much it rose.
        differ = {name for one in counts for name in one if one[name] != counts[0].get(name)}
        varying |= differ - result.judgement.counts.keys()
        history.varying.update((result.case, variant, count, numbers[key][1]) for count in varying)
        history.add(number, result.case, variant, numbers[key], result.judgement.verdict, readings)
    history.end(number)


def _aware(created: datetime) -> datetime:
    return created if created.tzinfo is not None else created.replace(tzinfo=UTC)


def _is_comparison(result: narrow.Result) -> bool:
    return result.outcome is not None and result.outcome.type == "compared"


def _variant(result: narrow.Result) -> str:
    now = result.outcome.now if result.outcome is not None else None
    if now is not None:
        return now.gpu or ""
    words = ["cold"] * (result.mode.cache == "cold") + ["graph"] * result.mode.cuda_graph
    return f"{{{', '.join(words)}}}" if words else ""


def _readings(result: narrow.Result, outcome: narrow.Outcome) -> dict[str, Reading]:
    if outcome.now is not None:
        return outcome.now.readings()
    judged = outcome.fresh or ([outcome.summary] if outcome.summary is not None else [])
    if not judged:
        return {}
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
        found["peak"] = Reading(memory.now if memory is not None else max(peaks), UNIT_BYTES, True)
    for name in judged[0].counts:
        count = min(one.counts[name] for one in judged if name in one.counts)
        found[name] = Reading(count, UNIT_COUNT, name not in INEXACT_COUNTS)
    for name in (outcome.summary or judged[0]).calibration:
        found[CALIBRATION + name] = _time(median(one.calibration[name] for one in judged if name in one.calibration))
    return found


def _time(value_ns: float) -> Reading:
    return Reading(value_ns, UNIT_NS, False)
