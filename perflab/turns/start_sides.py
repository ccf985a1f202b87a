"""Starts the processes of an A/B comparison: the session's own pytest command, over each side's code."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from perflab.base.data import to_json
from perflab.base.identity import file_of
from perflab.measure.machine.evidence import Witness
from perflab.options import REPLICATE_OPTION
from perflab.processes.child import Start, variables_of_a_child, workplace
from perflab.results.measurement import Evidence
from perflab.running.case.fresh_process import repeated_arguments
from perflab.running.config.command_line import without_positionals
from perflab.settings.settings import Settings
from perflab.tiers.job import Job, Serve
from perflab.turns.checkout import Tree, head_label, other_side
from perflab.turns.imports import import_path

TURNS_SHARE = 0.12
"""The fraction of a case's budget that its turns take in one round. A case that is cleared at once has two rounds."""


@dataclass(frozen=True)
class Starts:
    """The configuration of both sides, and the factory of the ``Start`` of their processes."""

    config: pytest.Config
    head: Tree
    base: Tree
    device: str
    folder: Path
    """The folder that holds the job files."""
    cases: Sequence[str] = ()
    """The cases that are compared."""

    def start(self, side: str, cases: Sequence[str] | None) -> Start | None:
        """Return the start of a process of ``head`` or ``base`` for these cases.

        If ``cases`` is None, the process is for all compared cases and for any others that the command selects on that
        side: where a plugin splits tests, the selections may differ. Return None if the command names only files that
        the side does not have.
        """
        tree = self.head if side == "head" else self.base
        files = self._files(tree, self.config.option.file_or_dir)
        if not files and cases is not None:  # after tests were moved, the command may name only the new files
            files = self._files(tree, [str(self.config.rootpath / case) for case in cases])
        if self.config.option.file_or_dir and not files:
            assert side != "head", "pytest has collected what the command names"
            return None
        wanted = self.cases if cases is None else cases
        job = Job(cases=list(wanted), others=cases is None, serve=self._serve(tree))
        handle, job_file = tempfile.mkstemp(suffix=".json", dir=self.folder)
        with os.fdopen(handle, "wb") as file:
            file.write(to_json(job))
        repeated = repeated_arguments(self.config, plugins_too=tree.python == sys.executable)
        words = [self._option(word, tree) for word in without_positionals(self.config, repeated)]
        words += [*files, f"--rootdir={tree.root}", f"--perf-device={self.device}", f"{REPLICATE_OPTION}={job_file}"]
        return Start(
            role=tree.label,
            command=[tree.python, "-m", "pytest", *words],
            environment={**variables_of_a_child(), "PYTHONPATH": os.pathsep.join(self._path(tree))},
            directory=self._directory(tree),
        )

    @property
    def only_here(self) -> list[str]:
        """The files and folders that the command names and the base does not have."""
        named = dict.fromkeys(file_of(name) for name in self.config.option.file_or_dir)
        return [name for name in named if not self._has(self._in(name, self.base), self.base)]

    def _files(self, tree: Tree, names: Sequence[str]) -> list[str]:
        """Return those of the names that exist in this side's tree, as whole files: the job chooses the cases."""
        named = dict.fromkeys(self._in(file_of(name), tree) for name in names)
        return [name for name in named if tree is self.head or self._has(name, tree)]

    def _has(self, name: str, tree: Tree) -> bool:
        return (self._directory(tree) / name).exists() or _package(self.config, name) is not None

    def _in(self, name: str, tree: Tree) -> str:
        """Translate a file, folder or (for ``--pyargs``) package of the session's tree to its place in this tree."""
        if tree.mirrors is None or tree is self.head:
            return name
        place = Path(os.path.abspath(_package(self.config, name) or self.config.invocation_params.dir / name))
        mirrored, mirror = tree.mirrors
        for above in (place, *place.parents):  # the tree may have been reached by a symbolic link
            if above == mirrored or above.resolve() == mirrored:
                return str(mirror / place.relative_to(above))
        return name

    def _path(self, tree: Tree) -> list[str]:
        if tree.mirrors is not None:
            return import_path(*tree.mirrors)
        if tree.python != sys.executable:
            return [str(place) for place in tree.first]
        return [*(str(place) for place in tree.first), *(path for path in sys.path if path)]

    def _serve(self, tree: Tree) -> Serve:
        first = [str(place) for place in tree.first]
        if tree.mirrors is None:
            return Serve(first=first)
        mirrored, mirror = tree.mirrors
        return Serve(foreign=str(mirrored), own=str(mirror), first=first)

    def _directory(self, tree: Tree) -> Path:
        """Return the working directory of the command: the session's own, translated to the same place in this tree."""
        here = self.config.invocation_params.dir
        if tree.mirrors is None:
            return here
        mirrored, mirror = tree.mirrors
        place = mirror / os.path.relpath(here.resolve(), mirrored)
        return place if here.resolve().is_relative_to(mirrored) and place.is_dir() else tree.root

    def _option(self, word: str, tree: Tree) -> str:
        """Translate the paths of the session's tree in a command-line option to the same paths in this tree."""
        if tree.mirrors is None:
            return word
        mirrored, mirror = (str(path) for path in tree.mirrors)
        # Whole paths: /work/lib must be found neither in /work/lib2 nor in /opt/work/lib.
        whole = rf"(?:^|(?<=[=:,\s])){re.escape(mirrored)}(?={re.escape(os.sep)}|[:,\s]|$)"
        return re.sub(whole, lambda _match: mirror, word)


@contextlib.contextmanager
def two_sides(
    config: pytest.Config, against: str, cases: Sequence[str], device: str, waiting: Callable[[str], None]
) -> Iterator[tuple[Starts, Tree]]:
    """Provide the session's tree and the tree that ``against`` names for the length of the block.

    Yields the starts of both sides, and the other tree.

    Args:
        config: the running session's configuration.
        against: a commit, branch, tag or directory.
        cases: the cases that are compared.
        device: the exact device on which both sides measure.
        waiting: called if another session uses the same worktree.

    Raises:
        RivalError: the other side cannot be found or checked out.
    """
    root = config.rootpath.resolve()
    label, commit = head_label(root)
    files = sorted({file_of(case) for case in cases})
    with (
        workplace() as folder,
        other_side(against, root, files, waiting) as base,
    ):
        mirrors = (base.mirrors[0], base.mirrors[0]) if base.mirrors is not None else None
        yield Starts(config, Tree(label, root, mirrors, commit=commit), base, device, folder, cases), base


@contextlib.contextmanager
def this_side(config: pytest.Config, device: str) -> Iterator[Starts]:
    """Provide the starts of processes that compare cases of the session's own tree, for the length of the block."""
    with workplace() as folder:
        here = Tree("a fresh process", config.rootpath.resolve(), None)
        yield Starts(config, here, here, device, folder)


def _package(config: pytest.Config, name: str) -> Path | None:
    """Return the path of the module or package that ``--pyargs`` names; None if the name is not a module's."""
    if not config.option.pyargs or (config.invocation_params.dir / name).exists():
        return None
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or ())
    place = folders[0] if folders else spec.origin
    return Path(place) if place is not None else None


def turns_ns(settings: Settings) -> float:
    """Return the time in nanoseconds that a case's turns may take in one round."""
    return TURNS_SHARE * settings.budget_s * 1e9


def witness_of_host() -> Callable[[], Callable[[], Evidence]]:
    """Return a witness that observes other work on the host alone, and not on a GPU.

    This process may not use the GPU itself, and then it cannot tell which processes do.
    """
    import torch

    return Witness(torch.device("cpu")).begin
