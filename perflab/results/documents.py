"""Reads and writes results files (``--perf-json``), reads journals as such, and merges the files of several runs.

The same rules apply within one run: the last result of a case counts, and cases are in collected order.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

import perflab
from perflab.base.data import changed, to_json
from perflab.base.errors import DocumentError
from perflab.base.files import write_whole
from perflab.base.reading import FileKind
from perflab.results.records import Verdict
from perflab.results.result import Document, Result, by_study

Name = TypeVar("Name", bound=Hashable)

SCHEMA = 4
"""The version of the format."""
_REPORT, _HEAD = b'"perflab report"', 200
"""The mark of a JSON report, which appears within the first ``_HEAD`` bytes."""
_WANTED = "name a file that pytest wrote with --perf-json=FILE"
_RESULTS = FileKind(
    content=Document,
    schema=SCHEMA,
    wanted="a file of perflab's results",
    check=_WANTED,
    remedy="write it again: pytest -m perf --perf-json=FILE",
    error=DocumentError,
)
_JOURNALS = replace(
    _RESULTS,
    wanted="a journal of perflab's runs",
    check="name a journal, .perflab/runs/*.jsonl",
    remedy="name another one of .perflab/runs, or what pytest wrote with --perf-json=FILE",
)
PASSED, FAILED, NOTHING_RUN = 0, 1, 5
"""pytest's exit statuses of a complete run; a run with any other status ended early."""
SUFFIX = ".jsonl"
_LATEST_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""Latest time that Python's dates can hold: a file's modification time may lie later."""


def read_document(path: Path) -> Document:
    """Read a results file.

    Raises:
        DocumentError: the file is missing, damaged, from a newer perflab, or not a results file.
    """
    try:
        raw = _RESULTS.raw(path)
    except FileNotFoundError as error:
        raise DocumentError(f"there is no file {path}", _WANTED) from error
    if _REPORT in raw[:_HEAD]:
        raise DocumentError(
            f"{path} is a report, which perflab report --format=json wrote from a results file",
            "name that results file; a report's JSON is read by perflab history, and by programs",
        )
    return _RESULTS.decoded(raw, path)


def write_document(document: Document, path: Path) -> None:
    """Write the whole file, or leave the existing one unchanged.

    Raises:
        OSError: the file cannot be written.
    """
    write_whole(path, msgspec.json.format(to_json(document), indent=1) + b"\n")


def merge(parts: Sequence[Document]) -> Document:
    """Merge the parts of a run, at least one, into one document.

    If several parts have a case, the result of the part that was written last counts, as a rerun. It replaces only a
    result that came to its verdict in the same way (``Result.way``): a prediction and an A/B comparison stand beside
    the result of a run, and do not take back its failure. Neither does a result that judged less than the earlier one
    (``_takes_back``).
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
        unreached=[case for case in weave([part.unreached for part in parts]) if case not in results],
        stale=[case for case in dict.fromkeys(one for part in parts for one in part.stale) if case not in collected],
    )
    return changed(merged, exitstatus=_exit_status(parts, merged))


def only_cases(document: Document, text: str) -> Document:
    """Return the document with only the cases whose names contain a text, without other failures and findings."""
    results = [result for result in document.results if text in result.case]
    studies = {result.study for result in document.results if result not in results}
    chosen = changed(
        document,
        results=results,
        collected=[case for case in document.collected if text in case],
        findings={study: lines for study, lines in document.findings.items() if study not in studies},
        other_failures=[],
        unreached=[case for case in document.unreached if text in case],
    )
    if ended_early(document):
        return chosen
    return changed(chosen, exitstatus=FAILED if any(one.failure for one in results) else PASSED)


def _findings(by_age: Sequence[Document], results: Iterable[Result]) -> dict[str, list[str]]:
    """Return the findings of studies whose counting results all come from one part.

    The findings of other studies are left out: each part saw only some of their results.
    """
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
    # A part that stopped at a failure (-x): a later part has taken the failure back, and may not have run the rest.
    if merged.other_failures or merged.unreached or any(result.failure for result in merged.results):
        return FAILED
    # A part that failed for an unknown reason: no later part may take that back.
    unexplained = [part for part in parts if not (part.other_failures or any(one.failure for one in part.results))]
    if any(part.exitstatus == FAILED for part in unexplained):
        return FAILED
    return PASSED if any(part.exitstatus != NOTHING_RUN for part in parts) else NOTHING_RUN


