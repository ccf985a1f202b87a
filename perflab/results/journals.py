"""Reads the journal of a session as a results file: the finished cases of a run that may have been killed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import perflab
from perflab.base.data import changed
from perflab.base.errors import DocumentError
from perflab.base.files import read_regular
from perflab.base.reading import decoded
from perflab.results.documents import FAILED, PASSED, SCHEMA, merge
from perflab.results.result import Document

SUFFIX = ".jsonl"
_LATEST_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""Latest time that Python's dates can hold: a file's modification time may lie later."""


def read_journal(path: Path) -> tuple[Document, list[str]]:
    """Read a journal; return it as a document, and notes about it. The last result of each case counts.

    A session writes a line once a case has finished. The last line may be incomplete: the session was killed while it
    wrote, or is writing now.

    Raises:
        DocumentError: the journal is missing, or is damaged in another way.
    """
    try:
        raw = read_regular(path)
        written = datetime.fromtimestamp(min(path.stat().st_mtime, _LATEST_S), UTC)
    except FileNotFoundError as error:
        raise DocumentError(f"there is no file {path}", "journals are .perflab/runs/*.jsonl") from error
    except OSError as error:
        raise DocumentError(f"cannot read {path}: {error.strerror}", "name a journal, .perflab/runs/*.jsonl") from error
    lines = raw.split(b"\n")
    half = lines.pop()
    notes = ["read from the journal of a run: it has the cases that finished, but not how the run ended"]
    if half:
        notes.append(f"the last line of {path.name} is half-written and left out: a case was being written")
    whole = [line for number, line in enumerate(lines, 1) if _is_whole(line, number, path)]
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
    text = head.encode()[:-1] + b', "results": [' + b",".join(whole) + b"]}"
    document = decoded(
        text,
        Document,
        schema=SCHEMA,
        file=str(path),
        wanted="a journal of perflab's runs",
        remedy="name another one of .perflab/runs, or what pytest wrote with --perf-json=FILE",
        error=DocumentError,
    )
    commits = {result.commit for result in document.results}
    commit = commits.pop() if len(commits) == 1 else None
    plain = [changed(result, commit=None) for result in document.results]
    document = merge([changed(document, results=plain, commit=commit)])
    failed = any(result.failure for result in document.results)
    return changed(document, exitstatus=FAILED if failed else PASSED), notes


def _is_whole(line: bytes, number: int, path: Path) -> bool:
    if not line.strip():
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError) as problem:
        remedy = "remove that line to see the others"
        raise DocumentError(f"{path} is damaged at line {number}: {problem}", remedy) from problem
    return True
