"""Runs git commands without disturbing the user's repository."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from perflab.base.errors import RivalError

_PATIENCE_S = 20.0
"""Seconds after which a query (on a network drive, of a huge tree) is abandoned."""
_REMOTE = re.compile(
    r"(?:(?P<scheme>https?|ssh|git)://)?(?:[^@/\s]*@)?(?P<host>[\w-]+(?:\.[\w-]+)+)(?P<port>:\d+)?"
    r"(?P<divider>[:/])/*(?P<path>[\w.~+-]+(?:/[\w.~+-]+)+)/*",
    re.ASCII,
)
"""A remote on a host whose name has a dot: a name without one is local to a network or an ssh configuration."""
_PAGE = re.compile(r"https?://[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:/[\w.~+-]+)+", re.ASCII)
_COMMIT = re.compile(r"([0-9a-f]{7,64})(?:\+dirty)?")


def run_git(folder: Path, *arguments: str, patience_s: float | None = None, only_here: bool = False) -> str:
    """Run ``git arguments`` in ``folder``, and return its output.

    With ``only_here``, repositories of parent folders are ignored: ``folder`` is a repository itself, or git fails.

    Raises:
        RivalError: git is not installed, failed, or took longer than ``patience_s`` seconds.
    """
    done = _ended(folder, arguments, patience_s, {"GIT_CEILING_DIRECTORIES": str(folder.parent)} if only_here else {})
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise RivalError(f"git {arguments[0]} failed: {said}", "repair the repository, or name a directory instead")
    return done.stdout


def _ended(
    folder: Path, arguments: Sequence[str], patience_s: float | None, own: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    # The environment of a git hook names the hook's repository, which may be another one than ``folder``.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            # A query must not lock the repository for others, and nobody can answer a prompt.
            env={**environment, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", **own},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=patience_s,
            check=False,
        )
    except FileNotFoundError:
        raise RivalError("git is not installed", "install git, or name a directory") from None
    except subprocess.TimeoutExpired:
        raise RivalError(
            f"git {arguments[0]} took more than {patience_s:.0f} s",
            f"run git {arguments[0]} in {folder} by hand to see why",
        ) from None


def ask_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of ``git arguments``, stripped; None if git fails, takes too long or is not installed."""
    try:
        return run_git(folder, *arguments, patience_s=_PATIENCE_S).strip()
    except RivalError:
        return None


def differs(folder: Path, *arguments: str) -> bool | None:
    """Whether ``git diff arguments`` finds a difference; None if git fails, takes too long or is not installed."""
    try:
        status = _ended(folder, ("diff", "--quiet", *arguments), _PATIENCE_S, {}).returncode
    except RivalError:
        return None
    return {0: False, 1: True}.get(status)


def top_of(folder: Path) -> Path | None:
    """Return the working tree that contains the folder; None outside of a repository."""
    top = ask_git(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def commit_named(folder: Path, name: str) -> str | None:
    """Return the full hash of the commit that ``name``, a commit, branch or tag, refers to; None if there is none."""
    return ask_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or None


def repository_page(folder: Path) -> str | None:
    """Return the URL of the repository's page, from the remote that ``git fetch`` uses; None if it has none."""
    remote = ask_git(folder, "ls-remote", "--get-url")
    return page_of_remote(remote) if remote else None


def page_of_remote(remote: str) -> str | None:
    """Convert a remote to a page: ``git@github.com:owner/name.git`` -> ``https://github.com/owner/name``.

    A user name and a password in the address are left out. A path has no page: None.
    """
    found = _REMOTE.fullmatch(remote)
    if found is None:
        return None
    scheme, host, path = found["scheme"], found["host"], found["path"].removesuffix(".git")
    if (found["divider"] == ":") != (scheme is None):  # without a scheme, a colon precedes the path, as for scp
        return None
    if scheme in ("http", "https"):
        return f"{scheme}://{host}{found['port'] or ''}/{path}"
    return f"https://{host}/{path}"


def commit_page(repository: str | None, commit: str | None) -> str | None:
    """Return the URL of a commit's page; None unless both arguments are well-formed: files may contain anything."""
    found = _COMMIT.fullmatch(commit or "")
    if found is None or repository is None or _PAGE.fullmatch(repository) is None:
        return None
    host = repository.split("/")[2]
    place = "-/commit" if "gitlab" in host else "commits" if "bitbucket" in host else "commit"
    return f"{repository}/{place}/{found[1]}"
