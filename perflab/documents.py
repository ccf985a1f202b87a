"""Reads and writes results files (``--perf-json``), and merges those of several runs.

The same rules make a run's own results one: the last result of a case counts, and cases stand in collected order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from perflab.data import changed, to_json
from perflab.errors import DocumentError
from perflab.files import read_regular, write_whole
from perflab.measure.records import CALIBRATION_BEFORE
from perflab.reading import decoded, rename_key
from perflab.records import Verdict
from perflab.results import Document, Result, by_study

Name = TypeVar("Name", bound=Hashable)

OLDEST, SCHEMA = 1, 3
"""1 had a key for each tier where ``outcome`` is; 2 and before called ``calibration_ns`` ``yardsticks_ns``."""
_REPORT, _HEAD = b'"perflab report"', 200
"""How a report as JSON begins: its kind, within so many bytes."""
_WANTED = "name a file that pytest wrote with --perf-json=FILE"
PASSED, FAILED, NOTHING_RUN = 0, 1, 5
"""pytest's exit statuses that a run ends with in peace; with any other one it ended early."""


def read_document(path: Path) -> Document:
    """Read a results file.

    Raises:
        DocumentError: it is missing, damaged, from a newer perflab, or not one of ours.
    """
    try:
        raw = read_regular(path)
    except FileNotFoundError as error:
        raise DocumentError(f"there is no file {path}", _WANTED) from error
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}", _WANTED) from error
    if _REPORT in raw[:_HEAD]:
        raise DocumentError(
            f"{path} is a report, which perflab report --format=json wrote from a results file",
            "name that results file; a report's JSON is read by perflab history, and by programs",
        )
    return decoded(
        raw,
        Document,
        newest=SCHEMA,
        file=str(path),
        wanted="a file of perflab's results",
        remedy="write it again: pytest -m perf --perf-json=FILE",
        error=DocumentError,
        upgrade=upgrade,
    )


def upgrade(document: Any) -> None:
    """What an older schema had, as the newest has it; what is new already stays."""
    results = document.get("results")
    for result in results if isinstance(results, list) else ():
        if isinstance(result, dict):
            for key, tier in (("record", "measured"), ("predicted", "predicted"), ("compiled", "compiled")):
                found = result.pop(key, None)
                if isinstance(found, dict):
                    result["outcome"] = {"type": tier, **found}
    rename_key(document, *CALIBRATION_BEFORE)
    document["schema"] = SCHEMA


def write_document(document: Document, path: Path) -> None:
    """Write the whole file, or leave what is there.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(path, msgspec.json.format(to_json(document), indent=1) + b"\n")


def merge(parts: Sequence[Document]) -> Document:
    """Parts of one run as the run that they are parts of; at least one.

    Where a case stands in several, the result of the part that was written last counts: that is a rerun. It is one
    only of what came to its verdict in the same way (``Result.way``): beside what was run a prediction stands by
    itself, and so does an A/B comparison; they take no failure back. Neither does a result that judged less than the
    one before it (``_takes_back``).
    """
    by_age = sorted(parts, key=lambda part: part.created)
    newest = by_age[-1]
    results = _standing([part.results for part in by_age])
    collected = weave([weave([part.collected, [result.case for result in part.results]]) for part in parts])
    others: dict[str, None] = {}
    for part in by_age:
        again = {result.case for result in part.results if result.judgement.verdict is not Verdict.SKIPPED}
        others = {name: None for name in others if name not in again} | dict.fromkeys(part.other_failures)
    merged = changed(
        newest,
        commit=newest.commit if len({part.commit for part in parts}) == 1 else None,
        repository=newest.repository if len({part.repository for part in parts}) == 1 else None,
        command=newest.command if len({part.command for part in parts}) == 1 else None,
        preface=list(dict.fromkeys(line for part in parts for line in part.preface)),
        results=[one for case in weave([collected, list(results)]) for one in results.get(case, ())],
        collected=collected,
        findings=_findings(by_age, [one for ones in results.values() for one in ones]),
        other_failures=list(others),
        stale=[case for case in dict.fromkeys(one for part in parts for one in part.stale) if case not in collected],
    )
    return changed(merged, exitstatus=_exit_status(parts, merged))


def only_cases(document: Document, text: str) -> Document:
    """The run as if it had had only the cases whose names contain a text: nothing else that failed, or was found."""
    results = [result for result in document.results if text in result.case]
    studies = {result.study for result in document.results if result not in results}
    chosen = changed(
        document,
        results=results,
        collected=[case for case in document.collected if text in case],
        findings={study: lines for study, lines in document.findings.items() if study not in studies},
        other_failures=[],
    )
    if ended_early(document):
        return chosen
    return changed(chosen, exitstatus=FAILED if any(one.failure for one in results) else PASSED)


def _findings(by_age: Sequence[Document], results: Iterable[Result]) -> dict[str, list[str]]:
    """What was found in studies of which all results that count are one part's; of others each part saw only some."""
    members, found = by_study(results), {}
    for part in by_age:
        own = {id(one) for ones in _standing([part.results]).values() for one in ones}
        for study, lines in part.findings.items():
            if study in members and all(id(result) in own for result in members[study]):
                found[study] = lines
    return found


