"""Runs a case at commits of a project: one commit alone for an exact quantity, two commits interleaved for a time.

Each commit is checked out into a cached worktree, where pytest runs under the Python of this process. The numbers are
read from pytest's results file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perflab.base.errors import DocumentError, RivalError
from perflab.base.git import top_of
from perflab.history.results_files import in_a_line, readings_of
from perflab.processes.child import Child, Start, interrupted_by_signals, workplace
from perflab.results.readings import DAMAGED, Reading
from perflab.results.records import Change, Judgement, Verdict
from perflab.results.result import Document
from perflab.turns.checkout import other_side
from perflab.turns.start_sides import import_path

_PATIENCE_S = 3600.0
"""Seconds after which a session of pytest, or a build, counts as hung."""


class UntestableError(Exception):
    """Raised for a commit at which the case cannot be run; the text says why."""


@dataclass(frozen=True)
class Bench:
    """The project, the case and the options of a bisection's trials."""

    root: Path
    """The project's folder, inside its git repository."""
    case: str
    """The case's node id."""
    variant: str
    """The suffix of the case's mode, or the GPU of a prediction; mostly empty."""
    options: Sequence[str]
    """Further options for pytest."""
    build: Sequence[str]
    """The command to run in each worktree before pytest; empty: none."""
    told: Callable[[str], None]
    """Called with messages about the progress, also if another session of pytest uses the same worktree."""

    def value(self, commit: str, quantity: str) -> Reading:
        """Return the reading of a quantity of the case at a commit, from one session of pytest.

        Raises:
            UntestableError: the case does not run at the commit, or has no such quantity.
        """
        with self._checked_out(commit) as tree:
            raw = self._session(tree, ["--perf-check=off"])
        try:
            found = readings_of(raw, self.case, self.variant)
        except DocumentError as error:
            raise UntestableError(error.problem) from None
        if quantity not in found:
            raise UntestableError(f"the case has no {quantity} there")
        return found[quantity]

    def compare(self, head: str, base: str, threshold: float) -> tuple[Judgement, Change]:
        """Measure two commits in turns; return the judgement on the case at ``head``, and its time against ``base``.

        Raises:
            UntestableError: the case does not run at one of the commits.
        """
        with self._checked_out(head) as tree:
            options = [
                f"--perf-against={base}",
                f"--perf-against-threshold={100 * threshold:.3g}%",
                "--perf-evidence=off",
            ]
            raw = self._session(tree, options)
        try:
            document = msgspec.json.decode(raw, type=Document)
        except DAMAGED as error:
            raise UntestableError(f"another perflab ran there: {error}") from None
        results = [one for one in document.results if (one.case, one.mode.variant) == (self.case, self.variant)]
        if not results:
            raise UntestableError("the case is not there")
        judgement = results[-1].judgement
        unusable = (Verdict.NEW, Verdict.FAILED, Verdict.SKIPPED, Verdict.INCOMPARABLE, Verdict.OOM)
        if judgement.latency is None or judgement.verdict in unusable:
            reason = next(iter(judgement.reasons), f"it was {judgement.verdict}")
            raise UntestableError(in_a_line(results[-1].failure) or reason)
        return judgement, judgement.latency

    @contextmanager
    def _checked_out(self, commit: str) -> Iterator[Path]:
        try:
            with other_side(commit, self.root, [], self.told) as tree:
                status, said = _run(self.build, tree.root, os.environ) if self.build else (0, "")
                if status is None:
                    raise UntestableError(f"building it took more than {_PATIENCE_S:g} s")
                if status:
                    *_, last = ["", *said.strip().split("\n")]
                    raise UntestableError(f"it cannot be built: {last}")
                yield tree.root
        except RivalError as error:
            raise UntestableError(error.problem) from None

    def _session(self, tree: Path, options: Sequence[str]) -> bytes:
        """Run one session of pytest in a worktree, and return the content of its results file.

        Raises:
            UntestableError: pytest hung, or wrote no results file.
        """
        with workplace() as folder:
            results = folder / "results.json"
            command = [sys.executable, "-m", "pytest", "-m", "perf", self.case, f"--perf-json={results}"]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(self._path(tree))}
            status, said = _run([*command, *options, *self.options], tree, environment)
            if status is None:
                raise UntestableError(f"pytest took more than {_PATIENCE_S:g} s")
            try:
                return results.read_bytes()
            except OSError:
                pass
        # The most telling line of the output is its first error, or else its last line.
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith(("ERROR", "E  ", "ImportError", "error:"))]
        why = (errors[:1] or lines[-1:] or [""])[0].removeprefix("E").strip()
        raise UntestableError(why or f"pytest ended with {status}")

    def _path(self, tree: Path) -> list[str]:
        """Return the import path that finds the worktree's own code, also of packages installed from the project."""
        top = top_of(self.root)
        here = top.resolve() if top is not None else self.root
        worktree = tree if here == self.root else Path(str(tree)[: -len(str(self.root.relative_to(here))) - 1])
        own = [str(path) for path in (tree / "src", worktree / "src") if path.is_dir()]
        return list(dict.fromkeys([*own, *import_path(here, worktree)]))


def _run(command: Sequence[str], tree: Path, environment: Mapping[str, str]) -> tuple[int | None, str]:
    """Run a command to its end, or end it after ``_PATIENCE_S``; return its exit status and output.

    The status is None if the command was ended. No process that it started continues beside the next trial.
    """
    with interrupted_by_signals(), Child(Start("a trial", command, environment, tree)) as child:
        status = child.wait(_PATIENCE_S)
        return status, child.output().decode("utf-8", "replace")
