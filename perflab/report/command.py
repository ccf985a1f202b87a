"""``perflab report`` and ``perflab compare``: show results files and journals as text, Markdown, JSON or a page."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from perflab.base.data import to_readable_json
from perflab.base.errors import UsageError
from perflab.base.files import write_whole
from perflab.report.fail import LATENCY, found_worse, in_words, parse_limits
from perflab.report.gather import Source, gather
from perflab.report.summary import markdown, page_width, summary, unseen_failures
from perflab.results.documents import SUFFIX, only_cases, read_document, read_journal
from perflab.results.result import parameter_names
from perflab.tables.beside_text import beside_lines, beside_markdown
from perflab.tables.escaping import for_reading, one_line
from perflab.tables.lines import short_name
from perflab.tables.view import (
    COLLECTED,
    COLUMNS,
    DEFAULT_COLUMNS,
    ORDERS,
    View,
    parse_columns,
    parse_sort,
    refuse_unknown,
)
from perflab.tiers.interface import Run, tiers
from perflab.units import format_names

FORMATS = ("text", "markdown", "json", "html")
_Parsed = TypeVar("_Parsed")


def report_command(parser: argparse.ArgumentParser) -> Run:
    """Show the results of a run as text, GitHub Markdown, JSON or one HTML page; of several runs, side by side.

    FILE is a results file from --perf-json or perflab merge, or the journal of a run (.perflab/runs/*.jsonl).
    """
    _declare(parser, "results file or journal; several are set side by side", in_full="; a single prediction in full")
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
            side_by_side=given.side_by_side,
        )
        _refuse_unused(given)
        sources = read_sources(given.files, given.case)
        if len(sources) > 1:
            return _shown(given, _beside(sources, given.page))
        return _shown(given, _of_one(sources[0], given, view))

    return run


def compare_command(parser: argparse.ArgumentParser) -> Run:
    """Show several runs side by side: times, memory and counts, with ratios to the first run.

    Numbers of different machines or versions stand beside each other, labelled, and have no ratio. Nothing is judged,
    except with --fail, which exits with 1 if a case of a later run became worse.
    """
    _declare(parser, "results files or journals, the one to compare with first")
    parser.add_argument(
        "--fail",
        nargs="?",
        const="",
        metavar="QUANTITY:SHARE[,...]",
        help="exit with 1 if a case became worse than in the first run that has it, by the rules of its verdict; with "
        "limits, if one of these quantities rose by more, such as latency:5%%,peak:1%%,operators:0",
    )

    def run(given: argparse.Namespace) -> int:
        try:
            limits = parse_limits(given.fail or "")
        except ValueError as error:
            remedy = "write --fail=latency:5%,peak:1%, or --fail alone behind the files"
            raise UsageError(f"--fail={given.fail}: {error}", remedy) from error
        if len(given.files) < 2:
            raise UsageError("one file is given", "name two or more to compare, or use perflab report FILE")
        sources = read_sources(given.files, given.case)
        _shown(given, _beside(sources, given.page, judged=given.fail is not None))
        return 0 if given.fail is None else _judged(sources, limits)

    return run


def _judged(sources: Sequence[Source], limits: dict[str, float]) -> int:
    """Return 1 as the exit status if a later run became worse, else 0. Print what became worse to standard error.

    Raises:
        UsageError: a limit is given for a quantity that no case has, or nothing could be compared.
    """
    contents = gather(sources)
    quantities = [one for run in contents.runs for case in run.cases for one in case.quantities.items()]
    known = dict.fromkeys(name for name, one in quantities if one.exact or name == LATENCY)
    if unknown := [name for name in limits if name not in known]:
        problem = f"--fail={unknown[0]}: no case has a quantity of that name that is judged"
        raise UsageError(problem, f"name one of {', '.join(known) or 'none'}")
    found = found_worse(sources, contents, limits)
    for line in in_words(found):
        print(one_line(f"perflab compare: {line}"), file=sys.stderr)
    if not found.compared and not found.worse:
        raise UsageError(
            "--fail: nothing was compared", "compare runs of the same cases, versions and, for times, machine"
        )
    return 1 if found.worse else 0


def read_sources(paths: Sequence[Path], case: str | None = None) -> list[Source]:
    """Read the runs of these files. Each is labelled by as much of its path as distinguishes it from the others.

    ``case``: keep only cases whose name contains this.

    Raises:
        DocumentError: a file cannot be read.
        UsageError: no case in any of the files has ``case`` in its name.
    """
    sources = [_read(path, label) for path, label in zip(paths, _labels(paths), strict=True)]
    if case is None:
        return sources
    chosen = [Source(one.label, only_cases(one.document, case), one.notes, one.ended) for one in sources]
    if not any(one.document.results for one in chosen):
        every = [short_name(result.case) for one in sources for result in one.document.results]
        raise UsageError(
            f"--case={case}: no case of {', '.join(map(str, paths))} has that in its name",
            f"name a part of one that it has: {format_names(list(dict.fromkeys(every))) or 'none'}",
        )
    return chosen


def _declare(parser: argparse.ArgumentParser, files: str, in_full: str = "") -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help=files)
    parser.add_argument("--format", choices=FORMATS, default="text", help="(default: text)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write to this file instead of the terminal")
    parser.add_argument("--case", metavar="SUBSTRING", help=f"show only cases whose name contains this{in_full}")
    parser.add_argument("--page", metavar="URL", help="address of the HTML page, which markdown links to")


def _refuse_unused(given: argparse.Namespace) -> None:
    """Raise UsageError for options that only the text or the Markdown of one run has.

    A page and JSON have every case anyway.
    """
    many = len(given.files)
    given_of_one = {
        "--side-by-side": given.side_by_side is not None,
        "--columns": given.columns != DEFAULT_COLUMNS,
        "--sort": given.sort != COLLECTED,
        "--verbose": given.verbose and many > 1,
    }
    for option in [name for name, is_given in given_of_one.items() if is_given]:
        if many > 1:
            raise UsageError(f"{option} with {many} files", f"give {option} with one file")
        if given.format in ("json", "html"):
            raise UsageError(
                f"{option} with --format={given.format}", f"give {option} with --format=text or --format=markdown"
            )


def _read(path: Path, label: str) -> Source:
    if path.suffix == SUFFIX:
        document, notes = read_journal(path)
        return Source(label, document, tuple(notes), ended=False)
    return Source(label, read_document(path))


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return the names of files. Equal names get as many folders as distinguish them, and numbers as a last resort."""
    depth, different = 1, set(paths)
    while len({path.parts[-depth:] for path in different}) < len(different) and depth < 20:
        depth += 1
    names = [Path(*path.parts[-depth:]).as_posix() for path in paths]
    return [f"{name} ({at})" if names.count(name) > 1 else name for at, name in enumerate(names, 1)]


Texts = dict[str, Callable[[], str]]
"""The function that renders a report, by format."""


def _shown(given: argparse.Namespace, texts: Texts) -> int:
    if given.page is not None and given.format != "markdown":
        raise UsageError(
            f"--page with --format={given.format}", "give --page with --format=markdown, which links to it"
        )
    text = texts[given.format]()
    if given.output is not None:
        write_whole(given.output, text.encode("utf-8", "backslashreplace"))
        print(one_line(f"wrote {given.output}"))
    else:
        sys.stdout.write(text)
    return 0


def _of_one(source: Source, given: argparse.Namespace, view: View) -> Texts:
    document, parameter, page = source.document, view.side_by_side, given.page
    if parameter is not None and not any(one.sets_beside(document.results, parameter) for one in tiers()):
        known = ", ".join(parameter_names(document.results)) or "none"
        raise UsageError(
            f"--side-by-side={parameter}: nothing to compare in {given.files[0]}",
            f"name a parameter of which a case has several levels; its cases have: {known}",
        )
    own = [name for one in tiers() for name in one.own_columns(document.results)]
    _parsed("--columns", given.columns, lambda text: refuse_unknown(parse_columns(text), (*COLUMNS, *own)))
    order = view.sort.removeprefix("-")
    _parsed("--sort", order, lambda name: refuse_unknown([name], (*ORDERS, *own)))
    notes = [*source.notes, *unseen_failures(for_reading(document))]
    return {
        "text": lambda: "".join(f"{line.text}\n" for line in summary(document, page_width(), notes, view=view)),
        "markdown": lambda: markdown(document, view, notes=source.notes, page=page),
        **_data([source]),
    }


def _beside(sources: Sequence[Source], page: str | None, *, judged: bool = False) -> Texts:
    return {
        "text": lambda: "".join(f"{line}\n" for line in beside_lines(gather(sources), page_width(), judged=judged)),
        "markdown": lambda: beside_markdown(gather(sources), page, judged=judged),
        **_data(sources),
    }


def _data(sources: Sequence[Source]) -> Texts:
    def page() -> str:
        from perflab.page.report import report_page  # jinja2 is loaded for pages alone

        return report_page(gather(sources))

    return {"json": lambda: to_readable_json(gather(sources)), "html": page}


def _parsed(option: str, text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Parse the value of an option.

    Raises:
        UsageError: the value cannot be parsed; the error names the option.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", "see docs/reference.md, under Columns") from error
