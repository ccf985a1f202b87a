"""``.perflab/``: the folder for files that a run leaves behind. It has a README, and git ignores it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from perflab.base.data import speakable
from perflab.base.errors import UsageError
from perflab.base.files import write_whole

_LONGEST_NAME = 120
"""The largest number of characters of a name before its hash and ending: file systems allow 255 bytes in all."""
OWN_TIMES = ".perflab/times"
"""The folder, relative to the root directory, for times of this machine that are not committed."""
_README = """\
Made by perflab. `runs/` holds a journal of each measuring session, one finished case a line, kept so that an
interrupted run loses nothing; `times/` holds the times of this machine's last runs, which the next run is compared
with where none are committed; `snapshots/` holds memory snapshots; `profiles/`
holds one profiled call of each case, for Perfetto and for flame graphs; `bisect.json` is what the last
`perflab history --bisect` has found so far. All of it may be deleted.
Baselines live in the directory named by --perf-baselines, and belong into version control.
"""


_EXPLAINS = {"README.md": _README, ".gitignore": "*\n"}


def own_folder(root: Path) -> Path:
    """Return the folder ``.perflab`` in ``root``; create it if needed, with its README and ``.gitignore``.

    Raises:
        OSError: the folder cannot be created.
    """
    folder = root / ".perflab"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _EXPLAINS.items():
        path = folder / name
        if not path.is_file() or path.stat().st_size == 0:  # empty if an earlier writer was killed, or the disk full
            write_whole(path, text.encode("utf-8"))
    return folder


def own_place(root: Path, *names: str) -> Path:
    """Return a folder within ``.perflab``, created if needed, for a run that was asked for the files in it.

    Raises:
        UsageError: the folder cannot be created.
    """
    place = root.joinpath(".perflab", *names)
    try:
        own_folder(root)
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {place}: {error.strerror}", "make .perflab writable") from None
    return place


def file_name_for(text: str) -> str:
    """Return a file name for any text, such as a node id; different texts give different names.

    ``test_x.py::test_y`` becomes ``test_x.py_test_y``. The name of a long text, or of one with other characters, ends
    in a hash.
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_.") or "_"
    if len(name) <= _LONGEST_NAME and re.fullmatch(r"(?!_)(\w+\.py::)?[\w-]*[^\W_]", text, re.ASCII):
        return name
    return f"{name[:_LONGEST_NAME]}-{hashlib.sha256(speakable(text).encode()).hexdigest()[:12]}"
