"""Finds the project's commit, and the commit that a baseline was saved from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perflab.git import ask_git, commit_named, differs, top_of

_DIRTY = "+dirty"
_NO_ANSWER = "git did not answer"


@dataclass(frozen=True)
class CodeOf:
    """Where the code of a baseline, or of an anchor, is to be found."""

    commit: str | None
    told: str
    """With a commit: how it belongs to the baseline. Without: why there is none; empty where there is no git."""
    is_here: bool = False
    """Whether there is none because the code here is the same: no tracked file has changed since."""


def current_commit(root: Path, baselines: Path, results: Path | None = None) -> str | None:
    """The commit, with ``+dirty`` behind it unless git says that no file differs; None outside of a repository.

    None without git, too. Baselines do not count: saving the first one would make the tree dirty for the second. Nor
    does the file of a run's results, which the run before has left.
    """
    commit, top = commit_named(root, "HEAD"), top_of(root)
    if commit is None or top is None:
        return None
    others = [*_all_but(baselines, top), *_without(results, top)]
    changes = ask_git(top, "status", "--porcelain", *others)
    return commit if changes == "" else f"{commit}{_DIRTY}"  # so too where git did not answer: nobody knows it clean


def code_of(what: str, root: Path, baselines: Path, recorded: str, commit: str | None) -> CodeOf:
    """A commit that holds the code which a baseline was saved from.

    Args:
        what: ``baseline`` or ``anchor``, for words.
        root: a folder of the project.
        baselines: the directory of its baselines.
        recorded: the date that the entry, or anchor, has there.
        commit: what it says of its commit.

    Baselines are mostly saved before what they were measured on is committed. Then it is the commit with which the
    date first came into the baselines.
    """
    if commit is not None and not commit.endswith(_DIRTY):
        known = commit_named(root, commit)
        if known is not None:
            return CodeOf(known, f"where its {what} was saved")  # else it was rebased or squashed away
    top = top_of(root)
    if top is None or not baselines.resolve().is_relative_to(top.resolve()):
        return CodeOf(None, "")
    name = baselines.resolve().relative_to(top.resolve()).as_posix()
    dated = f'"recorded": "{recorded}"'
    if commit_named(top, "HEAD") is None:
        return CodeOf(None, f"its {what} is not committed")  # nothing is, and git has no log to look into
    brought = ask_git(top, "log", "--format=%H", f"-S{dated}", "--", f":(top,literal){name}")
    if not brought:
        return CodeOf(None, _NO_ANSWER if brought is None else f"its {what} is not committed")
    first = brought.splitlines()[-1]
    is_shallow = ask_git(top, "rev-parse", "--is-shallow-repository")
    if is_shallow != "false" and commit_named(top, f"{first}^") is None:
        # Where a shallow clone ends, everything looks as if it had come then.
        deepen = "this clone is too shallow: git fetch --unshallow, in GitHub Actions fetch-depth: 0"
        return CodeOf(None, _NO_ANSWER if is_shallow is None else deepen)
    parent = commit_named(top, commit.removesuffix(_DIRTY)) if commit is not None else None
    changed = differs(top, parent, first, *_all_but(baselines, top)) if parent is not None else True
    if not changed:
        early = f"its {what} was committed before the code that it was saved from"
        return CodeOf(None, _NO_ANSWER if changed is None else early)
    return CodeOf(first, f"which added its {what}")


def differs_from(commit: str, root: Path, baselines: Path) -> bool:
    """Whether any file but baselines is another one than in the commit; new files that git does not know are none."""
    top = top_of(root)
    return top is None or differs(top, commit, *_all_but(baselines, top)) is not False


def _without(file: Path | None, top: Path) -> list[str]:
    if file is None or not file.resolve().is_relative_to(top.resolve()):
        return []
    return [f":(top,exclude,literal){file.resolve().relative_to(top.resolve()).as_posix()}"]


def _all_but(baselines: Path, top: Path) -> list[str]:
    """The whole tree without baseline files; other files may lie among them, tests even."""
    if not baselines.resolve().is_relative_to(top.resolve()):
        return ["--", "."]
    place = baselines.resolve().relative_to(top.resolve()) / "*" / "*.json"
    escaped = [re.sub(r"([*?\[\\])", r"\\\1", part) for part in place.parts[:-2]]
    return ["--", ".", f":(exclude,glob){'/'.join([*escaped, *place.parts[-2:]])}"]
