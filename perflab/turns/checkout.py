"""Finds the other version: checks a commit out into a worktree, its submodules too, or uses a directory.

Worktrees are kept in the user's cache, a few for each repository, so that comparing again with the same commit needs no
checkout. An interrupted session removes its worktree.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from perflab.base.errors import RivalError
from perflab.base.git import commit_named, run_git, top_of
from perflab.running.case.locks import held
from perflab.turns.submodules import recorded, submodules

_MARK = "CACHEDIR.TAG"
_MARKED = "Signature: 8a477f597d28d172789f06886806bc55\n# perflab's worktrees, which it resets and removes\n"
_KEPT = 3
"""The number of worktrees of a repository that stay in the cache."""


@dataclass(frozen=True)
class Tree:
    """The location of a side's code."""

    label: str
    """The name of the side in messages: ``main (8009b65)``."""
    root: Path
    """The project's folder in this tree: the one that holds the pytest configuration."""
    mirrors: tuple[Path, Path] | None = None
    """A folder of the session's side, and the folder that replaces it on this side; None if the tests are shared."""
    first: tuple[Path, ...] = ()
    """The folders of an installed version, whose modules are found before all others; empty for a checkout. With an
    installed version, the tests are the session's own."""
    python: str = sys.executable
    commit: str | None = None


@contextlib.contextmanager
def other_side(against: str, root: Path, files: Sequence[str], waiting: Callable[[str], None]) -> Iterator[Tree]:
    """Provide the tree that ``against`` names, for the length of the block.

    Args:
        against: a commit, branch or tag of the project's repository, or a directory: another checkout, a folder
            of installed packages, or a virtual environment.
        root: the project's own root folder.
        files: test files of the session, relative to ``root``; a checkout has them, installed packages do not.
        waiting: called if another session uses the same worktree.

    Raises:
        RivalError: there is no such commit or directory, or the commit cannot be checked out.
    """
    root = root.resolve()
    top = top_of(root)
    commit = commit_named(top, against) if top is not None else None
    if top is not None and commit is not None:
        with _worktree(top, commit, waiting) as worktree:
            name = commit[:7] if commit.startswith(against) else f"{against} ({commit[:7]})"
            yield Tree(name, worktree / root.relative_to(top), mirrors=(top, worktree), commit=commit)
        return
    folder = Path(os.path.expanduser(against))
    if not folder.is_dir():
        raise _unknown(against, root)
    yield _directory(folder.resolve(), against, root, top, files)


def head_label(root: Path) -> tuple[str, str | None]:
    """Return the label of the session's own side, and its commit; outside a git repository the commit is None."""
    top = top_of(root)
    commit = commit_named(top, "HEAD") if top is not None else None
    if top is None or commit is None:
        return "this tree", None
    changed = [line for line in run_git(top, "status", "--porcelain").splitlines() if line]
    said = f" with {len(changed)} uncommitted change{'s' * (len(changed) != 1)}" if changed else ""
    return f"{commit[:7]}{said}", commit


def _directory(folder: Path, against: str, root: Path, top: Path | None, files: Sequence[str]) -> Tree:
    pairs = [(root, folder, folder)]  # the mirrored folder, the folder that mirrors it, and the project in the latter
    if top is not None and top != root:
        pairs.insert(0, (top, folder, folder / root.relative_to(top)))
    for mirrored, mirror, candidate in pairs:
        if any((candidate / file).is_file() for file in files):
            if candidate == root:
                raise RivalError(
                    f"--perf-against={against} is the working tree itself",
                    "name a commit, or another checkout of the project",
                )
            commit = commit_named(candidate, "HEAD")
            label = against + (f" ({commit[:7]})" if commit else "")
            return Tree(label, candidate, mirrors=(mirrored, mirror), commit=commit)
    for python in (folder / "bin" / "python", folder / "Scripts" / "python.exe"):
        if python.exists():
            places = tuple(sorted(folder.glob("lib/python*/site-packages")) or [folder / "Lib" / "site-packages"])
            return Tree(against, root, first=places, python=str(python))
    if not any((folder / name).exists() for name in ("pyproject.toml", "setup.py", "setup.cfg")) and (
        any(folder.glob("*/__init__.py")) or any(folder.glob("*.py"))
    ):
        return Tree(against, root, first=(folder,))
    raise RivalError(
        f"--perf-against={against}: the directory contains neither these tests nor importable packages",
        "name another checkout of this project, a folder of installed packages (pip install --target=DIR), "
        "or a virtual environment",
    )


