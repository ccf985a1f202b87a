"""Building blocks of tables: lines, rows of cells, sections, short names, verdicts and their numbers of cases. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from perflab.base.identity import test_of
from perflab.results.records import Verdict
from perflab.results.result import Result, names
from perflab.results.result import name_of as tier_of

ACCEPTED = "accepted"
"""The word for a change that was saved as the new baseline: it was not examined further, and fails no run."""
LOOK_FIRST = (Verdict.REGRESSED, Verdict.FAILED, Verdict.OOM, Verdict.INCONCLUSIVE)
"""The verdicts that need a look, in this order."""
_CHANGED = (Verdict.REGRESSED, Verdict.IMPROVED, Verdict.INCONCLUSIVE)


def outcome(result: Result) -> str:
    """Return the word for a case: its verdict, or ``accepted`` if its change was saved."""
    return said_of(result.judgement.verdict, saved=result.saved)


def said_of(verdict: str, *, saved: bool) -> str:
    """Return the word for a verdict: the verdict itself, or ``accepted`` if it is a change and the case was saved."""
    return ACCEPTED if saved and verdict in _CHANGED else verdict


def way_of(result: Result) -> str:
    """Return the tier of a case's outcome: ``measured``, ``predicted``; ``""`` if there is no outcome."""
    return tier_of(result.outcome) if result.outcome is not None else ""


def counted(results: Sequence[Result]) -> list[str]:
    """Return the number of cases with each verdict, in words: ``11 ok``, ``1 regressed``.

    The words name the tiers if there are several: ``7 measured ok``, ``24 predicted ok``, ``3 skipped``. A run that
    predicted cases and measured none also has ``0 measured``. A run that only compiled names no tier.
    """
    ways = {way_of(result) for result in results}
    stand_in = any(result.outcome is not None and result.outcome.stands_in for result in results)
    if len(ways - {""}) <= 1 and not stand_in:
        return _said("", results)
    known = names()
    said = [part for way in known for part in _said(f"{way} ", [one for one in results if way_of(one) == way])]
    none = [f"0 {known[0]}"] if stand_in and known[0] not in ways else []
    return [*said, *none, *_said("", [one for one in results if not way_of(one)])]


def tally(results: Sequence[Result]) -> str:
    """Return the number of cases with each verdict in one line."""
    return " · ".join(counted(results))


def _said(way: str, results: Sequence[Result]) -> list[str]:
    counts = Counter(outcome(result) for result in results)
    return [f"{counts[word]} {way}{word}" for word in (*Verdict, ACCEPTED) if counts[word]]


_Key = TypeVar("_Key", bound=Hashable)
_MARK = "*"
MARKED = f"{_MARK} disturbed while it was measured"


@dataclass(frozen=True)
class Line:
    """A line of a table. ``verdict`` is set on the line that shows the verdict, so that the line may be coloured."""

    text: str
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Row:
    """A case's row in a table of Markdown. ``cells`` are by column; ``details`` give the reasons of the verdict."""

    name: str
    cells: dict[str, str]
    verdict: str
    details: list[str]


@dataclass(frozen=True)
class Section:
    """A table of a tier for a page of Markdown. All text but ``blocks`` is plain, and is escaped when it is written."""

    first: str
    """Title of the first column, which has the names."""
    rows: list[Row]
    results: list[Result]
    """The result of each row."""
    facts: list[list[str]] = field(default_factory=list)
    """Facts that cases have in common, one list for each line above the table."""
    notes: list[str] = field(default_factory=list)
    """Notes below the table."""
    blocks: list[str] = field(default_factory=list)
    """Further tables below the table, already written as Markdown."""
    unfolded: dict[str, list[str]] = field(default_factory=dict)
    """Collapsed lines of text, by the title that opens them."""


def short_name(case: str) -> str:
    """Return a case's short name: ``tests/perf/test_x.py::TestY::test_step[small]`` -> ``step[small]``."""
    return _parts(case)[-1].removeprefix("test_")


def in_words(name: str) -> str:
    """Return a quantity's name in words: ``graph_breaks`` -> ``graph breaks``."""
    return name.replace("_", " ")


def name_of(result: Result) -> str:
    """Return the case's short name with its mode, unless the mode is the default: ``step[small] {cold}``."""
    return short_name(result.identity)


def _parts(case: str) -> list[str]:
    """Split a node id into folders, module, classes and function. A parameter may hold any of the separators."""
    test = test_of(case)
    file, *names = test.split("::")
    parts = [*file.removesuffix(".py").split("/"), *names]
    parts[-1] += case[len(test) :]
    return parts


def distinct_names(cases: Mapping[_Key, tuple[str, str]]) -> dict[_Key, str]:
    """Return names for cases with short names: alike ones get as many parts of their paths as distinguish them."""
    names = {key: name for key, (_, name) in cases.items()}
    for depth in range(2, max([len(_parts(case)) for case, _ in cases.values()], default=0) + 1):
        often = Counter(names.values())
        if len(often) == len(names):
            break
        for key, (case, name) in cases.items():
            if often[names[key]] > 1:
                names[key] = ":".join([*_parts(case)[-depth:-1], name])
    return names


def names_of(results: Sequence[Result]) -> list[str]:
    """Return distinct short names: ``step[small]``, ``test_a:step[small]``.

    A merged run may have a case twice, compared with its baseline and with a commit: the latter is marked ``A/B``.
    """
    names = distinct_names({result.identity: (result.case, name_of(result)) for result in results})
    baselined = {result.identity for result in results if result.is_of_a_run and not result.is_comparison}
    return [
        f"{names[one.identity]} A/B" if one.is_comparison and one.identity in baselined else names[one.identity]
        for one in results
    ]


def shorten(name: str, width: int) -> str:
    """Cut a name in the middle, since its end shows the parameters and its beginning the function."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return name[: width - 1 - tail] + "…" + name[-tail:]


def cut(line: str, width: int) -> str:
    """Cut a line at its end."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def cut_begin(line: str, width: int) -> str:
    """Cut a line at its beginning: the end of a path says more."""
    return line if len(line) <= width else f"…{line[1 - width :]}"


def columns(cells: Sequence[Sequence[str]], numbers: Collection[int], indent: str = "  ") -> list[str]:
    """Return the lines of a table, with the columns ``numbers`` aligned to the right and other columns to the left."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        indent
        + "  ".join(
            text.rjust(size) if at in numbers else text.ljust(size)
            for at, (text, size) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]


def with_mark(name: str, *, disturbed: bool) -> str:
    """Return a name, marked if the case was disturbed; ``MARKED`` explains the mark below the table or the chart."""
    return f"{name} {_MARK}" if disturbed else name


def verdict_text(result: Result) -> str:
    """Return the verdict as the table shows it: failures in capitals, and a mark on saved results."""
    verdict = result.judgement.verdict
    if result.saved:
        said = outcome(result)
        return said if said == ACCEPTED else f"{said}, saved"
    return verdict.upper() if verdict in (Verdict.REGRESSED, Verdict.FAILED, Verdict.OOM) else str(verdict)


def shown_verdict(result: Result) -> Verdict:
    """Return the verdict by which a line is coloured, and a row is sorted: an accepted change counts as ok."""
    return Verdict.OK if outcome(result) == ACCEPTED else result.judgement.verdict


def percent(share: float, digits: int = 1) -> str:
    """Format a share with a fixed number of digits, as tables have it: ``12.3%``."""
    return f"{100 * share:.{digits}f}%"


def wrap_facts(facts: Sequence[str], width: int) -> list[str]:
    """Join facts by dots into lines no longer than ``width``, breaking only between facts."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return lines
