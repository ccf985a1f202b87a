"""The ``perflab`` command: merges, reports and checks the machine, without a test run; and what tiers do beside it.

A command is a function that declares its arguments on a parser and returns what runs them; its docstring is its
help. One more is one more function, and a line in ``COMMANDS``, or a tier's own. Nothing here loads torch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from perflab.attention.command import attention_command
from perflab.doctor.checkup import checkup
from perflab.documents import PASSED, merge, only_cases, read_document, write_document
from perflab.errors import PerflabError, UsageError
from perflab.history.command import history_command
from perflab.profiles.nsys.command import nsys_command
from perflab.report.escaping import for_reading, lines_of, one_line
from perflab.report.lines import short_name
from perflab.report.markdown import markdown
from perflab.report.summary import ending, findings_left_out, measured_elsewhere, other_failures, unseen_failures
from perflab.report.terminal import show
from perflab.report.view import COLLECTED, DEFAULT_COLUMNS, View, parse_columns, parse_sort
from perflab.results import Document, parameter_names
from perflab.snapshots.command import memory_command
from perflab.store.join import join_baselines
from perflab.tiers import Run, by_folder, by_table, tier, tiers
from perflab.units import format_names

_Parsed = TypeVar("_Parsed")
BAD_INPUT, INTERRUPTED = 2, 130


def merge_command(parser: argparse.ArgumentParser) -> Run:
    """Combine the results of shards and reruns into one file; with --baselines, combine their baselines.

    Shows the table of the combined run. Exits with 1 if anything failed, else with 0.
    """
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="FILE",
        help="results file from --perf-json; with --baselines, a directory",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: merged.json); with --baselines, the directory",
    )
    parser.add_argument(
        "--baselines", action="store_true", help="combine directories of baselines into the --output directory"
    )

    def run(given: argparse.Namespace) -> int:
        if given.baselines:
            if given.output is None:
                raise UsageError("--baselines without --output", "name the directory to write to: --output DIR")
            joined = join_baselines(given.paths, given.output, by_folder())
            print(one_line(f"joined {joined.entries} baselines into {', '.join(map(str, joined.files))}"))
            return 0
        parts = [read_document(path) for path in given.paths]
        merged = merge(parts)
        output = given.output if given.output is not None else Path("merged.json")
        write_document(merged, output)
        merged = for_reading(merged)
        endings = [f"{path}: {text}" for path, part in zip(given.paths, parts, strict=True) for text in ending(part)]
        others = [*other_failures(merged), *measured_elsewhere(parts, merged), *findings_left_out(parts, merged)]
        show(merged, [*endings, *others, f"wrote {output}"])
        return 0 if merged.exitstatus == PASSED else 1

    return run


def report_command(parser: argparse.ArgumentParser) -> Run:
    """Show the results of one run as text or GitHub Markdown, or its studies as JSON."""
    parser.add_argument("file", type=Path, metavar="FILE", help="results file from --perf-json or perflab merge")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text", help="(default: text)")
    parser.add_argument(
        "--case", metavar="SUBSTRING", help="show only cases whose name contains this; a single prediction in full"
    )
    parser.add_argument(
        "--side-by-side", metavar="PARAMETER", help="compare the values of this parameter, fastest first"
    )
    parser.add_argument(
        "--columns",
        metavar="NAME[,...]",
        default=DEFAULT_COLUMNS,
        help=f"columns of the results table (default: {DEFAULT_COLUMNS})",
    )
    parser.add_argument(
        "--sort",
        metavar="[-]NAME",
        default=COLLECTED,
        help="sort by a column, name or fullname; -NAME: descending (default: collected)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="list every skipped case, and show long results in full"
    )

    def run(given: argparse.Namespace) -> int:
        view = View(
            _parsed("--columns", given.columns, parse_columns),
            _parsed("--sort", given.sort, parse_sort),
            every=given.verbose,
        )
        document, parameter = read_document(given.file), given.side_by_side
        if given.case is not None:
            document = _of_cases(document, given.case, given.file)
        if parameter is not None and not any(one.sets_beside(document.results, parameter) for one in tiers()):
            known = ", ".join(parameter_names(document.results)) or "none"
            raise UsageError(
                f"--side-by-side={parameter}: nothing to compare in {given.file}",
                f"name a parameter of which a case has several levels; its cases have: {known}",
            )
        if given.format == "markdown":
            sys.stdout.write(markdown(document, parameter, view))
        elif given.format == "json":
            found = [tier(name).data(document, ones) for name, ones in by_table(document.results).items()]
            data = {key: one for part in found for key, one in part.items()}
            print(json.dumps(data or {"studies": []}, indent=1, ensure_ascii=False, allow_nan=False))
        else:
            show(document, unseen_failures(for_reading(document)), parameter=parameter, view=view)
        return 0

    return run


def doctor_command(parser: argparse.ArgumentParser) -> Run:
    """Show what can be measured on this machine; with --gate, measure the gate's error rates.

    --gate measures unchanged code repeatedly; each trial takes about a minute per kind of workload. It prints the
    false alarms, the share of injected slowdowns that were found, and the cost, for perflab's gates and for
    pytest-benchmark's rule on the same data. With --log it can be stopped at any time and continued later.
    """
    parser.add_argument("--gate", action="store_true", help="measure the error rates of the gate")
    parser.add_argument(
        "--trials",
        type=int,
        default=10,
        metavar="N",
        help="number of trials to record; 0: only judge the log (default: 10)",
    )
    parser.add_argument(
        "--log", type=Path, metavar="FILE", help="append the trials to this file, and judge all trials in it"
    )
    parser.add_argument(
        "--kinds",
        default="mixed,long,python",
        metavar="KIND[,KIND...]",
        help="kinds of workload: mixed, long (one thread, 3 to 150 ms a call), python (default: all)",
    )

    def run(given: argparse.Namespace) -> int:
        if not given.gate:
            print("\n".join(checkup()))
            return 0
        from perflab.doctor.gate import measure_gate  # it loads pytest, for its processes' sake

        if given.trials < 0:
            raise UsageError(f"--trials={given.trials}", "give how many trials to record, 0 to judge a log alone")
        from perflab.doctor.workloads import KINDS

        kinds = given.kinds.split(",")
        if unknown := [kind for kind in kinds if kind not in KINDS]:
            raise UsageError(f"--kinds={given.kinds}: there is no {unknown[0]!r}", f"choose of {', '.join(KINDS)}")
        told = measure_gate(given.trials, given.log, lambda text: print(text, file=sys.stderr, flush=True), kinds)
        print("\n".join(told))
        return 0

    return run


COMMANDS: dict[str, Callable[[argparse.ArgumentParser], Run]] = {
    "attention": attention_command,
    "doctor": doctor_command,
    **{name: command for one in tiers() for name, command in one.commands().items()},
    "history": history_command,
    "memory": memory_command,
    "merge": merge_command,
    "nsys": nsys_command,
    "report": report_command,
}


def build_parser() -> argparse.ArgumentParser:
    """The command line: every command with its options, and what runs it as ``run``."""
    parser = argparse.ArgumentParser(
        prog="perflab", description="Work with perflab's results, test and compile kernels, and check this machine."
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
        print(lines_of(f"perflab {given.command}: {error}"), file=sys.stderr)
    except OSError as error:
        print(one_line(f"perflab {given.command}: {error.filename or 'output'}: {error.strerror}"), file=sys.stderr)
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


def _parsed(option: str, text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    """An option's value.

    Raises:
        UsageError: it cannot be read, naming the option.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", "see docs/reference.md, under Columns") from error
