"""Keeps each result as it comes: in the session's journal, and in pytest-benchmark's session, if there is one.

The journal is ``.perflab/runs/<time>.jsonl``, one line for each case, written when it finishes. A session locks its
journal while it runs, so that other sessions that remove old journals do not touch this one. pytest-benchmark's JSON,
storage and compare then contain the results too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perflab.base.data import changed, to_json
from perflab.base.files import abandoned, sweep, try_lock
from perflab.base.git import current_commit
from perflab.base.identity import leaf_of, parameters_of
from perflab.results.measurement import per_call_ns
from perflab.results.result import Result
from perflab.running.config.folder import OWN_TIMES, own_folder
from perflab.store.json_files import forget_dead_lock

_KEPT = 20
"""The number of journals that are kept, not counting the journals of running sessions."""


class Journal:
    """The journal of one session. It is created with the first case; from then on, ``path`` is its file.

    Args:
        root: pytest's root directory.
        baselines: the directory of baselines, in which a run that was killed while saving may have left files.
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
        """Why a case is missing in the journal; None if none is."""

    def write(self, result: Result) -> None:
        """Append a case to the journal; an error in writing is noted in ``problem``, and not raised."""
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
        """The path of the journal relative to the root, for messages; None if it lacks a case or does not exist."""
        if self.path is None or self.problem is not None:
            return None
        return self.path.relative_to(self._root).as_posix()

    def close(self) -> None:
        """Unlock the journal, so that later sessions may remove it once there are enough newer ones."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def begin(self) -> None:
        """Create the journal, unless it exists already, and remove old journals and leftover files.

        Raises:
            OSError: the journal cannot be created.
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
        if any((folder / ".git").exists() for folder in (self._root, *self._root.parents)):  # saves a call of git
            self._commit = current_commit(self._root, self._baselines, self._results)
        path = runs / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S-%f}-{os.getpid()}.jsonl"
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        try_lock(self._handle)
        self.path = path


def add_to_benchmark_session(config: pytest.Config, result: Result) -> None:
    """Add a measured case to pytest-benchmark's session; do nothing without pytest-benchmark."""
    session = getattr(config, "_benchmarksession", None)
    record = result.record
    if session is None or record is None or record.measurement is None:
        return
    from pytest_benchmark.stats import Metadata

    measurement = record.measurement
    name = leaf_of(result.identity)
    memory = measurement.memory
    info: dict[str, Any] = {"perflab_verdict": str(result.judgement.verdict), "device": record.environment.device}
    if memory is not None and memory.exact_bytes is not None:
        info["peak_bytes"] = memory.exact_bytes
    more: dict[str, Mapping[str, Any]] = {"counts": measurement.counts, "work": record.work, "facts": record.facts}
    source = SimpleNamespace(
        name=name,
        fullname=result.identity,
        group="perflab",
        param=parameters_of(result.identity) or None,
        params=dict(record.parameters) or None,
        extra_info=info | {name: dict(known) for name, known in more.items() if known},
        cprofile_stats=None,
        has_error=False,
    )
    options = {"timer": measurement.clock, "warmup": measurement.warmup_calls, "disable_gc": False}
    # The statistics are of seconds per call, as pytest-benchmark's own are.
    entry: Any = Metadata(source, iterations=1, options=options)  # type: ignore[no-untyped-call]
    for call_ns in per_call_ns(measurement.samples_ns, measurement.repetitions):
        entry.update(call_ns / 1e9)
    entry.iterations = measurement.repetitions
    earlier = [b for b in session.benchmarks if not (b.fullname == result.identity and b.group == "perflab")]
    session.benchmarks[:] = [*earlier, entry]  # a test that was run again appears once


def spare_second_table(config: pytest.Config) -> None:
    """Remove perflab's results from pytest-benchmark's table, since perflab's own table shows them.

    They stay if one of pytest-benchmark's options was given.
    """
    session = getattr(config, "_benchmarksession", None)
    if session is None or not session.groups:
        return
    if any(str(argument).startswith("--benchmark") for argument in config.invocation_params.args):
        return
    kept = [(name, [b for b in group if b["group"] != "perflab"]) for name, group in session.groups]
    session.groups = [(name, group) for name, group in kept if group]
