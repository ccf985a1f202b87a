"""``perflab report`` and ``perflab compare``: show results files and journals as text, Markdown, JSON or a page.

``perflab compare --fail`` finds what became worse between runs: each tier judges its own cases.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from perflab.base.data import changed, to_readable_json
from perflab.base.errors import UsageError
from perflab.base.files import write_whole
from perflab.report.gather import Source, gather
from perflab.report.summary import markdown, page_width, summary, unseen_failures
from perflab.results.documents import SUFFIX, only_cases, read_document, read_journal
from perflab.results.records import Change, Judgement, Policy, Verdict
from perflab.results.result import parameter_names
from perflab.tables.beside_text import beside_lines, beside_markdown, cases_of, name_in, pair_texts
from perflab.tables.contents import Case, Contents
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
from perflab.tiers.interface import Run, tier_of, tiers
from perflab.units import format_change, format_names, parse_fraction

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
            _show_beside(given, sources)
            return 0
        source, document = sources[0], sources[0].document
        parameter = view.side_by_side
        if parameter is not None and not any(one.sets_beside(document.results, parameter) for one in tiers()):
            known = ", ".join(parameter_names(document.results)) or "none"
            raise UsageError(
                f"--side-by-side={parameter}: nothing to compare in {given.files[0]}",
                f"name a parameter of which a case has several levels; its cases have: {known}",
            )
        own = [name for one in tiers() for name in one.own_columns(document.results)]
        _parsed("--columns", given.columns, lambda text: refuse_unknown(parse_columns(text), (*COLUMNS, *own)))
        _parsed("--sort", view.sort.removeprefix("-"), lambda name: refuse_unknown([name], (*ORDERS, *own)))
        notes = [*source.notes, *unseen_failures(for_reading(document))]
        _show(
            given,
            sources,
            lambda: "".join(f"{line.text}\n" for line in summary(document, page_width(), notes, view=view)),
            lambda: markdown(document, view, notes=source.notes, page=given.page),
        )
        return 0

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
        _show_beside(given, sources, judged=given.fail is not None)
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


def _show(
    given: argparse.Namespace, sources: Sequence[Source], text: Callable[[], str], markdown: Callable[[], str]
) -> None:
    """Print a report in the given format, or write it to the given file; text and Markdown are made if asked for."""
    if given.page is not None and given.format != "markdown":
        raise UsageError(
            f"--page with --format={given.format}", "give --page with --format=markdown, which links to it"
        )
    if given.format == "html":
        from perflab.page.report import report_page  # jinja2 is loaded for pages alone

        shown = report_page(gather(sources))
    elif given.format == "json":
        shown = to_readable_json(gather(sources))
    else:
        shown = text() if given.format == "text" else markdown()
    if given.output is not None:
        write_whole(given.output, shown.encode("utf-8", "backslashreplace"))
        print(one_line(f"wrote {given.output}"))
    else:
        sys.stdout.write(shown)


def _show_beside(given: argparse.Namespace, sources: Sequence[Source], *, judged: bool = False) -> None:
    _show(
        given,
        sources,
        lambda: "".join(f"{line}\n" for line in beside_lines(gather(sources), page_width(), judged=judged)),
        lambda: beside_markdown(gather(sources), given.page, judged=judged),
    )


def _parsed(option: str, text: str, parse: Callable[[str], _Parsed]) -> _Parsed:
    """Parse the value of an option.

    Raises:
        UsageError: the value cannot be parsed; the error names the option.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{option}: {error}", "see docs/reference.md, under Columns") from error


LATENCY, PEAK = "latency", "peak"
_JUDGED = {LATENCY: "latency", PEAK: "memory"}
"""The names of these quantities in a judgement; other quantities have their own names in it."""
_WORSE = (Verdict.FAILED, Verdict.OOM)
"""Verdicts that are worse than any run with numbers, whether the case has numbers too."""
UNDECIDED = "one process a run does not tell whether code or machine did it"


@dataclass
class Found:
    """The findings on the later runs of a comparison."""

    worse: list[str] = field(default_factory=list)
    """A line for each case of a run that became worse."""
    undecided: list[str] = field(default_factory=list)
    """A line for each case of a run whose time may have become worse."""
    missed: dict[str, list[str]] = field(default_factory=dict)
    """The names of cases of which something was not compared, by reason."""
    compared: int = 0
    """The number of cases of later runs of which something was compared."""


def parse_limits(text: str) -> dict[str, float]:
    """Parse ``latency:5%,peak:1%`` into shares by quantity; an empty text gives no shares.

    Raises:
        ValueError: a part is no quantity with a share, or a quantity occurs twice.
    """
    limits: dict[str, float] = {}
    for part in text.split(",") if text else ():
        name, colon, share = part.partition(":")
        if not colon or not name.strip():
            raise ValueError(f"{part!r} is not QUANTITY:SHARE")
        if name.strip() in limits:
            raise ValueError(f"{name.strip()!r} stands twice")
        limits[name.strip()] = parse_fraction(share.strip())
    return limits


