"""Reads a history from a folder of results files, on a disk or on a branch. Damaged files are named and left out."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from perflab.base.errors import DocumentError, UsageError
from perflab.base.files import read_regular
from perflab.history.git_objects import files_on, objects_of
from perflab.history.results_files import read_into, read_journal_into
from perflab.history.series import History, LeftOut

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
    collects = gc.isenabled()
    gc.disable()  # millions of short-lived objects without reference cycles
    try:
        for file, content in contents:
            if isinstance(content, str):
                history.left_out.append(LeftOut(file, content))
                continue
            try:
                if file.endswith(".jsonl"):
                    read_journal_into(history, content, file, _begun(file))
                else:
                    read_into(history, content, file)
            except DocumentError as error:
                history.left_out.append(LeftOut(file, error.problem, any(word in content for word in _OURS)))
    finally:
        if collects:
            gc.enable()
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
