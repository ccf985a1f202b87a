"""``perflab nsys``: its arguments, and how a run or a file becomes text."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.base.errors import UsageError
from perflab.report.summary import progress
from perflab.results.documents import read_document
from perflab.results.result import Document

if TYPE_CHECKING:
    from perflab.tiers.interface import Run

_EXPORTS = (".sqlite", ".sqlite3", ".db")
_REPORTS = (".nsys-rep", ".qdrep")
_DEFAULT = Path(".perflab", "nsys", "report")


def nsys_command(parser: argparse.ArgumentParser) -> Run:
    """Profile a command with NVIDIA Nsight Systems, or read a profile: kernels by range, operator and module.

    Reads SQLite exports of several versions without nsys; a .nsys-rep report is exported by nsys first. Exits with the
    status of the command.
    """
    parser.add_argument(
        "target",
        nargs="+",
        metavar="FILE|-- COMMAND",
        help=".sqlite or .nsys-rep file; or the command and its arguments",
    )
    parser.add_argument("--results", type=Path, metavar="FILE", help="results file whose times are shown beside")
    parser.add_argument("--case", metavar="SUBSTRING", help="read only cases whose name contains this")
    parser.add_argument(
        "--range", metavar="NAME", help="profile the ranges of this name as calls (default: perf cases)"
    )
    parser.add_argument("--process", type=int, metavar="PID", help="process to read, where there are several")
    parser.add_argument(
        "--output",
        type=Path,
        default=_DEFAULT,
        metavar="PATH",
        help=f"where to write the report, without its suffix (default: {_DEFAULT})",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list all ranges and kernels")
    parser.set_defaults(hint="write -- before the command to profile: perflab nsys -- pytest -m perf")

    def run(given: argparse.Namespace) -> int:
        from perflab.nsys import capture

        if len(given.target) > 1 and all(map(_is_profile, given.target)):
            raise UsageError(
                f"{len(given.target)} files to read: {', '.join(given.target)}",
                f"read one at a time: perflab nsys {given.target[0]}",
            )
        status, results = 0, given.results
        target = Path(given.target[0])
        if len(given.target) == 1 and _is_profile(given.target[0]):
            export = capture.exported(target) if target.suffix in _REPORTS else target
        else:
            status, report, found = capture.profile(given.target, given.output)
            export, results = capture.exported(report), results if results is not None else found
        timers = _timers(read_document(results)) if results is not None else {}
        for line in _read(export, given, timers):
            print(line)
        return status

    return run


def _is_profile(given: str) -> bool:
    """Whether an argument is a profile to read. A program without arguments looks alike, but can be executed."""
    target = Path(given)
    if target.suffix in (*_EXPORTS, *_REPORTS):
        return True
    from perflab.nsys.export import is_sqlite

    return target.is_file() and (shutil.which(given) is None or is_sqlite(target))


def _read(path: Path, given: argparse.Namespace, timers: dict[tuple[str, str], float]) -> list[str]:
    from perflab.nsys.export import ExportError, opened
    from perflab.nsys.reading import chosen_process, read
    from perflab.nsys.text import lines

    width = max(80, shutil.get_terminal_size((120, 24)).columns)
    with opened(path) as export:
        try:
            reading = read(
                export, chosen_process(export, given.process), given.range, progress, case_part=given.case or ""
            )
        except (TypeError, OverflowError) as error:
            said = f"{path} has a value that no nsys writes: {export.odd_value()}"
            raise ExportError(said, "export it again with nsys") from error
    progress("")
    sys.stderr.flush()
    return lines(reading, timers, width, every=given.verbose)


def _timers(document: Document) -> dict[tuple[str, str], float]:
    """Return the median nanoseconds of one call and of its phases, by case and phase, from the run's own timer."""
    timed = {one.case: one.record.summary for one in document.results if one.record is not None}
    return {
        (case, phase): time_ns
        for case, summary in timed.items()
        if summary is not None
        for phase, time_ns in {"": summary.median_ns, **summary.phases_ns}.items()
    }
