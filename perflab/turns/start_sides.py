"""Starts the processes of an A/B comparison: the session's own pytest command, over each side's code.

A side imports its own tree by an import path that mirrors the session's, and chance decides where its objects lie. A
change of code without any effect on the work still moves objects, and the new placement may make a call some percent
faster or slower (Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong!"). All processes
of one version have the same placement, so that no number of processes would show this error. If the placement is random
in every process, it becomes noise, which pairs average (Curtsinger & Berger 2013, "Stabilizer: statistically sound
performance evaluation").
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from perflab.base.identity import file_of
from perflab.measure.machine.evidence import Witness
from perflab.options import REPLICATE_OPTION
from perflab.processes.child import Start, variables_of_a_child, workplace
from perflab.results.measurement import Evidence
from perflab.running.case.fresh_process import repeated_arguments
from perflab.running.config.command_line import without_positionals
from perflab.settings.settings import Settings
from perflab.tiers.job import Job, Serve, write_job
from perflab.turns.checkout import Tree, head_label, other_side

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
        repeated = repeated_arguments(self.config, plugins_too=tree.python == sys.executable)
        words = [self._option(word, tree) for word in without_positionals(self.config, repeated)]
        words += [
            *files,
            f"--rootdir={tree.root}",
            f"--perf-device={self.device}",
            f"{REPLICATE_OPTION}={write_job(job, self.folder)}",
        ]
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
    with workplace() as folder, other_side(against, root, files, waiting) as base:
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


def import_path(head: Path, other: Path) -> list[str]:
    """Return ``sys.path`` for processes of ``other``: this process's own, with folders in ``head`` replaced.

    A folder in ``head`` is replaced by the same folder in ``other``. Folders from which modules of ``head`` were
    imported are included, whatever finder found the modules: an editable install need not be on the path.

    Args:
        head: root folder of the session's own tree.
        other: root folder of the other tree.
    """
    mirrored: list[str] = []
    kept: list[str] = []
    for entry in [*sys.path, *_roots_of(sys.modules, head)]:
        if not entry:
            continue
        inside = _within(entry, head)
        if inside is not None and (other / inside).is_dir():
            mirrored.append(str(other / inside))
        elif inside is None or _is_installed(entry):
            kept.append(entry)
    return list(dict.fromkeys([*mirrored, *kept]))


def copies(modules: Mapping[str, ModuleType], roots: Iterable[Path]) -> list[str]:
    """Return the packages that were imported from an installed copy although the project contains their source.

    Both sides of a comparison would run the one installed copy, and so the same code.

    Args:
        modules: the modules that a process has imported.
        roots: folders of the project; packages are looked for in each folder and in its ``src``.
    """
    places = [place for root in roots for place in (root, root / "src")]
    sources = {path.name.partition(".")[0] for place in places if place.is_dir() for path in place.iterdir()}
    found: dict[str, str] = {}
    for name, module in list(modules.items()):
        file, top = getattr(module, "__file__", None), name.partition(".")[0]
        if file is None or top not in sources or top in _NO_PACKAGES or top in found:
            continue
        if not _INSTALLED & {*Path(file).parts}:
            continue
        for place in places:  # submodules are looked up too: a namespace package has no file of its own
            source = place.joinpath(*name.split("."))
            if (source / "__init__.py").is_file() or source.with_suffix(".py").is_file():
                found[top] = f"{name} ({file})"
    return sorted(found.values())


_INSTALLED = {"site-packages", "dist-packages"}
_NO_PACKAGES = ("conftest", "setup", "tests", "test", "docs")


def _roots_of(modules: Mapping[str, ModuleType], head: Path) -> Iterable[str]:
    """Return the import folders below ``head`` from which modules were imported."""
    installed = tuple(prefix + os.sep for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix))
    roots: dict[str, None] = {}
    for name, module in list(modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name != "__main__" and not file.startswith(installed):
            for _ in range(1 + name.count(".") + (os.path.basename(file) == "__init__.py")):
                file = os.path.dirname(file)
            roots[file] = None
    return [root for root in roots if _within(root, head) is not None]


def _within(path: str, root: Path) -> Path | None:
    """Return the path relative to ``root``; None if the path lies elsewhere."""
    try:
        return Path(os.path.realpath(path)).relative_to(root)
    except ValueError:
        return None


def _is_installed(path: str) -> bool:
    """Whether the path is in Python's own installation or environment, which may lie within a project's tree."""
    return any(Path(path).is_relative_to(prefix) for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix))


_BLOCKS = 2000
_LEAST_BYTES, _MOST_BYTES = 1, 16384
_kept: list[object] = []
"""The objects that stay until the process ends; the gaps between them are the blocks that were freed."""


def stir() -> None:
    """Allocate blocks of all sizes on the heap, some 4 MB in a few milliseconds, and free a random part of them."""
    draw = random.SystemRandom()
    stays = draw.random()
    for _ in range(_BLOCKS):
        size = math.exp(draw.uniform(math.log(_LEAST_BYTES), math.log(_MOST_BYTES)))
        # Objects smaller than the shortest bytes object have two sizes: a plain object's and a float's.
        block = (bytes(round(size)), object(), 1e9 + size)
        if draw.random() < stays:
            _kept.extend(block)
