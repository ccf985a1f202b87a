"""Renders a run as GitHub Markdown, for a job summary or a comment."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.report.summary import hint, unseen_failures
from perflab.results.result import Document, Result
from perflab.tables.escaping import code, escape, fenced, for_reading, in_html
from perflab.tables.lines import LOOK_FIRST, Row, shown_verdict, tally
from perflab.tables.markdown import fitting, link
from perflab.tables.not_run import not_run
from perflab.tables.view import DEFAULT_VIEW, View
from perflab.tiers.interface import by_table, tier
from perflab.units import format_count

_LONGEST_FAILURE = 80
"""The most lines of a failure: its last ones, where the error stands. GitHub limits a whole summary to 1 MiB."""
_ONE_LINE = 10_000
"""A width in characters that no note reaches: a page wraps text by itself."""


def markdown(
    document: Document,
    view: View = DEFAULT_VIEW,
    *,
    notes: Sequence[str] = (),
    page: str | None = None,
) -> str:
    """Return the whole run as Markdown that ends with a newline.

    ``view`` applies to the measured cases. In any order of the view, the cases that need a look stand first. A link to
    ``page`` and the ``notes`` stand at the top.
    """
    first = [*link(page), *map(escape, notes)]
    document = for_reading(document)
    results = document.results
    if not results:
        return "\n\n".join(["### perflab", *first, "no perf case ran", *map(escape, unseen_failures(document))]) + "\n"
    found = by_table(results)
    sections = [part for name, ones in found.items() for part in tier(name).sections(document, ones, view)]
    blocks = [f"### perflab: {tally(results)}", *first]
    blocks += [escape(note) for note in unseen_failures(document)]
    blocks += [escape(" · ".join(document.preface))] if document.preface else []
    failures: list[str] = []
    for section in sections:
        shown = sorted(zip(section.rows, section.results, strict=True), key=lambda pair: _rank(pair[1]))
        blocks += [escape(" · ".join(facts)) for facts in section.facts]
        blocks.append("\n".join(_table(section.first, [row for row, _ in shown])))
        blocks += section.blocks
        blocks += [escape(note) for note in section.notes]
        blocks += [_unfolded(title, lines) for title, lines in section.unfolded.items()]
        failures += [_failure(row.name, result) for row, result in shown if result.failure]
    blocks += [escape(text) for name, ones in found.items() for text in tier(name).notes(document, ones, _ONE_LINE)]
    blocks += failures
    reasons = [
        escape(said) + (f"<br>{code(command)}" if command else "")
        for said, command in not_run(document, listed=view.every)
    ]
    blocks += ["\n".join(f"- {reason}" for reason in reasons)] if reasons else []
    if hint(document):
        blocks.append(hint(document).strip())
    return fitting(blocks, page)


def _rank(result: Result) -> int:
    """Return a result's key for sorting: verdicts of ``LOOK_FIRST``, then other failures, then all others."""
    verdict = shown_verdict(result)
    if verdict in LOOK_FIRST:
        return LOOK_FIRST.index(verdict)
    return len(LOOK_FIRST) - (1 if result.failure else 0)


def _table(first: str, shown: list[Row]) -> list[str]:
    titles = list(shown[0].cells)
    lines = [f"| {' | '.join([first, *titles, 'verdict'])} |", f"|---|{'--:|' * len(titles)}---|"]
    for row in shown:
        verdict = f"**{row.verdict}**" if row.verdict.isupper() else row.verdict
        why = "".join(f"<br>{escape(detail)}" for detail in row.details)
        lines.append(f"| {' | '.join([code(row.name), *map(escape, row.cells.values()), verdict + why])} |")
    return lines


def _failure(name: str, result: Result) -> str:
    lines = (result.failure or "").splitlines()
    if len(lines) > _LONGEST_FAILURE:
        left_out = len(lines) - _LONGEST_FAILURE
        lines = [f"... ({format_count(left_out, 'line')} before)", *lines[left_out:]]
    return _unfolded(f"{name}: {result.judgement.verdict}", lines)


def _unfolded(title: str, lines: Sequence[str]) -> str:
    """Return lines of plain text as a collapsed block that its title opens."""
    return f"<details><summary>{in_html(title)}</summary>\n\n{fenced(lines)}\n\n</details>"
