"""Renders a run as GitHub Markdown, for a job summary or a comment."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from perflab.report.escaping import FENCE, code, escape, fenced, for_reading, in_html
from perflab.report.lines import Row, shown_verdict
from perflab.report.not_run import not_run
from perflab.report.summary import hint, unseen_failures
from perflab.report.tally import LOOK_FIRST, tally
from perflab.report.view import DEFAULT_VIEW, View
from perflab.results import Document, Result
from perflab.tiers import by_table, tier
from perflab.units import format_count

_LONGEST_FAILURE = 80
"""The most lines of a failure: its last ones, where the error stands. GitHub limits a whole summary to 1 MiB."""
LONGEST_COMMENT = 65_000
"""The most characters of a comment: GitHub refuses more than 65,536, and a workflow adds lines of its own."""
_LEFT_OUT = "_The rest does not fit into a comment: it is on the page._"
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


def fitting(blocks: Sequence[str], page: str | None) -> str:
    """Join the blocks into a text. If a page has all of them, the text is no longer than a comment on GitHub may be.

    Collapsed blocks and bars are left out first, then rows and blocks from the end.
    """
    text = "\n\n".join(blocks) + "\n"
    if page is None or len(text) <= LONGEST_COMMENT:
        return text
    first = [block for block in blocks if not block.startswith(("<details>", FENCE))]
    lines = [line for block in first for line in (*block.split("\n"), "")]
    kept, room = [], LONGEST_COMMENT - len(_LEFT_OUT) - 2
    for line in lines:
        room -= len(line) + 1
        if room < 0:
            break
        kept.append(line)
    return "\n".join([*kept, "", _LEFT_OUT]) + "\n"


def link(page: str | None) -> list[str]:
    """Return a block that links to the HTML page with charts, samples and profiles; empty if ``page`` is None."""
    if page is None:
        return []
    address = quote(page.strip(), safe="%/:?#@!$&'*+,;=~-._")
    return [f"[All of it as a page: charts, samples, profiles](<{address}>)"]


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
