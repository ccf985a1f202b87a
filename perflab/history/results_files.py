"""Reads results files, reports and journals into a history: one of them, or all in a folder, on a disk or on a branch.

Samples, profiles and reasons are skipped. Damaged files of a folder are named and left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import msgspec

from perflab.attribution.reachable import collector_off
from perflab.base.errors import DocumentError, UsageError
from perflab.base.files import read_regular
from perflab.history.contents import LeftOutRow
from perflab.history.git_objects import files_on, objects_of
from perflab.history.series import History, Run
from perflab.results.readings import (
    DAMAGED,
    INEXACT_COUNTS,
    PEAK,
    UNIT_NS,
    Amount,
    Narrow,
    Number,
    Numbers,
    Reading,
    WrittenResult,
    basis_text,
    decoded,
    places_of,
)
from perflab.results.records import Environment
from perflab.results.result import record_of
from perflab.tiers.interface import shown_by


class Head(Narrow):
    """The fields by which the kinds of files differ."""

    schema: int
    kind: str | None = None


# --- a report as JSON: the quantities of a case stand ready -------------------------------------------------


class Quantity(Narrow):
    """One number of a case in a report."""

    now: Number | None = None
    unit: str = ""
    exact: bool = False

    before: float | None = None


class Times(Narrow):
    """Medians of the samples of this process, and of fresh processes."""

    median_ns: Number
    fresh_ns: list[Number] = []
    cut_short: bool = False


class ReportCase(Narrow):
    """One case of a report."""

    case: str
    times: Times | None = None
    quantities: dict[str, Quantity] = {}
    variant: str = ""
    environment: Amount | None = None
    verdict: str = ""
    compared_by: dict[str, str] = {}


class ReportRun(Narrow):
    """One run of a report."""

    created: datetime
    cases: list[ReportCase]
    commit: str | None = None
    repository: str | None = None
    environments: list[Environment] = []


class Report(Narrow):
    """A report as JSON."""

    runs: list[ReportRun]


# --- results as a run wrote them ----------------------------------------------------------------------------


class Document(Narrow):
    """A results file."""

    created: datetime
    results: list[WrittenResult]
    commit: str | None = None
    collected: list[str] = []
    stale: list[str] = []
    repository: str | None = None


REPORT = "perflab report"
SCHEMA_OF_RESULTS, SCHEMA_OF_REPORTS = 4, 1
_AGAIN = "write it again: pytest -m perf --perf-json=FILE"


def read_into(history: History, raw: bytes, file: str) -> None:
    """Add the run, or the runs, of one file to a history.

    Raises:
        DocumentError: the file is damaged, or was written by a newer perflab or another program. Nothing was added.
    """
    try:
        head = decoded(raw, Head)
        if head.kind is not None and head.kind != REPORT:
            raise DocumentError(f"it is a {head.kind!r}", "name results of runs")
        read = SCHEMA_OF_REPORTS if head.kind == REPORT else SCHEMA_OF_RESULTS
        if head.schema > read:
            raise DocumentError("it was written by a newer perflab", "upgrade perflab")
        if head.schema < read:
            raise DocumentError(f"it has schema {head.schema}, and perflab reads schema {read} only", _AGAIN)
        if head.kind == REPORT:
            runs = msgspec.json.decode(raw, type=Report).runs
            for case, environments in ((case, run.environments) for run in runs for case in run.cases):
                if case.environment is not None and not 0 <= case.environment < len(environments):
                    raise DocumentError(f"{case.case} names an environment that is not there", "write the report again")
            for run in runs:
                _add_report(history, run, file)
        else:
            _add_results(history, msgspec.json.decode(raw, type=Document), file)
    except DAMAGED as error:
        what = "it is damaged" if not isinstance(error, msgspec.ValidationError) else "it holds no results of perflab"
        raise DocumentError(f"{what}: {error}", _AGAIN) from error


def readings_of(raw: bytes, case: str, variant: str) -> dict[str, Reading]:
    """Return the readings of one case in a results file, by quantity.

    Raises:
        DocumentError: the content is no results file, or the case has no numbers in it; the error's text says why.
    """
    try:
        results = decoded(raw, Document).results
    except DAMAGED as error:
        raise DocumentError(f"it holds no results of perflab: {error}", _AGAIN) from error
    problem = "the case is not there"
    for one in results:
        if one.case != case:
            continue
        numbers = _numbers_of(one, one.tier)
        if numbers is not None and numbers.variant == variant:
            return numbers.readings
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
    results: dict[tuple[str, str, bool], WrittenResult] = {}
    for number, line in enumerate(lines, 1):
        try:
            if line:
                one = decoded(line, WrittenResult)
                tier = one.tier
                numbers = _numbers_of(one, tier)
                variant = numbers.variant if numbers is not None else one.mode.variant
                results[one.case, variant, _compares(tier)] = one
        except DAMAGED as error:
            if number < len(lines):
                raise DocumentError(f"line {number} is damaged: {error}", "remove the file") from error
    commit = next((one.commit for one in results.values()), None)
    _add_results(history, Document(created, list(results.values()), commit), file, is_journal=True)


def _add_report(history: History, run: ReportRun, file: str) -> None:
    history.repository = run.repository or history.repository
    number = history.begin(Run(_aware(run.created), run.commit, file))
    places = [_placed(history, environment, "") for environment in run.environments]
    for case in run.cases:
        name, variant = case.case, case.variant
        if case.times is not None and "latency" in case.quantities:
            case.quantities["latency"].now = median(case.times.fresh_ns or [case.times.median_ns])
        if case.environment is None:
            where = _placed(history, None, basis_text(case.compared_by))
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
        if case.times is not None and case.times.cut_short:
            readings = _without_times(history, number, readings)
        history.add(number, name, variant, where, case.verdict, readings)
    history.end(number)


def _varying(counts: Iterable[str], compared: Collection[str]) -> set[str]:
    """Return the counts that a run did not compare, although it compared memory or other counts with a baseline.

    Such counts vary, or may vary, from run to run.
    """
    return {*counts} - {*compared, PEAK} if compared else set()


def _placed(history: History, environment: Environment | None, variant: str) -> tuple[int, int]:
    times, exact = places_of(environment, variant)
    return history.place(times), history.place(exact)


def _add_results(history: History, document: Document, file: str, *, is_journal: bool = False) -> None:
    history.repository = document.repository or history.repository
    created = _aware(document.created)
    number = history.begin(Run(created, document.commit, file, is_journal))
    if document.collected and (history.collected is None or created >= history.collected[0]):
        history.collected = created, document.collected, document.stale
    seen: set[tuple[str, str]] = set()
    found = [(result, result.tier) for result in document.results]
    # Of two readings of a case, the one that was judged by the baseline counts.
    for result, tier in sorted(found, key=lambda one: _compares(one[1])):
        numbers = _numbers_of(result, tier)
        if numbers is None:
            continue
        key = (result.case, numbers.variant)
        if key in seen and _compares(tier):
            continue
        seen.add(key)
        where = history.place(numbers.places[0]), history.place(numbers.places[1])
        counts = numbers.counts
        judged = [*result.judgement.counts, *[PEAK] * (result.judgement.memory is not None)]
        varying = _varying(counts[0] if counts else (), judged)
        # A count that the gate judged is exact, although processes may disagree on how much it rose.
        differ = {name for one in counts for name in one if one[name] != counts[0].get(name)}
        varying |= differ - result.judgement.counts.keys()
        history.varying.update((result.case, numbers.variant, count, where[1]) for count in varying)
        readings = numbers.readings
        if numbers.are_cut_short:
            readings = _without_times(history, number, readings)
        history.add(number, result.case, numbers.variant, where, result.judgement.verdict, readings)
    history.end(number)


def _without_times(history: History, run: int, readings: dict[str, Reading]) -> dict[str, Reading]:
    """Return the other readings of a case whose times were cut short, and let the history count the run."""
    history.cut_short.add(history.runs[run])
    return {name: one for name, one in readings.items() if one.unit != UNIT_NS}


def _aware(created: datetime) -> datetime:
    return created if created.tzinfo is not None else created.replace(tzinfo=UTC)


def _compares(tier: str | None) -> bool:
    """Whether the results of this tier compare a case with another version that ran beside it."""
    return tier is not None and record_of(tier).compares


def _numbers_of(result: WrittenResult, tier: str | None) -> Numbers | None:
    """Return the numbers of a result of this tier, as the tier reads them; None if it has none.

    Raises:
        ValueError: there is no such tier.
    """
    return shown_by(tier).numbers(result) if tier is not None else None


# --- a folder of files --------------------------------------------------------------------------------------

_ENDS = (".json", ".jsonl")
_JOURNAL = re.compile(r"(\d{4}-\d\d-\d\d)T(\d\d)-(\d\d)-(\d\d)-(\d{6})-\d+\.jsonl")
_OURS = (b'"perflab"', b'"judgement"', b'"perflab report"')
"""Texts of which each file that a run or a report wrote has at least one, however damaged the file is."""
_REMEDY = "name a folder with what --perf-json, perflab report --format=json or perflab merge wrote"


def read_folder(folder: Path, skipped: Collection[str] = ()) -> History:
    """Read all results files in a folder and its subfolders, without the quantities that are ``skipped``.

    Raises:
        UsageError: the folder does not exist, or holds no results file that can be read.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", _REMEDY)
    paths = sorted(path for path in folder.rglob("*") if path.suffix in _ENDS)

    def contents() -> Iterator[tuple[str, bytes | str]]:
        for path in paths:
            try:
                yield str(path), read_regular(path)
            except OSError as error:
                yield str(path), f"cannot be read: {error.strerror}"

    return _read(History(str(folder), skipped), contents())


