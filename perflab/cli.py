"""The ``perflab`` command: what is done with a run's results once pytest has ended, and what needs no test run.

A command is a function that declares its arguments on a parser and returns what runs them; its docstring is its
help. One more is one more function, and a line in ``COMMANDS``. Nothing here loads torch.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from perflab.doctor.checkup import checkup
from perflab.documents import PASSED, merge, only_cases, read_document, write_document
from perflab.errors import PerflabError, UsageError
from perflab.gate.join import join_baselines
from perflab.records import Document
from perflab.report.markdown import markdown
from perflab.report.side_by_side import parameter_names, side_by_side
from perflab.report.studies import studies
from perflab.report.study_forms import study_data
from perflab.report.summary import (
    ending,
    findings_left_out,
    measured_elsewhere,
    other_failures,
    summary,
    tiers,
    unseen_failures,
)
from perflab.report.table import short_name
from perflab.static.architectures import parse_architectures
from perflab.units import format_names

Run = Callable[[argparse.Namespace], int]
"""Runs a command; returns its exit status."""
BAD_INPUT, INTERRUPTED = 2, 130


def merge_command(parser: argparse.ArgumentParser) -> Run:
    """Merge the parts of one run: shards and reruns of its cases, or with --baselines what they saved.

    Shows the table that one run would have shown, and exits as it would have: 1 if anything failed.
    """
    parser.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="what pytest wrote with --perf-json")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write the result (default: merged.json)")
    parser.add_argument(
        "--baselines", action="store_true", help="join directories of baselines instead, into the --output directory"
    )

    def run(given: argparse.Namespace) -> int:
        if given.baselines:
            if given.output is None:
                raise UsageError("--baselines without --output", "name the directory to write to: --output DIR")
            joined = join_baselines(given.paths, given.output)
            print(f"joined {joined.entries} baselines into {', '.join(map(str, joined.files))}")
            return 0
        parts = [read_document(path) for path in given.paths]
        merged = merge(parts)
        output = given.output if given.output is not None else Path("merged.json")
        write_document(merged, output)
        endings = [f"{path}: {text}" for path, part in zip(given.paths, parts, strict=True) for text in ending(part)]
        others = [*other_failures(merged), *measured_elsewhere(parts, merged), *findings_left_out(parts, merged)]
        _show(merged, [*endings, *others, f"wrote {output}"])
        return 0 if merged.exitstatus == PASSED else 1

    return run


def report_command(parser: argparse.ArgumentParser) -> Run:
    """Show one run's results as text or as GitHub Markdown, or the tables of its studies as JSON."""
    parser.add_argument("file", type=Path, metavar="FILE", help="what pytest wrote with --perf-json, or perflab merge")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="(default: text)")
    parser.add_argument(
        "--case", metavar="SUBSTRING", help="show the cases whose names contain this; one predicted case stands in full"
    )
    parser.add_argument(
        "--side-by-side", metavar="PARAMETER", help="show this parameter's levels against each other, fastest first"
    )

    def run(given: argparse.Namespace) -> int:
        document, parameter = read_document(given.file), given.side_by_side
        if given.case is not None:
            document = _of_cases(document, given.case, given.file)
        if parameter is not None and not side_by_side(document.results, parameter):
            known = ", ".join(parameter_names(document.results)) or "none"
            raise UsageError(
                f"--side-by-side={parameter}: nothing to compare in {given.file}",
                f"name a parameter of which a case has several levels; its cases have: {known}",
            )
        if given.format == "markdown":
            sys.stdout.write(markdown(document, parameter))
        elif given.format == "json":
            found = studies(tiers(document.results).measured, document.findings)
            print(json.dumps({"studies": study_data(found)}, indent=1, ensure_ascii=False))
        else:
            _show(document, unseen_failures(document), parameter=parameter)
        return 0

    return run


