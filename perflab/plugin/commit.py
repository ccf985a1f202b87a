"""Which commit the project is at, as git says. Asked only when a baseline is saved."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_PATIENCE_S = 20.0


def current_commit(root: Path, baselines: Path) -> str | None:
    """The commit, with ``+dirty`` behind it if files differ from it; None without git, or outside of a repository.

    Baselines do not count: saving the first one would make the tree dirty for the second.
    """
    commit = _git(root, "rev-parse", "HEAD")
    top = _git(root, "rev-parse", "--show-toplevel")
    if commit is None or top is None:
        return None
    paths = ["--", "."]
    if baselines.resolve().is_relative_to(Path(top).resolve()) and baselines.resolve() != Path(top).resolve():
        paths.append(f":(exclude,literal){baselines.resolve().relative_to(Path(top).resolve()).as_posix()}")
    changed = _git(Path(top), "status", "--porcelain", *paths)
    return f"{commit}+dirty" if changed else commit


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},  # a look must not keep others from working
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
