"""The journal of a measuring session: ``.perflab/runs/<time>.jsonl``, a case a line, written once it has finished.

A session locks its journal for as long as it lives, so that others that make room for theirs leave it alone.
"""

from __future__ import annotations

import contextlib
import os
from datetime import UTC, datetime
from pathlib import Path

from perflab.data import changed, to_json
from perflab.files import abandoned, sweep, try_lock
from perflab.plugin.session.commit import current_commit
from perflab.plugin.session.folder import OWN_TIMES, own_folder
from perflab.results import Result
from perflab.store.write_lock import forget_dead_lock

_KEPT = 20
"""Journals in the folder, those of running sessions not counted."""


class Journal:
    """One session's. It is begun with the first case; from then on ``path`` is where it stands.

    Args:
        root: pytest's root directory.
        baselines: where a run that was killed while it saved may have left something behind.
        results: the results file that the session will write, if any.
    """

    def __init__(self, root: Path, baselines: Path, results: Path | None = None) -> None:
        self._root = root
        self._baselines = baselines
        self._results = results
        self._commit: str | None = None
        self._handle: int | None = None
        self.path: Path | None = None
        self.problem: str | None = None
        """Why a case is missing in it."""

    def write(self, result: Result) -> None:
        """Add a case; what keeps it from being written is noted, and loses nothing else."""
        try:
            self.begin()
            assert self._handle is not None
            line = to_json(changed(result, commit=self._commit)) + b"\n"
            if os.write(self._handle, line) != len(line):
                raise OSError(None, "the disk is full")
        except OSError as error:
            self.problem = self.problem or f"no journal of this run could be kept in .perflab/: {error.strerror}"

    @property
    def place(self) -> str | None:
        """Where the results stand, to be told; None where they do not, or not all."""
        if self.path is None or self.problem is not None:
            return None
        return self.path.relative_to(self._root).as_posix()

    def close(self) -> None:
        """Let others take it away, once there are newer ones."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def begin(self) -> None:
        """Begin it, unless that has been done.

        Raises:
            OSError: it cannot be kept.
        """
        if self._handle is not None:
            return
        runs = own_folder(self._root) / "runs"
        runs.mkdir(exist_ok=True)
        with contextlib.ExitStack() as held:
            ended = [old for old in sorted(runs.glob("*.jsonl")) if held.enter_context(abandoned(old, young_s=0.0))]
            for old in ended[: max(0, len(ended) - _KEPT + 1)]:
                with contextlib.suppress(OSError):
                    old.unlink()
        for directory in (self._baselines, self._root / OWN_TIMES):
            sweep(directory)
            forget_dead_lock(directory)
        sweep(runs.parent)  # profiles and snapshots
        if any((folder / ".git").exists() for folder in (self._root, *self._root.parents)):  # or git starts in vain
            self._commit = current_commit(self._root, self._baselines, self._results)
        path = runs / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S-%f}-{os.getpid()}.jsonl"
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        try_lock(self._handle)
        self.path = path