def doctor_command(parser: argparse.ArgumentParser) -> Run:
    """Say what can be measured here; with --gate, how often the gate is wrong on this machine.

    --gate measures unchanged code again and again, for about a minute a trial, and prints false alarms, the share of
    injected slowdowns that is found, and the cost, of perflab's gates and of pytest-benchmark's rule on the same data.
    """
    parser.add_argument("--gate", action="store_true", help="try the gate itself")
    parser.add_argument("--trials", type=int, default=10, metavar="N", help="trials to record (default: 10)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="keep what is recorded, and judge what it holds too")

    def run(given: argparse.Namespace) -> int:
        if not given.gate:
            print("\n".join(checkup()))
            return 0
        from perflab.doctor.gate import measure_gate  # it loads pytest, for its processes' sake

        if given.trials < 0:
            raise UsageError(f"--trials={given.trials}", "give how many trials to record, 0 to judge a log alone")
        print("\n".join(measure_gate(given.trials, given.log, lambda text: print(text, file=sys.stderr, flush=True))))
        return 0

    return run


def kernels_command(parser: argparse.ArgumentParser) -> Run:
    """Compile Triton kernels ahead of time, without a GPU, and compare what they take with their baselines.

    Registers, spills, shared memory, tensor-core instructions and occupancy of every registered kernel on every
    architecture. Exits with 1 if a kernel does not compile, cannot run, or got worse.
    """
    parser.add_argument(
        "registrations",
        nargs="*",
        metavar="REGISTRATION",
        help="package.module:ATTRIBUTE that holds the examples (default: perf_kernels of pytest's ini file)",
    )
    parser.add_argument("--arch", metavar="N[,N...]", help="architectures (default: perf_arch of the ini file)")
    parser.add_argument("--update", action="store_true", help="save what was compiled as the new baselines")
    parser.add_argument("--reason", metavar="TEXT", help="why, kept with the baselines")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results, as --perf-json does")

    def run(given: argparse.Namespace) -> int:
        from perflab.plugin.kernels_command import compile_kernels  # it loads pytest, to read the ini file

        if given.reason is not None and not given.update:
            raise UsageError("--reason without --update", "a reason is one for saving: add --update")
        try:
            archs = parse_architectures(given.arch) if given.arch is not None else None
        except ValueError as error:
            raise UsageError(f"--arch: {error}", "give their numbers, such as --arch=80,90") from error
        chosen = [*given.registrations, *([f"--arch={given.arch}"] if given.arch is not None else [])]
        found = compile_kernels(
            given.registrations,
            archs,
            update=given.update,
            reason=given.reason,
            command=["perflab", "kernels", *chosen],
            say=_progress,
        )
        for text in [result.failure for result in found.document.results if result.failure]:
            print(f"{text}\n")
        notes = list(found.notes)
        if given.json is not None:
            write_document(found.document, given.json)
            notes.append(f"wrote {given.json}")
        _show(found.document, notes, accept=shlex.join(["perflab", "kernels", *chosen, "--update"]))
        return found.document.exitstatus

    return run


COMMANDS: dict[str, Callable[[argparse.ArgumentParser], Run]] = {
    "doctor": doctor_command,
    "kernels": kernels_command,
    "merge": merge_command,
    "report": report_command,
}


def build_parser() -> argparse.ArgumentParser:
    """The command line: every command with its options, and what runs it as ``run``."""
    parser = argparse.ArgumentParser(
        prog="perflab", description="What needs no test run, and what one has left behind."
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, declare in COMMANDS.items():
        first, _, rest = (declare.__doc__ or "").partition("\n")
        told = " ".join([first, *rest.split()])
        own = commands.add_parser(name, help=first.rstrip("."), description=told)
        own.set_defaults(run=declare(own))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status: 2 for input that cannot be used, 130 for Ctrl-C."""
    given = build_parser().parse_args(arguments)
    run: Run = given.run
    try:
        return run(given)
    except PerflabError as error:
        print(f"perflab {given.command}: {error}", file=sys.stderr)
    except OSError as error:
        print(f"perflab {given.command}: {error.filename or 'output'}: {error.strerror}", file=sys.stderr)
    except KeyboardInterrupt:
        print(f"perflab {given.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return BAD_INPUT


def _of_cases(document: Document, text: str, path: Path) -> Document:
    """The run as if it had only the cases whose names contain a text.

    Raises:
        UsageError: there are none.
    """
    found = only_cases(document, text)
    if not found.results:
        names = format_names([short_name(result.case) for result in document.results]) or "none"
        raise UsageError(
            f"--case={text}: no case of {path} has that in its name", f"name a part of one that it has: {names}"
        )
    return found


def _show(document: Document, notes: Sequence[str], *, accept: str | None = None, parameter: str | None = None) -> None:
    width = max(80, shutil.get_terminal_size((80, 24)).columns)
    for line in summary(document, width, notes, accept=accept, parameter=parameter):
        print(line.text)


def _progress(text: str) -> None:
    """One line that is written over, and none in a log."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
