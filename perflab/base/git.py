"""Runs git commands without disturbing the user's repository; finds the project's commit, and that of a baseline."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


def run_git(
    folder: Path, *arguments: str, patience_s: float | None = None, only_here: bool = False, is_top: bool = False
) -> str:
    """Run ``git arguments`` in ``folder``, and return its output.

    With ``only_here``, repositories of parent folders are ignored: ``folder`` is a repository itself, or git fails.
    With ``is_top``, ``folder`` is the top of the working tree, whatever the repository's configuration says: that of a
    submodule names a folder in which it may no longer be checked out.

    Raises:
        RivalError: git is not installed, failed, or took longer than ``patience_s`` seconds.
    """
    own = {"GIT_CEILING_DIRECTORIES": str(folder.parent)} if only_here else {}
    own |= {"GIT_WORK_TREE": str(folder)} if is_top else {}
    done = _ended(folder, arguments, patience_s, own)
    if done.returncode:
        said = done.stderr.strip() or f"exit status {done.returncode}"
        raise RivalError(f"git {arguments[0]} failed: {said}", "repair the repository, or name a directory instead")
    return done.stdout


def _ended(
    folder: Path, arguments: Sequence[str], patience_s: float | None, own: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    # The environment of a git hook names the hook's repository, which may be another one than ``folder``. Settings in
    # the environment stay: in a container they may be what lets git read another user's checkout (safe.directory).
    environment = {name: value for name, value in os.environ.items() if not re.match("GIT_(?!CONFIG_)", name)}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), "-c", "core.hooksPath=/dev/null", *arguments],
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
    """Return the working tree that contains the folder; None where git has none, for whatever reason."""
    try:
        return working_tree(folder)
    except RivalError:
        return None


def working_tree(folder: Path) -> Path:
    """Return the working tree that contains the folder.

    Raises:
        RivalError: there is no repository, git refuses it as another user's, or git is not installed; in git's words.
    """
    return Path(run_git(folder, "rev-parse", "--show-toplevel", patience_s=_PATIENCE_S).strip())


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
    told = ask_git(root, "rev-parse", "--show-toplevel", "HEAD^{commit}")
    if told is None:
        return None
    folder, _, commit = told.rpartition("\n")
    top = Path(folder)
    others = _all_but(baselines, top)
    if results is not None and results.resolve().is_relative_to(top.resolve()):
        others.append(f":(top,exclude,literal){results.resolve().relative_to(top.resolve()).as_posix()}")
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


def _all_but(baselines: Path, top: Path) -> list[str]:
    """Return the git path arguments for the whole tree except baseline files; other files among them are included."""
    if not baselines.resolve().is_relative_to(top.resolve()):
        return ["--", "."]
    place = baselines.resolve().relative_to(top.resolve()) / "*" / "*.json"
    escaped = [re.sub(r"([*?\[\\])", r"\\\1", part) for part in place.parts[:-2]]
    return ["--", ".", f":(exclude,glob){'/'.join([*escaped, *place.parts[-2:]])}"]