def read_branch(repository: Path, branch: str, folder: str, skipped: Collection[str] = ()) -> History:
    """Read all results files in a folder on a branch of a git repository, and in its subfolders, without a checkout.

    Quantities that are ``skipped`` are left out.

    Raises:
        RivalError: the branch does not exist, or git is not installed.
        UsageError: the branch has no such folder, or the folder holds no results file that can be read.
    """
    found = [(path, name) for path, name in files_on(repository, branch, folder) if path.endswith(_ENDS)]
    with objects_of(repository) as read:

        def contents() -> Iterator[tuple[str, bytes | str]]:
            for path, name in found:
                content = read(name)
                yield f"{branch}:{path}", "git does not have it" if content is None else content

        return _read(History(f"{branch}:{folder}", skipped), contents())


def _read(history: History, contents: Iterable[tuple[str, bytes | str]]) -> History:
    with collector_off():  # millions of short-lived objects without reference cycles
        for file, content in contents:
            if isinstance(content, str):
                history.left_out.append(LeftOutRow(file=file, problem=content))
                history.unread.append(file)
                continue
            try:
                if file.endswith(".jsonl"):
                    read_journal_into(history, content, file, _begun(file))
                else:
                    read_into(history, content, file)
            except DocumentError as error:
                history.left_out.append(LeftOutRow(file=file, problem=error.problem))
                history.unread += [file] * any(word in content for word in _OURS)
    if not history.runs:
        first = next((f": {one.file}: {one.problem}" for one in history.left_out), "")
        raise UsageError(f"{history.source} holds no results{first}", _REMEDY)
    return history


def _begun(file: str) -> datetime:
    """Return when a journal was begun, as its file name says.

    Raises:
        DocumentError: the name is not that of a journal.
    """
    found = _JOURNAL.fullmatch(file.rpartition("/")[2])
    if found is None:
        raise DocumentError("its name is not that of a journal", "keep the name that perflab gave it")
    date, hour, minute, second, microsecond = found.groups()
    try:
        return datetime.fromisoformat(f"{date}T{hour}:{minute}:{second}.{microsecond}").replace(tzinfo=UTC)
    except ValueError:  # a month 99
        raise DocumentError("its name is not a date", "keep the name that perflab gave it") from None
