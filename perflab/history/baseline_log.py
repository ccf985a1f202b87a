"""Reads the history of accepted baselines from git's log: every version of the baseline files, commit by commit.

A point is an accepted level, with its date, commit and reason. A commit that saves no new level adds no point.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from perflab.base.errors import DocumentError, UsageError
from perflab.base.git import repository_page, run_git, working_tree
from perflab.history.contents import LeftOutRow
from perflab.history.git_objects import objects_of
from perflab.history.series import History, Run
from perflab.results.readings import DAMAGED, Level, WrittenBaselines, decoded
from perflab.store.case_files import path_of
from perflab.tiers.interface import by_folder

_GONE = "0" * 40
"""The object name that ``git log --raw`` prints for a file that a commit deleted."""


def read_log(directory: Path) -> History:
    """Read the accepted levels of a directory of baselines from its repository's log; merges count as one commit.

    Raises:
        UsageError: no commit has baselines in the directory.
        RivalError: git failed, or has no repository here.
    """
    top = working_tree(directory if directory.is_dir() else Path())
    place = directory.resolve().relative_to(top.resolve()).as_posix() if directory.is_dir() else str(directory)
    history = History(f"the log of {place}/")
    history.repository, history.are_accepted = repository_page(top), True
    seen: dict[tuple[str, str, str, str], str] = {}  # the last level of each case
    names: dict[str, str] = {}
    with objects_of(top) as read:
        for made, versions in _touching(top, place):
            run: int | None = None
            for path, name in versions:
                content = read(name)
                try:
                    if content is None:
                        raise DocumentError("git does not have it", "git fetch --unshallow")
                    registration, levels = levels_in(content, path.split("/")[-2])
                except DocumentError as error:
                    history.left_out.append(LeftOutRow(file=f"{str(made.commit)[:7]}:{path}", problem=error.problem))
                    continue
                if registration is None and path not in names:
                    names[path] = path_of(path.rpartition("/")[2].removesuffix(".json"))
                module = registration or names[path]
                for level in levels:
                    key = (module, level.case, level.variant, level.places[0].text)
                    content_now = (
                        f"{level.recorded} {[(name, one.value) for name, one in sorted(level.readings.items())]}"
                    )
                    if seen.get(key) == content_now:
                        continue
                    seen[key] = content_now
                    if run is None:
                        run = history.begin(made)
                    places = history.place(level.places[0]), history.place(level.places[1])
                    said = "accepted"
                    if level.reason:
                        said = f"accepted: {level.reason}"
                        history.reasons[history.word(said)] = level.reason
                    history.add(run, f"{module}::{level.case}", level.variant, places, said, level.readings)
    if not history.runs:
        problem = f": {history.left_out[0].problem}" if history.left_out else ""
        raise UsageError(
            f"no commit has baselines in {place}/{problem}", "save and commit some: pytest -m perf --perf-update"
        )
    return history


def _touching(top: Path, place: str) -> Iterator[tuple[Run, list[tuple[str, str]]]]:
    """Yield the commits that changed files in ``place``, oldest first, along the current branch's first parents.

    Each commit comes with the JSON files that it added or changed, as pairs of path and object name.
    """
    form = "--format=%x01%H%x00%cI%x00%s"
    follow = ["--first-parent", "--diff-merges=first-parent", "--no-renames", "--reverse"]
    log = run_git(top, "log", *follow, form, "--raw", "--no-abbrev", "-z", "--", f":(top,literal){place}")
    for block in log.split("\x01")[1:]:
        commit, date, rest = block.split("\0", 2)
        subject, *fields = rest.split("\0")
        words = [field.strip("\n") for field in fields if field.strip("\n")]
        pairs = list(zip(words[::2], words[1::2], strict=False))
        versions = [(path, head.split()[3]) for head, path in pairs if path.endswith(".json")]
        run = Run(datetime.fromisoformat(date), commit, subject.strip("\n"))
        yield run, [(path, name) for path, name in versions if name != _GONE]


def levels_in(raw: bytes, folder: str) -> tuple[str | None, list[Level]]:
    """Return the registration whose kernels a file holds (None for cases of tests), and the levels that it accepts.

    Args:
        raw: the content of the file.
        folder: the name of the file's folder, which tells the tier: ``predicted-h100``.

    Raises:
        DocumentError: the file is damaged, or is no baseline file of perflab.
    """
    tiers = by_folder()
    tier = tiers[max((prefix for prefix in tiers if folder.startswith(prefix)), key=len)]
    try:
        file = decoded(raw, WrittenBaselines)
        return file.registration, list(tier.levels(file))
    except (*DAMAGED, KeyError) as error:
        raise DocumentError(f"it is not a baseline file: {error}", "see git log") from error