def _exit_status(parts: Sequence[Document], merged: Document) -> int:
    for part in parts:
        if ended_early(part):
            return part.exitstatus
    if merged.other_failures or any(result.failure for result in merged.results):
        return FAILED
    # A part that failed for something we do not know: no later part may take that back.
    unexplained = [part for part in parts if not (part.other_failures or any(one.failure for one in part.results))]
    if any(part.exitstatus == FAILED for part in unexplained):
        return FAILED
    return PASSED if any(part.exitstatus != NOTHING_RUN for part in parts) else NOTHING_RUN


def ended_early(document: Document) -> bool:
    """Whether its run was interrupted or broke, so that cases may be missing."""
    return document.exitstatus not in (PASSED, FAILED, NOTHING_RUN)


def _standing(parts: Iterable[Sequence[Result]]) -> dict[str, list[Result]]:
    """Each case with its results that count, one for each way in which it came to one, or was to.

    Within a part that is the last one, since plugins run a test again; a later part's has to take it back.
    """
    found: dict[str, dict[str, Result]] = {}
    for results in parts:
        for (case, way), result in {(result.case, result.way): result for result in results}.items():
            ones = found.setdefault(case, {})
            earlier = ones.pop(way, None)
            ones[way] = result if earlier is None or _takes_back(result, earlier) else earlier
    return {case: list(ones.values()) for case, ones in found.items()}


def _takes_back(later: Result, earlier: Result) -> bool:
    """Whether a rerun's result stands for the case from now on.

    One that fails stands in for one that passed. Else the rerun has to have judged as much: a test that did not run
    takes nothing back, one that ran without a verdict no verdict, and none a quantity that it did not compare.
    """
    if later.failure is not None and earlier.failure is None:
        return True
    before, now = earlier.judgement, later.judgement
    rose = {name for name, change in before.counts.items() if change.is_past_limit}
    judged = {name for name, change in now.counts.items() if change.limit is not None}
    compared = all(getattr(now, name, True) for name in before.worse) and rose <= judged
    if "latency" in before.worse and now.time_not_judged is not None:
        return False
    return compared and _weight(later) >= _weight(earlier)


def _weight(result: Result) -> int:
    if result.judgement.verdict is Verdict.SKIPPED:
        return 0
    return 2 if result.judgement.verdict in (Verdict.OK, Verdict.IMPROVED, Verdict.REGRESSED) else 1


def in_order(results: Mapping[str, Result], order: Sequence[str]) -> list[Result]:
    """Results in the order in which their cases were collected, however they came in."""
    return [results[case] for case in weave([order, list(results)]) if case in results]


def weave(orders: Iterable[Sequence[Name]]) -> list[Name]:
    """One order out of several: what an order adds stands after the same case as there, or before it if it leads."""
    woven: list[Name] = []
    for order in orders:
        known = set(woven)
        before: dict[Name, list[Name]] = {}
        after: dict[Name, list[Name]] = {}
        lead: list[Name] = []
        anchor: Name | None = None
        for case in dict.fromkeys(order):
            if case in known:
                if anchor is None:
                    before[case] = lead
                anchor = case
            else:
                (lead if anchor is None else after.setdefault(anchor, [])).append(case)
        if anchor is None:
            woven += lead
        else:
            woven = [one for case in woven for one in (*before.get(case, ()), case, *after.get(case, ()))]
    return woven