def ended_early(document: Document) -> bool:
    """Whether the document's run was interrupted or crashed, so that cases may be missing."""
    return document.exitstatus not in (PASSED, FAILED, NOTHING_RUN)


def _standing(parts: Iterable[Sequence[Result]]) -> dict[str, list[Result]]:
    """Return case -> its counting results, one for each way to a verdict (``Result.way``).

    Within a part the last result counts, since plugins may rerun a test. A result of a later part counts if it takes
    the earlier one back (``_takes_back``).
    """
    found: dict[str, dict[str, Result]] = {}
    for results in parts:
        for (case, way), result in {(result.case, result.way): result for result in results}.items():
            ones = found.setdefault(case, {})
            earlier = ones.pop(way, None)
            ones[way] = result if earlier is None or _takes_back(result, earlier) else earlier
    return {case: list(ones.values()) for case, ones in found.items()}


def _takes_back(later: Result, earlier: Result) -> bool:
    """Whether a rerun's result replaces the earlier one.

    A failure replaces a pass. Otherwise the rerun must have judged as much: a test that did not run replaces nothing, a
    run without a verdict replaces no verdict, and no rerun replaces a regression of a quantity that it did not compare.
    """
    if later.failure is not None and earlier.failure is None:
        return True
    before, now = earlier.judgement, later.judgement
    rose = {name for name, change in before.counts.items() if change.is_past_limit}
    judged = {name for name, change in now.counts.items() if change.limit is not None}
    compared = all(getattr(now, name, True) for name in before.worse) and rose <= judged
    if "latency" in before.worse and now.time_not_judged is not None:
        return False
    decided = (Verdict.OK, Verdict.IMPROVED, Verdict.REGRESSED)
    weights = [0 if one.verdict is Verdict.SKIPPED else 2 if one.verdict in decided else 1 for one in (before, now)]
    return compared and weights[1] >= weights[0]


def in_order(results: Mapping[str, Result], order: Sequence[str]) -> list[Result]:
    """Return the results in the order in which their cases were collected."""
    return [results[case] for case in weave([order, list(results)]) if case in results]


def weave(orders: Iterable[Sequence[Name]]) -> list[Name]:
    """Combine several orders into one.

    A name that only a later order has follows the same name as there; names that lead that order come before its first
    known name.
    """
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


def read_journal(path: Path) -> tuple[Document, list[str]]:
    """Read a journal; return it as a document, and notes about it. The last result of each case counts.

    A session writes a line once a case has finished. The last line may be incomplete: the session was killed while it
    wrote, or is writing now.

    Raises:
        DocumentError: the journal is missing, or is damaged in another way.
    """
    try:
        raw = _JOURNALS.raw(path)
        written = datetime.fromtimestamp(min(path.stat().st_mtime, _LATEST_S), UTC)
    except FileNotFoundError as error:
        raise DocumentError(f"there is no file {path}", "journals are .perflab/runs/*.jsonl") from error
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}", _JOURNALS.check) from error
    lines = raw.split(b"\n")
    half = lines.pop()
    notes = ["read from the journal of a run: it has the cases that finished, but not how the run ended"]
    if half:
        notes.append(f"the last line of {path.name} is half-written and left out: a case was being written")
    whole = {number: line for number, line in enumerate(lines, 1) if line.strip()}
    for number, line in whole.items():
        try:
            json.loads(line)
        except (ValueError, RecursionError) as problem:
            remedy = "remove that line to see the others"
            raise DocumentError(f"{path} is damaged at line {number}: {problem}", remedy) from problem
    head = json.dumps(
        {
            "schema": SCHEMA,
            "perflab": perflab.__version__,
            "created": written.isoformat(),
            "exitstatus": PASSED,
            "baselines": None,
            "threshold": 0.05,
        }
    )
    text = head.encode()[:-1] + b', "results": [' + b",".join(whole.values()) + b"]}"
    document = _JOURNALS.decoded(text, path)
    commits = {result.commit for result in document.results}
    commit = commits.pop() if len(commits) == 1 else None
    plain = [changed(result, commit=None) for result in document.results]
    document = merge([changed(document, results=plain, commit=commit)])
    failed = any(result.failure for result in document.results)
    return changed(document, exitstatus=FAILED if failed else PASSED), notes
