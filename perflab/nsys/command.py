"""``perflab nsys``: its arguments, how it runs ``nsys``, and how a run or a file becomes text."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from perflab.base.errors import UsageError
from perflab.measure.calls.nvtx import ASKED
from perflab.nsys.errors import ExportError
from perflab.processes.lifeline import with_lifeline
from perflab.report.summary import progress
from perflab.results.documents import read_document

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
        if len(given.target) > 1 and all(map(_is_profile, given.target)):
            raise UsageError(
                f"{len(given.target)} files to read: {', '.join(given.target)}",
                f"read one at a time: perflab nsys {given.target[0]}",
            )
        status, results = 0, given.results
        target = Path(given.target[0])
        if len(given.target) == 1 and _is_profile(given.target[0]):
            export = exported(target) if target.suffix in _REPORTS else target
        else:
            status, report, found = profile(given.target, given.output)
            export, results = exported(report), results if results is not None else found
        timed = read_document(results).results if results is not None else ()
        summaries = {one.case: one.record.summary for one in timed if one.record is not None}
        timers = {  # the median nanoseconds of one call and of its phases, from the run's own timer
            (case, phase): time_ns
            for case, summary in summaries.items()
            if summary is not None
            for phase, time_ns in {"": summary.median_ns, **summary.phases_ns}.items()
        }
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
    from perflab.nsys.export import opened
    from perflab.nsys.reading import chosen_process, lines, read

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


FLAGS = (
    "--trace=cuda,nvtx",  # calls of the operating system's library are many, and no part of any table here
    "--sample=none",
    "--cpuctxsw=none",
    "--cuda-graph-trace=node",  # by default a graph is one piece, without its kernels
    "--force-overwrite=true",
)
OLDEST = (2022, 2)
"""Year and number of the first version of nsys that knows ``FLAGS``."""
REPORT = ".nsys-rep"
_ELSEWHERE = "or export it where nsys is (nsys export --type=sqlite FILE) and read that: perflab nsys FILE.sqlite"


def nsys_program() -> str:
    """Return the path of ``nsys``, after a check of its version.

    Raises:
        ExportError: nsys is not installed, does not run, or has a version that is too old or not understood.
    """
    program = shutil.which("nsys")
    if program is None:
        raise ExportError("nsys is not installed", f"install NVIDIA Nsight Systems and add it to PATH; {_ELSEWHERE}")
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExportError(f"{program} --version does not run: {error}", f"install it anew; {_ELSEWHERE}") from error
    said = done.stdout.strip()
    found = re.search(r"version (\d{4})\.(\d+)", said)
    if found is None:
        raise ExportError(
            f"{program} --version says {said or 'nothing'!r}, which is no version that perflab knows",
            f"install Nsight Systems {OLDEST[0]}.{OLDEST[1]} or newer; {_ELSEWHERE}",
        )
    if (int(found[1]), int(found[2])) < OLDEST:
        raise ExportError(
            f"{program} is version {found[1]}.{found[2]}", f"install {OLDEST[0]}.{OLDEST[1]} or newer; {_ELSEWHERE}"
        )
    return program


def profile(command: Sequence[str], output: Path) -> tuple[int, Path, Path | None]:
    """Run a command under ``nsys profile``; return exit status, report, and the results file if one was written.

    Raises:
        ExportError: nsys is missing, or wrote no report.
        UsageError: the command cannot be started.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(f"{command[0]}: no such program", "name a command: perflab nsys -- pytest -m perf")
    program = nsys_program()
    output.parent.mkdir(parents=True, exist_ok=True)
    report = output.with_name(output.name + REPORT)
    for earlier in (report, report.with_suffix(".sqlite")):
        earlier.unlink(missing_ok=True)
    # The run's results: the value of ``--perf-json``, else for pytest a file beside the report.
    given = [one.partition("=")[2] for one in command if one.startswith("--perf-json=")]
    given += [after for one, after in pairwise(command) if one == "--perf-json"]
    beside = [output.with_name(output.name + ".json").absolute()] if is_pytest(command) else []
    results = next(iter([*map(Path, given), *beside]), None)

    def written_ns() -> int | None:
        return results.stat().st_mtime_ns if results is not None and results.exists() else None

    before_ns = written_ns()
    # Ranges are opened for each call; with them, pytest judges and saves nothing. Its results file is named by an
    # environment variable, which reaches pytest whatever program starts it.
    environment = {**os.environ, ASKED: "1"}
    if is_pytest(command) and results is not None:
        options = environment.get("PYTEST_ADDOPTS", "")
        environment["PYTEST_ADDOPTS"] = f"{options} {shlex.quote(f'--perf-json={results}')}".strip()
    profiled = with_lifeline([program, "profile", *FLAGS, f"--output={output}", *command])
    status = subprocess.run(profiled, env=environment).returncode
    if not report.exists():
        raise ExportError(
            f"nsys ended with status {status} and wrote no {report}",
            "see its messages above; nsys profile needs write access there, and no other profiler in the process",
        )
    return status, report, results if written_ns() != before_ns else None


def exported(report: Path) -> Path:
    """Return the SQLite export of a report: the file beside the report if it is newer, else a new export.

    Raises:
        ExportError: the report or nsys is missing, or nsys cannot read the report.
    """
    if not report.exists():
        raise ExportError(f"{report} does not exist", "give a .sqlite or .nsys-rep file")
    export = report.with_suffix(".sqlite")
    if export.exists() and export.stat().st_mtime >= report.stat().st_mtime:
        return export
    partial = report.with_suffix(".part.sqlite")  # so that an old or partial export is never taken for a new one
    partial.unlink(missing_ok=True)
    done = subprocess.run(
        [nsys_program(), "export", "--type=sqlite", "--force-overwrite=true", f"--output={partial}", str(report)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    )
    if done.returncode != 0 or not partial.exists():
        said = done.stderr.strip().splitlines() or [f"it ended with status {done.returncode} and wrote nothing"]
        raise ExportError(
            f"nsys cannot export {report}: {said[-1]}",
            "a newer nsys reads reports of older ones: export it with the version that wrote it",
        )
    return partial.replace(export)


def is_pytest(command: Sequence[str]) -> bool:
    """Whether a command is ``pytest ...`` or ``python -m pytest ...``, with or without a program that starts it."""
    names = [os.path.basename(one) for one in command]
    return "pytest" in (names[0], *(after for one, after in pairwise(names) if one in ("-m", "--", "run", "exec")))