def _unknown(against: str, root: Path) -> RivalError:
    try:  # it may be no repository, or be refused as another user's, or git is not installed: in git's words
        shallow = run_git(root, "rev-parse", "--is-shallow-repository").strip() == "true"
    except RivalError as error:
        return RivalError(
            f"--perf-against={against}: there is no such directory, and no commit: {error.problem}",
            "name a directory: another checkout, or a folder of installed packages",
        )
    branches = run_git(
        root, "for-each-ref", "--format=%(refname:short)", "refs/heads", "refs/remotes", "refs/tags"
    ).split()
    close = [name for name in branches if name.endswith("/" + against.rpartition("/")[2])][:3]
    remedy = "fetch it: git fetch --unshallow (in GitHub Actions: fetch-depth: 0)" if shallow else "see `git log --all`"
    if close:
        remedy = f"did you mean {' or '.join(close)}?"
    return RivalError(f"--perf-against={against} is neither a commit of this repository nor a directory", remedy)


# --- worktrees ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _worktree(top: Path, commit: str, waiting: Callable[[str], None]) -> Iterator[Path]:
    common = run_git(top, "rev-parse", "--path-format=absolute", "--git-common-dir").strip()
    shelf = _shelf(hashlib.sha256(common.encode()).hexdigest()[:16])
    place = shelf / commit[:12]
    with held(shelf / f"{commit[:12]}.lock", "another session that uses the same worktree", waiting):
        try:
            _check_out(top, place, commit)
            # The least recently used worktrees make room, but none that is in use.
            others = [other for other in shelf.iterdir() if other.is_dir() and other != place]
            for other in sorted(others, key=lambda other: -other.stat().st_mtime)[_KEPT - 1 :]:
                with contextlib.suppress(Timeout), FileLock(other.with_suffix(".lock"), timeout=0):
                    _remove(top, other)
            yield place
        except (KeyboardInterrupt, SystemExit):
            _remove(top, place)
            raise


def _shelf(name: str) -> Path:
    """Return a repository's folder in the cache, with symbolic links resolved.

    A missing folder is created, and marked as a cache that may be cleared.

    Raises:
        RivalError: the folder cannot be created, or it exists without perflab's mark.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    shelf = Path(base) / "perflab" / "trees" / name  # "worktrees" holds trees of older versions, without a mark
    try:
        shelf.mkdir(parents=True, exist_ok=True)
        if not any(shelf.iterdir()):
            (shelf / _MARK).write_text(_MARKED)
    except OSError as error:
        raise RivalError(
            f"cannot create {shelf}: {error.strerror}", "set XDG_CACHE_HOME to a writable directory"
        ) from None
    if not (shelf / _MARK).is_file():
        raise RivalError(
            f"{shelf} was not made by perflab: it holds no {_MARK}, so nothing in it is changed",
            "move it away, or set XDG_CACHE_HOME to another directory",
        )
    return shelf.resolve()


def _check_out(repository: Path, place: Path, commit: str) -> None:
    """Check the commit out at ``place``, with its submodules, and replace whatever is there already."""
    if not (_is_worktree(place) and _is_reset(place, commit)):
        shutil.rmtree(place, ignore_errors=True)
        # Forced twice: the worktree may be registered already, and locked by a killed checkout.
        forced = ("--detach", "--force", "--force", str(place), commit)
        run_git(repository, "worktree", "add", "--quiet", *forced, is_top=True)
    for path, own, holder in submodules(repository, commit):
        if holder is not None:
            _check_out(holder, place / path, own)
        elif _is_worktree(place / path):  # an earlier session had it checked out
            _remove(holder, place / path)
            (place / path).mkdir()


def _is_reset(place: Path, commit: str) -> bool:
    """Reset a worktree, whose files may have been changed; return whether that succeeded."""
    try:
        run_git(place, "reset", "--quiet", "--hard", "--no-recurse-submodules", commit, only_here=True)
    except RivalError:  # a killed checkout may have left a lock
        return False
    os.utime(place)
    return True


def _is_worktree(place: Path) -> bool:
    """Whether a folder of the cache is the top of a linked worktree.

    Git would act on a folder without its own ``.git`` as a part of whatever repository contains the cache.
    """
    asked = ("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir")
    try:
        top, own, common = run_git(place, *asked, only_here=True).splitlines()
    except (RivalError, ValueError):  # the folder is missing or damaged, or its repository is gone
        return False
    return Path(top) == place and Path(own) != Path(common)


def _remove(repository: Path | None, place: Path) -> None:
    """Remove a worktree with those of its submodules, and git's records of them, whatever repositories have them.

    The empty lock file stays, since another session may hold the lock.
    """
    if _is_worktree(place):
        asked = ("rev-parse", "--path-format=absolute", "--git-common-dir")
        with contextlib.suppress(RivalError):
            repository = Path(run_git(place, *asked, only_here=True).strip())
            for path, _ in recorded(place, "HEAD"):
                _remove(None, place / path)
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(RivalError):
        if repository is not None:
            run_git(repository, "worktree", "remove", "--force", "--force", str(place), is_top=True)
