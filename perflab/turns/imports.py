"""Prepares a side's process: its import path, which mirrors the session's, and the placement of its objects.

A change of code without any effect on the work still moves objects, and the new placement may make a call some percent
faster or slower (Mytkowicz et al. 2009, "Producing wrong data without doing anything obviously wrong!"). All processes
of one version have the same placement, so that no number of processes would show this error. If the placement is random
in every process, it becomes noise, which pairs average (Curtsinger & Berger 2013, "Stabilizer: statistically sound
performance evaluation").
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType


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
    found: dict[str, str] = {}
    for name, module in list(modules.items()):
        file, (top, *below) = getattr(module, "__file__", None), name.split(".")
        if file is None or top in _NO_PACKAGES or top in found or not _INSTALLED & {*Path(file).parts}:
            continue
        for place in places:  # submodules are looked up too: a namespace package has no file of its own
            source = place.joinpath(top, *below)
            if (source / "__init__.py").is_file() or source.with_suffix(".py").is_file():
                found[top] = f"{name} ({file})"
    return sorted(found.values())


_INSTALLED = {"site-packages", "dist-packages"}
_NO_PACKAGES = ("conftest", "setup", "tests", "test", "docs")


def _roots_of(modules: Mapping[str, ModuleType], head: Path) -> Iterable[str]:
    """Yield the import folders below ``head`` from which modules were imported."""
    for name, module in list(modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or _within(file, head) is None or _is_installed(file):
            continue
        path = Path(file)
        depth = name.count(".") + (path.name == "__init__.py")
        if len(path.parents) > depth and name != "__main__":
            yield str(path.parents[depth])


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
