"""``.perflab/``: the folder for what a run leaves behind. It explains itself, and git ignores it by itself."""

from __future__ import annotations

import re
from pathlib import Path

_README = """\
Made by perflab. `runs/` holds a journal of each measuring session, one finished case a line, kept so that an
interrupted run loses nothing; `snapshots/` holds memory snapshots. All of it may be deleted.
Baselines are not here: they live in the directory named by --perf-baselines, and belong into version control.
"""


def own_folder(root: Path) -> Path:
    """The folder below ``root``, made if needed.

    Raises:
        OSError: it cannot be made.
    """
    folder = root / ".perflab"
    if not folder.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "README.md").write_text(_README, encoding="utf-8")
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    return folder


def file_name_for(text: str) -> str:
    """A file name made from any text, a node id for instance."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.") or "_"
