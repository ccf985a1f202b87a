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

from perflab.child import variables_of_a_child, workplace
from perflab.compared.sides.ancestor import Start
from perflab.compared.sides.checkout import Tree, head_label, other_side
from perflab.compared.sides.imports import import_path
from perflab.data import to_json
from perflab.measure.evidence import Witness
from perflab.measure.records import Evidence
from perflab.plugin.case.fresh_process import Job, Serve, repeated_arguments
from perflab.plugin.config.command_line import without_positionals
from perflab.plugin.config.settings import Settings
from perflab.plugin.options import REPLICATE_OPTION

TURNS_SHARE = 0.12
"""Of a case's budget: what its turns take in one round. A case that is let go at once has two rounds."""


@dataclass(frozen=True)
class Starts:
    """Makes the start of a side's process."""

    config: pytest.Config
    head: Tree
    base: Tree
    device: str
    folder: Path
    """Holds the job files."""
    cases: Sequence[str] = ()
    """Those that are compared."""

    def start(self, side: str, cases: Sequence[str] | None) -> Start | None:
        """A process of ``head`` or ``base`` for these cases.

        If ``cases`` is None, for all that are compared, and whatever else the command selects there: where a plugin
        splits tests, that may be others. None if the command names files alone that the side does not have.
        """
        tree = self.head if side == "head" else self.base
        files = self._files(tree, self.config.option.file_or_dir)
        if not files and cases is not None:  # of tests that were moved, the command may name the new files alone
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
            label=tree.label,
            command=[tree.python, "-m", "pytest", *words],
            environment={**variables_of_a_child(), "PYTHONPATH": os.pathsep.join(self._path(tree))},
            directory=self._directory(tree),
        )

    @property
    def only_here(self) -> list[str]:
        """What the command names that the base does not have."""
        named = dict.fromkeys(name.split("::")[0] for name in self.config.option.file_or_dir)
        return [name for name in named if not self._has(self._in(name, self.base), self.base)]

    def _files(self, tree: Tree, names: Sequence[str]) -> list[str]:
        """What of these names this side's tree has; whole files, since cases are chosen by the job."""
        named = dict.fromkeys(self._in(name.split("::")[0], tree) for name in names)
        return [name for name in named if tree is self.head or self._has(name, tree)]

    def _has(self, name: str, tree: Tree) -> bool:
        return (self._directory(tree) / name).exists() or _package(self.config, name) is not None

    def _in(self, name: str, tree: Tree) -> str:
        """A file, folder or (for ``--pyargs``) package of the session's tree, as this tree has it."""
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
        """Where the command is given: the same place within each tree."""
        here = self.config.invocation_params.dir
        if tree.mirrors is None:
            return here
        mirrored, mirror = tree.mirrors
        place = mirror / os.path.relpath(here.resolve(), mirrored)
        return place if here.resolve().is_relative_to(mirrored) and place.is_dir() else tree.root

    def _option(self, word: str, tree: Tree) -> str:
        """An option that names places in the session's tree, naming the same places in this one."""
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
    """This tree and the one that ``against`` names, for the length of the block: starts of both, and the other one.

    Args:
        config: the running session's configuration.
        against: a commit, branch, tag or directory.
        cases: those that are compared.
        device: where both sides measure, exactly.
        waiting: told if another session uses the same worktree.

    Raises:
        RivalError: the other side cannot be had.
    """
    root = config.rootpath.resolve()
    label, commit = head_label(root)
    files = sorted({case.split("::")[0] for case in cases})
    with (
        workplace() as folder,
        other_side(against, root, files, waiting) as base,
    ):
        mirrors = (base.mirrors[0], base.mirrors[0]) if base.mirrors is not None else None
        yield Starts(config, Tree(label, root, mirrors, commit=commit), base, device, folder, cases), base


@contextlib.contextmanager
def this_side(config: pytest.Config, device: str) -> Iterator[Starts]:
    """This tree alone, for the length of the block: starts of processes that hold its cases against each other."""
    with workplace() as folder:
        here = Tree("a fresh process", config.rootpath.resolve(), None)
        yield Starts(config, here, here, device, folder)


def _package(config: pytest.Config, name: str) -> Path | None:
    """Where the module or package is that ``--pyargs`` names; None if it names none."""
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
    """What a case's turns may take in one round."""
    return TURNS_SHARE * settings.budget_s * 1e9


def witness_of_host() -> Callable[[], Callable[[], Evidence]]:
    """What else goes on, of the host alone: this process need not be on the GPU, and then cannot tell who is."""
    import torch

    return Witness(torch.device("cpu")).begin
