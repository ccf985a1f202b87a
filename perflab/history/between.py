"""Finds the commits between two runs of a history. Each run is named by its commit, its date or its file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from perflab.base.data import changed
from perflab.base.errors import UsageError
from perflab.base.git import commit_named
from perflab.history.contents import BetweenRow, Contents, RunRow
from perflab.history.git_objects import clean, commits_between
from perflab.history.wording import short
from perflab.units import format_count

_SHORTEST = 4
"""The fewest digits that may name a commit."""
_MOST = 10_000


def with_between(contents: Contents, named: tuple[str, str], repository: Path) -> Contents:
    """Return the contents with the commits after the older of two runs up to the newer one.

    The runs may be named in either order.

    Raises:
        UsageError: a name fits no run, or several commits; a run names no commit; the repository lacks the commits.
    """
    older, newer = sorted(_run(contents.runs, name, repository) for name in named)
    ends = []
    for at in (older, newer):
        commit = contents.runs[at].commit
        if commit is None:
            raise UsageError(f"--between: {contents.runs[at].file} names no commit", "choose a run that names one")
        ends.append(clean(commit))
    found = commits_between(repository, ends[0], ends[1], _MOST)
    if found is None:
        raise UsageError(
            f"--between: this repository does not have {short(ends[0])} and {short(ends[1])}",
            "go to the project's repository, or fetch them",
        )
    return changed(contents, between=BetweenRow(older=older, newer=newer, commits=found[1]))


def _run(runs: Sequence[RunRow], name: str, repository: Path) -> int:
    """Return the index of the run with a name; the last run if the day or the commit has several.

    A name is a run's file, the beginning of its commit or of its date, or a revision of git that is its commit.
    """
    by_file = [at for at, run in enumerate(runs) if name in (run.file, Path(run.file).name)]
    by_commit = [at for at, run in enumerate(runs) if len(name) >= _SHORTEST and (run.commit or "").startswith(name)]
    by_date = [at for at, run in enumerate(runs) if len(name) >= len("2026-11-01") and run.created.startswith(name)]
    if len({clean(runs[at].commit or "") for at in by_commit}) > 1:
        raise UsageError(f"--between={name}: several commits begin so", "give more of its digits")
    found = by_file or by_commit or by_date
    if not found and (commit := commit_named(repository, name)) is not None:  # a tag, or HEAD~3
        found = [at for at, run in enumerate(runs) if run.commit is not None and clean(run.commit) == commit]
    if not found:
        last = runs[-1]
        like = ", ".join([*([short(last.commit)] if last.commit else []), last.created[:10], Path(last.file).name])
        raise UsageError(f"--between={name}: no run has that name", f"name its commit, date or file, such as {like}")
    return found[-1]


def between_lines(contents: Contents) -> Iterator[str]:
    """Yield a line with the two runs, then a line for each commit between them, newest first."""
    asked = contents.between
    assert asked is not None
    ends = [contents.runs[at] for at in (asked.older, asked.newer)]
    said = [f"{short(run.commit or '')} ({run.created[:10]})" for run in ends]
    yield f"between {said[0]} and {said[1]}: {format_count(len(asked.commits), 'commit')}"
    for one in asked.commits:
        yield f"  {short(one.commit)} {one.date} {one.subject}"
