"""Reads many objects of a git repository through one process, and lists the commits between two commits.

Nothing is checked out, and the user's working tree is not touched.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

from perflab.base.errors import RivalError, UsageError
from perflab.base.git import ask_git, commit_named, run_git
from perflab.history.contents import CommitRow
from perflab.tables.escaping import one_line
from perflab.units import format_names

_MOST_COMMITS = 20
"""The most commits of one range that are listed; the others are only counted."""


@contextlib.contextmanager
def objects_of(folder: Path) -> Iterator[Callable[[str], bytes | None]]:
    """Open ``git cat-file --batch`` for the length of the block; yield a function that reads a blob by its name.

    The function returns None if the repository has no such blob.

    Raises:
        RivalError: git is not installed.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        process = subprocess.Popen(
            ["git", "-C", str(folder), "cat-file", "--batch"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
    except FileNotFoundError:
        raise RivalError("git is not installed", "install git, or name a folder of results files") from None
    with process:
        source, sink = process.stdout, process.stdin
        assert source is not None
        assert sink is not None

        def read(name: str) -> bytes | None:
            sink.write(name.encode("utf-8", "surrogateescape") + b"\n")
            sink.flush()
            words = source.readline().split()
            if len(words) != 3 or not words[2].isdigit():
                return None  # git printed "… missing", or has ended
            content = source.read(int(words[2]))
            source.read(1)
            return content if words[1] == b"blob" else None

        try:
            yield read
        finally:
            process.kill()


def commits_between(folder: Path, good: str, bad: str, most: int = _MOST_COMMITS) -> tuple[int, list[CommitRow]] | None:
    """Return the number of commits after ``good`` up to ``bad``, and the newest ``most`` of them, newest first.

    A merge counts as one commit. Return None if the repository does not have both commits.
    """
    good, bad = clean(good), clean(bad)
    if commit_named(folder, good) is None or commit_named(folder, bad) is None:
        return None
    count = ask_git(folder, "rev-list", "--count", "--first-parent", f"{good}..{bad}")
    form = ["--format=%H%x09%cs%x09%s", f"--max-count={most}"]
    listed = ask_git(folder, "log", "--first-parent", *form, f"{good}..{bad}")
    if count is None or listed is None:
        return None
    fields = (line.split("\t", 2) for line in listed.splitlines())
    return int(count), [CommitRow(commit=commit, date=date, subject=subject) for commit, date, subject in fields]


def clean(commit: str) -> str:
    """Return the commit alone, without the ``+dirty`` that marks changed files."""
    return commit.partition("+")[0]


def files_on(folder: Path, branch: str, below: str) -> list[tuple[str, str]]:
    """Return the files below a folder of a branch, as ``(path, object name)``.

    Raises:
        RivalError: the branch does not exist.
        UsageError: the branch has no such folder.
    """
    commit = commit_named(folder, branch) or commit_named(folder, f"origin/{branch}")
    if commit is None:
        raise RivalError(f"--branch={branch}: there is no such branch here", f"fetch it: git fetch origin {branch}")
    place = below.strip("/")
    tree = commit if place in ("", ".") else f"{commit}:{place}"
    if ask_git(folder, "cat-file", "-t", tree) not in ("tree", "commit"):
        there = (ask_git(folder, "ls-tree", "-d", "-z", "--name-only", commit) or "").split("\0")
        named = format_names([one_line(name) for name in filter(None, there)]) or "none"
        raise UsageError(f"--branch={branch} has no folder {below}", f"name one of its folders: {named}")
    rows = run_git(folder, "ls-tree", "-r", "-z", "--full-tree", tree).split("\0")
    parts = (row.partition("\t") for row in filter(None, rows))
    heads = ((path, *head.split()) for head, _, path in parts)
    return [(path, name) for path, _mode, kind, name in heads if kind == "blob"]
