"""Joins directories of baselines that the shards of a run wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from perflab.base.errors import BaselineError
from perflab.store.case_files import path_of
from perflab.store.json_files import check_writable


@dataclass(frozen=True)
class Part:
    """The joined baselines of one tier: their number, and a function that writes them and returns the files."""

    entries: int
    write: Callable[[Path], set[Path]]


class Joins(Protocol):
    """The part of a tier's interface that joins its files."""

    def join(self, paths: Sequence[Path]) -> Part:
        """Join the files of several directories."""


def join_baselines(directories: Sequence[Path], output: Path, tiers: Mapping[str, Joins]) -> tuple[int, list[Path]]:
    """Join directories into ``output``; a case that is in several keeps the entry that was recorded last.

    The entries that ``output`` holds already take part, and so do entries that a shard has from its checkout: an update
    in another shard is later. Everything is read and checked before anything is written. Return the number of
    baselines, and the files that hold them.

    Args:
        directories: the directories to join.
        output: the directory that receives the joined baselines.
        tiers: the tiers, by the prefix of the folders of their baselines.

    Raises:
        BaselineError: a directory is missing or holds no baselines, or a file is damaged or cannot be written.
    """
    found: dict[str, list[Path]] = {}
    for directory in [output, *directories]:
        paths = sorted(directory.glob("*/*.json"))
        if not paths and directory is not output:
            problem = "holds no baselines" if directory.is_dir() else "is not a directory"
            raise BaselineError(
                f"{directory} {problem}", "name a directory of baselines; it holds <environment>/<test module>.json"
            )
        for path in paths:
            prefix = max((one for one in tiers if path.parent.name.startswith(one)), key=len)
            found.setdefault(prefix, []).append(path)
    parts = [tiers[prefix].join(paths) for prefix, paths in found.items()]
    check_writable(output)
    files = {file for part in parts for file in part.write(output)}
    return sum(part.entries for part in parts), sorted(files)


def case_at(path: Path, name: str) -> str:
    """Return the node id of a case of a baseline file."""
    return f"{path_of(path.stem)}::{name}"
