"""Runs git commands without disturbing the user's repository."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from perflab.errors import RivalError

_PATIENCE_S = 20.0
"""A question that takes longer (a network drive, a huge tree) is given up."""
_REMOTE = re.compile(
    r"(?:(?P<scheme>https?|ssh|git)://)?(?:[^@/\s]*@)?(?P<host>[\w-]+(?:\.[\w-]+)+)(?P<port>:\d+)?"
    r"(?P<divider>[:/])/*(?P<path>[\w.~+-]+(?:/[\w.~+-]+)+)/*",
    re.ASCII,
)
"""A remote on a host whose name has a dot: names without are of somebody's own network, or of their ssh alone."""
_PAGE = re.compile(r"https?://[\w-]+(?:\.[\w-]+)+(?::\d+)?(?:/[\w.~+-]+)+", re.ASCII)
_COMMIT = re.compile(r"([0-9a-f]{7,64})(?:\+dirty)?")


def run_git(folder: Path, *arguments: str, patience_s: float | None = None, only_here: bool = False) -> str:
    """What ``git arguments`` prints, as seen from ``folder``.

    With ``only_here`` a repository that ``folder`` lies in is none: the folder has one of its own, or git fails.

    Raises:
        RivalError: there is no git, it failed, or it took longer than ``patience_s``.
    """
    done = _ended(folder, arguments, patience_s, {"GIT_CEILING_DIRECTORIES": str(folder.parent)} if only_here else {})
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise RivalError(f"git {arguments[0]} failed: {said}", "repair the repository, or name a directory instead")
    return done.stdout


def _ended(
    folder: Path, arguments: Sequence[str], patience_s: float | None, own: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    # A hook's environment names the repository that it runs in, which need not be the one that is asked about.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            # A look must not keep others from working; and nobody is there to answer a question.
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
    """The same without the space around it; None where git has no answer, or is not there."""
    try:
        return run_git(folder, *arguments, patience_s=_PATIENCE_S).strip()
    except RivalError:
        return None


def differs(folder: Path, *arguments: str) -> bool | None:
    """Whether ``git diff`` of these finds anything; None where git has no answer, or is not there."""
    try:
        status = _ended(folder, ("diff", "--quiet", *arguments), _PATIENCE_S, {}).returncode
    except RivalError:
        return None
    return {0: False, 1: True}.get(status)


def top_of(folder: Path) -> Path | None:
    """The working tree that the folder lies in; None outside of a repository."""
    top = ask_git(folder, "rev-parse", "--show-toplevel")
    return Path(top) if top else None


def commit_named(folder: Path, name: str) -> str | None:
    """The full name of a commit, branch or tag; None if the repository does not have it."""
    return ask_git(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or None


def repository_page(folder: Path) -> str | None:
    """The address of the page that shows the repository, by the remote that ``git fetch`` asks; None: there is none."""
    remote = ask_git(folder, "ls-remote", "--get-url")
    return page_of_remote(remote) if remote else None


def page_of_remote(remote: str) -> str | None:
    """``git@github.com:owner/name.git`` -> ``https://github.com/owner/name``; None of a path.

    Whoever may be named in the address, and with whatever password, is left out.
    """
    found = _REMOTE.fullmatch(remote)
    if found is None:
        return None
    scheme, host, path = found["scheme"], found["host"], found["path"].removesuffix(".git")
    if (found["divider"] == ":") != (scheme is None):  # without a scheme a path stands behind a colon, as for scp
        return None
    if scheme in ("http", "https"):
        return f"{scheme}://{host}{found['port'] or ''}/{path}"
    return f"https://{host}/{path}"


def commit_page(repository: str | None, commit: str | None) -> str | None:
    """The address of a commit's page; None unless both are what they should be, since files may say anything."""
    found = _COMMIT.fullmatch(commit or "")
    if found is None or repository is None or _PAGE.fullmatch(repository) is None:
        return None
    host = repository.split("/")[2]
    place = "-/commit" if "gitlab" in host else "commits" if "bitbucket" in host else "commit"
    return f"{repository}/{place}/{found[1]}"
