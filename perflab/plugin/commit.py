"""Which commit the project is at, and which one holds the code that a baseline was saved from, as git says."""

from __future__ import annotations

from pathlib import Path

from perflab.rival.git import ask_git, commit_named, top_of

_DIRTY = "+dirty"


def current_commit(root: Path, baselines: Path) -> str | None:
    """The commit, with ``+dirty`` behind it if files differ from it; None without git, or outside of a repository.

    Baselines do not count: saving the first one would make the tree dirty for the second.
    """
    commit, top = commit_named(root, "HEAD"), top_of(root)
    if commit is None or top is None:
        return None
    return f"{commit}{_DIRTY}" if ask_git(top, "status", "--porcelain", *_all_but(baselines, top)) else commit


def commit_of_baseline(root: Path, file: Path, recorded: str, commit: str | None) -> str | None:
    """A commit that holds the code which a baseline was saved from; None if this repository has none.

    Args:
        root: a folder of the project.
        file: the baseline file.
        recorded: the date that the entry, or anchor, has there.
        commit: what it says of its commit.

    Baselines are mostly saved before what they were measured on is committed. Then it is the commit with which the
    entry's date first came into the file.
    """
    if commit is not None and not commit.endswith(_DIRTY):
        known = commit_named(root, commit)
        if known is not None:
            return known  # else it was rebased or squashed away
    top = top_of(root)
    if top is None or not file.resolve().is_relative_to(top.resolve()):
        return None
    name = file.resolve().relative_to(top.resolve()).as_posix()
    brought = ask_git(top, "log", "--format=%H", f"-S{recorded}", "--", f":(top,literal){name}")
    first = brought.splitlines()[-1] if brought else None
    if first is not None and is_shallow(top) and commit_named(top, f"{first}^") is None:
        return None  # where a shallow clone ends, everything looks as if it had come then
    return first


def is_shallow(root: Path) -> bool:
    """Whether older commits were left out when the repository was cloned."""
    return ask_git(root, "rev-parse", "--is-shallow-repository") == "true"


def differs_from(commit: str, root: Path, baselines: Path) -> bool:
    """Whether any file but baselines is another one than in the commit; new files that git does not know are none."""
    top = top_of(root)
    return top is None or ask_git(top, "diff", "--quiet", commit, *_all_but(baselines, top)) is None


def _all_but(baselines: Path, top: Path) -> list[str]:
    paths = ["--", "."]
    if baselines.resolve().is_relative_to(top.resolve()) and baselines.resolve() != top.resolve():
        paths.append(f":(exclude,literal){baselines.resolve().relative_to(top.resolve()).as_posix()}")
    return paths
