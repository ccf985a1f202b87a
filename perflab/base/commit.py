"""Finds the project's commit, and the commit that a baseline was saved from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from perflab.base.git import ask_git, commit_named, differs, top_of

_DIRTY = "+dirty"
_NO_ANSWER = "git did not answer"


@dataclass(frozen=True)
class CodeOf:
    """The commit that holds the code of a baseline or of an anchor."""

    commit: str | None
    told: str
    """How the commit belongs to the baseline; without a commit, why there is none, or empty without git."""
    is_here: bool = False
    """Whether there is no commit because the code here is the same: no tracked file has changed since."""


def current_commit(root: Path, baselines: Path, results: Path | None = None) -> str | None:
    """Return the current commit, with ``+dirty`` appended unless git confirms that no file differs.

    None outside a repository or without git. Baseline files are ignored, since saving the first baseline would make the
    tree dirty for the second. The file of a run's results is ignored too, since the previous run has left it.
    """
    commit, top = commit_named(root, "HEAD"), top_of(root)
    if commit is None or top is None:
        return None
    others = [*_all_but(baselines, top), *_without(results, top)]
    changes = ask_git(top, "status", "--porcelain", *others)
    return commit if changes == "" else f"{commit}{_DIRTY}"  # also if git did not answer: the tree may not be clean


def code_of(what: str, root: Path, baselines: Path, recorded: str, commit: str | None) -> CodeOf:
    """Return the commit that holds the code from which a baseline was saved.

    Args:
        what: ``baseline`` or ``anchor``, for messages.
        root: a folder of the project.
        baselines: the directory of the project's baselines.
        recorded: the date that the baseline or anchor has in its file.
        commit: the commit that the baseline or anchor has in its file.

    Baselines are mostly saved before the measured code is committed. Then the result is the commit that first added
    the date to the baselines.
    """
    if commit is not None and not commit.endswith(_DIRTY):
        known = commit_named(root, commit)
        if known is not None:
            return CodeOf(known, f"where its {what} was saved")  # an unknown commit was rebased or squashed away
    top = top_of(root)
    if top is None or not baselines.resolve().is_relative_to(top.resolve()):
        return CodeOf(None, "")
    name = baselines.resolve().relative_to(top.resolve()).as_posix()
    dated = f'"recorded": "{recorded}"'
    if commit_named(top, "HEAD") is None:
        return CodeOf(None, f"its {what} is not committed")  # the repository has no commit, and so no log to search
    brought = ask_git(top, "log", "--format=%H", f"-S{dated}", "--", f":(top,literal){name}")
    if not brought:
        return CodeOf(None, _NO_ANSWER if brought is None else f"its {what} is not committed")
    first = brought.splitlines()[-1]
    is_shallow = ask_git(top, "rev-parse", "--is-shallow-repository")
    if is_shallow != "false" and commit_named(top, f"{first}^") is None:
        # The oldest commit of a shallow clone seems to add every file.
        deepen = "this clone is too shallow: git fetch --unshallow, in GitHub Actions fetch-depth: 0"
        return CodeOf(None, _NO_ANSWER if is_shallow is None else deepen)
    parent = commit_named(top, commit.removesuffix(_DIRTY)) if commit is not None else None
    changed = differs(top, parent, first, *_all_but(baselines, top)) if parent is not None else True
    if not changed:
        early = f"its {what} was committed before the code that it was saved from"
        return CodeOf(None, _NO_ANSWER if changed is None else early)
    return CodeOf(first, f"which added its {what}")


def differs_from(commit: str, root: Path, baselines: Path) -> bool:
    """Whether any file except baselines differs from the commit; files that git does not track are ignored."""
    top = top_of(root)
    return top is None or differs(top, commit, *_all_but(baselines, top)) is not False


def _without(file: Path | None, top: Path) -> list[str]:
    if file is None or not file.resolve().is_relative_to(top.resolve()):
        return []
    return [f":(top,exclude,literal){file.resolve().relative_to(top.resolve()).as_posix()}"]


def _all_but(baselines: Path, top: Path) -> list[str]:
    """Return the git path arguments for the whole tree except baseline files; other files among them are included."""
    if not baselines.resolve().is_relative_to(top.resolve()):
        return ["--", "."]
    place = baselines.resolve().relative_to(top.resolve()) / "*" / "*.json"
    escaped = [re.sub(r"([*?\[\\])", r"\\\1", part) for part in place.parts[:-2]]
    return ["--", ".", f":(exclude,glob){'/'.join([*escaped, *place.parts[-2:]])}"]
