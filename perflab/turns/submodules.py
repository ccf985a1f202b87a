"""Finds the repositories of a commit's submodules on this machine; nothing is fetched."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from perflab.base.errors import RivalError
from perflab.base.git import run_git


def submodules(repository: Path, commit: str) -> Iterator[tuple[Path, str, Path | None]]:
    """Yield path and commit of each submodule that ``commit`` records, and the repository that has the latter.

    A submodule that the user has not checked out, whose folder git leaves empty, is left out: the session's own side
    has nothing of it either. ``repository``, as each that is yielded, is the top of a working tree, or a folder in
    which git keeps a submodule that is no longer checked out.

    Raises:
        RivalError: the commit of a submodule is not on this machine, or git failed.
    """
    links = recorded(repository, commit)
    if not links:
        return
    # A linked worktree of the user's keeps its submodules in its own folder.
    asked = ("rev-parse", "--path-format=absolute", "--git-dir", "--git-common-dir")
    kept = [Path(one) / "modules" for one in dict.fromkeys(run_git(repository, *asked, is_top=True).splitlines())]
    names = _names(repository, commit)
    for path, own in links:
        here = repository / path
        places = [one for one in (here, *(each / names.get(path, path) for each in kept)) if _has(one, "HEAD")]
        is_empty = here.is_dir() and not any(here.iterdir())
        if is_empty or (not places and not (repository / ".git").exists()):  # of a submodule that is gone here
            yield Path(path), own, None
            continue
        holder = next((place for place in places if _has(place, own)), None)
        if holder is None:
            raise RivalError(
                f"the submodule {path} of {commit[:7]} is at {own[:12]}, and no repository here has that commit",
                f"fetch it: git -C {shlex.quote(str(places[0]))} fetch origin {own}"
                if places
                else "check the commit out with it (git clone --recurse-submodules), and use --perf-against=PATH",
            )
        yield Path(path), own, holder


def recorded(repository: Path, commit: str) -> list[tuple[str, str]]:
    """Return path and commit of each submodule that ``commit`` records."""
    listed = run_git(repository, "ls-tree", "-r", "-z", commit, is_top=True).split("\0")
    links = [line.split("\t", 1) for line in listed if line.startswith("160000 ")]
    return [(path, entry.split()[-1]) for entry, path in links]


def _names(repository: Path, commit: str) -> dict[str, str]:
    """Return the names under which git keeps submodules, by path; a name is the path in which it was first added."""
    asked = ("config", "--blob", f"{commit}:.gitmodules", "-z", "--get-regexp", r"^submodule\..*\.path$")
    try:
        pairs = [entry.split("\n", 1) for entry in run_git(repository, *asked, is_top=True).split("\0") if entry]
    except RivalError:  # a repository that was added without `git submodule`
        return {}
    return {path: key.removeprefix("submodule.").removesuffix(".path") for key, path in pairs}


def _has(repository: Path, commit: str) -> bool:
    try:
        run_git(repository, "cat-file", "-e", f"{commit}^{{commit}}", only_here=True, is_top=True)
    except RivalError:  # also where there is no repository, or no folder
        return False
    return True
