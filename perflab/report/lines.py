"""Building blocks of tables: lines, rows of cells, sections, short names, verdicts. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from perflab.records import Verdict
from perflab.report.tally import ACCEPTED, outcome
from perflab.results import Result

_MARK = "*"
MARKED = f"{_MARK} disturbed while it was measured"


@dataclass(frozen=True)
class Line:
    """A line of the table. ``verdict`` is set on the line that carries it, so that it may be coloured."""

    text: str
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Row:
    """A case in words, for tables that are no plain text. ``cells`` are by column; ``details`` say why."""

    name: str
    cells: dict[str, str]
    verdict: str
    details: list[str]


@dataclass(frozen=True)
class Section:
    """A table of a tier for a page of Markdown. All text is plain, and is escaped where it is written."""

    first: str
    """Title of the column of names."""
    rows: list[Row]
    results: list[Result]
    """By row."""
    facts: list[list[str]] = field(default_factory=list)
    """What cases have in common, a list a line; stands above the table."""
    notes: list[str] = field(default_factory=list)
    """Stand below it."""
    blocks: list[str] = field(default_factory=list)
    """More tables below it, written as Markdown already."""
    unfolded: dict[str, list[str]] = field(default_factory=dict)
    """Text that a title opens."""


def short_name(case: str) -> str:
    """``tests/perf/test_x.py::TestY::test_step[small]`` -> ``step[small]``."""
    return _parts(case)[-1].removeprefix("test_")


def name_of(result: Result) -> str:
    """The case's short name with its mode, unless that is the default: ``step[small] {cold}``."""
    return short_name(result.identity)


def _parts(case: str) -> list[str]:
    """Folders, module, classes and function of a node id; a parameter may hold any of the separators."""
    path, bracket, parameters = case.partition("[")
    file, *names = path.split("::")
    parts = [*file.removesuffix(".py").split("/"), *names]
    parts[-1] += bracket + parameters
    return parts


def names_of(results: Sequence[Result]) -> list[str]:
    """Short names; where two cases would read the same, as much of what stands before them as tells them apart.

    A merged run may have a case twice, held against its baseline and against a commit: the latter is marked.
    """
    known = {result.identity: result for result in results}
    names = {identity: name_of(result) for identity, result in known.items()}
    for depth in range(2, max([len(_parts(result.case)) for result in results], default=0) + 1):
        often = Counter(names.values())
        if len(often) == len(names):
            break
        for identity, result in known.items():
            if often[names[identity]] > 1:
                names[identity] = ":".join([*_parts(result.case)[-depth:-1], name_of(result)])
    baselined = {result.identity for result in results if result.is_of_a_run and not result.is_comparison}
    return [
        f"{names[one.identity]} A/B" if one.is_comparison and one.identity in baselined else names[one.identity]
        for one in results
    ]


def shorten(name: str, width: int) -> str:
    """Cut in the middle: the end tells parameters, the beginning what it is."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return name[: width - 1 - tail] + "…" + name[-tail:]


def cut(line: str, width: int) -> str:
    """Cut at its end."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def with_mark(name: str, *, disturbed: bool) -> str:
    """A case's name, marked if it was disturbed; ``MARKED`` says below the table, or the chart, what the mark is."""
    return f"{name} {_MARK}" if disturbed else name


def verdict_text(result: Result) -> str:
    """The verdict as the table has it: what fails in capitals."""
    verdict = result.judgement.verdict
    if result.saved:
        said = outcome(result)
        return said if said == ACCEPTED else f"{said}, saved"
    return verdict.upper() if verdict in (Verdict.REGRESSED, Verdict.FAILED, Verdict.OOM) else str(verdict)


def shown_verdict(result: Result) -> Verdict:
    """The verdict by which a line is coloured, and a row stands among others: an accepted change is as good as ok."""
    return Verdict.OK if outcome(result) == ACCEPTED else result.judgement.verdict


def wrap_facts(facts: Sequence[str], width: int) -> list[str]:
    """Join facts by dots into lines no longer than ``width``, breaking only between facts."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return lines