def found_worse(sources: Sequence[Source], contents: Contents, limits: Mapping[str, float]) -> Found:
    """Judge each case of the later runs against the first run that has numbers of the case.

    Args:
        sources: the runs.
        contents: the contents gathered from these runs.
        limits: the share by which each gated quantity may rise. Empty: the quantities on which the case's own verdict
            rests are gated, by the case's policy.
    """
    found = Found()
    for compared in contents.compared:
        name = name_in(contents, compared)
        cases = cases_of(contents, compared)
        first = next((number for number, case in enumerate(cases) if case and case.quantities), len(cases))
        for number, case in enumerate(cases[first + 1 :], first + 1):
            if case is None:
                found.missed.setdefault(f"not in run {number + 1}", []).append(name)
                continue
            where = f"{name} in run {number + 1}"
            places = compared.cases[first], compared.cases[number]
            before, now = (
                sources[run].document.results[at or 0] for run, at in zip((first, number), places, strict=True)
            )
            policy = now.policy or Policy()
            if limits:
                policy = changed(
                    policy,
                    threshold=limits.get(LATENCY, policy.threshold),
                    memory_threshold=limits.get(PEAK, policy.memory_threshold),
                    gate_counts=True,
                )
            judgement: Judgement | None = tier_of(before).judge_runs(before, now, policy)
            if now.judgement.verdict in _WORSE or (judgement is not None and judgement.verdict is Verdict.OOM):
                found.worse.append(
                    f"{where}: {now.judgement.verdict}: {(now.judgement.reasons or [''])[0]}".rstrip(": ")
                )
                continue
            if judgement is None:
                if now.judgement.verdict is not Verdict.SKIPPED:
                    why = compared.elsewhere[number] or f"{case.verdict} has no numbers"
                    found.missed.setdefault(why, []).append(where)
                continue
            if judgement.verdict in (Verdict.NEW, Verdict.INCOMPARABLE):
                found.missed.setdefault(judgement.reasons[0], []).append(where)
                continue
            changes = {LATENCY: judgement.latency, PEAK: judgement.memory, **judgement.counts}
            missing = [one for one in limits or (LATENCY,) if one in case.quantities and changes.get(one) is None]
            reasons = [one.reason for one in judgement.not_compared if not limits]
            for one in missing:
                why_not = compared.elsewhere[number] or judgement.no_times if one == LATENCY else None
                reasons.append(why_not or f"{one.replace('_', ' ')} not judged")
            for reason in dict.fromkeys(reasons):
                found.missed.setdefault(reason, []).append(where)
            found.compared += any(changes.get(one) is not None for one in limits or changes)
            alone = judgement.few_runs is not None
            worse = [*_worse(judgement, limits, alone)]
            said = [_said(one, changes[one], case) for one in worse]
            if not limits and judgement.verdict is Verdict.REGRESSED and not said and not alone:
                said = judgement.reasons  # spills, or out of memory
            if said:
                found.worse.append(f"{where}: {', '.join(said)}")
            latency = judgement.latency
            is_open = alone or judgement.verdict is Verdict.INCONCLUSIVE
            if is_open and latency is not None and latency.ratio > 1.0 and LATENCY in (limits or _JUDGED):
                why = judgement.reasons[0] if judgement.reasons else f"{format_change(latency.ratio)}, but {UNDECIDED}"
                found.undecided.append(f"{where}: {why}")
    return found


def _worse(judgement: Judgement, limits: Mapping[str, float], is_open: bool) -> Iterator[str]:
    """Yield the gated quantities that rose past their limit; not the latency if ``is_open``."""
    for name, judged in _JUDGED.items():
        if judged in judgement.worse and (not limits or name in limits) and not (is_open and name == LATENCY):
            yield name
    for name, change in judgement.counts.items():
        if limits:
            rose = name in limits and change.now > change.before * (1.0 + limits[name])
        else:
            rose = change.is_past_limit and ("counts" in judgement.worse or name in judgement.worse)
        if rose:
            yield name


def _said(name: str, change: Change | None, case: Case) -> str:
    """Return a change in words: ``latency 100 ms -> 112 ms (+12.0%)``."""
    assert change is not None
    unit = case.quantities[name].unit if name in case.quantities else "count"
    then, now = pair_texts(change.before, change.now, unit)
    more = f" ({format_change(change.ratio)})" if change.before else ""
    return f"{name.replace('_', ' ')} {then} -> {now}{more}"


def in_words(found: Found) -> list[str]:
    """Return the findings as lines for people, the worst first."""
    lines = [f"worse: {line}" for line in found.worse]
    lines += [f"not decided: {line}" for line in found.undecided]
    lines += [f"not compared: {format_names(names)}: {why}" for why, names in found.missed.items()]
    if found.undecided:
        lines.append("  -> decide it in turns on one machine: pytest -m perf --perf-against=COMMIT")
    return lines
