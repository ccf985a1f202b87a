"""A run as GitHub Markdown, for a job's summary or a comment: what needs looking at first, failures to unfold."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import chain

from perflab.records import Document, Result, Verdict
from perflab.report.compared import what_was_compared
from perflab.report.doubts import beyond_the_rate
from perflab.report.escaping import code, escape, for_reading, longest_run
from perflab.report.kernels import kernel_rows
from perflab.report.not_run import not_run, without_skipped
from perflab.report.predictions import prediction_notes, prediction_rows
from perflab.report.side_by_side import side_by_side, side_by_side_markdown
from perflab.report.studies import studies
from perflab.report.study_forms import study_markdown
from perflab.report.summary import (
    compiled_by,
    environments,
    hint,
    predicted_by,
    the_only_prediction,
    tiers,
    unseen_failures,
)
from perflab.report.table import MARKED, Row, rows, shown_verdict
from perflab.report.tally import tally
from perflab.report.view import DEFAULT_VIEW, View

_FIRST = (Verdict.REGRESSED, Verdict.FAILED, Verdict.OOM, Verdict.INCONCLUSIVE)
_LONGEST_FAILURE = 80
"""Lines of a failure; of a longer one, the last, where the error stands. GitHub takes 1 MiB for a whole summary."""
_DETAIL_WIDTH = 100
"""Columns of what a page unfolds."""


def markdown(document: Document, parameter: str | None = None, view: View = DEFAULT_VIEW) -> str:
    """The whole run; ends with a newline. ``parameter`` is set side by side, in place of what each case asks for.

    ``view`` is that of the measured cases, among which those that need looking at stand first all the same.
    """
    document = for_reading(document)
    results = document.results
    if not results:
        return "\n\n".join(["### perflab", "no perf case ran", *map(escape, unseen_failures(document))]) + "\n"
    found = tiers(results)
    measured, compiled = found.measured if view.every else without_skipped(found.measured), found.compiled
    in_order = view.ordered(measured)
    shown = _sorted(rows(in_order, view), in_order)
    predicted = [_sorted(prediction_rows(cases), cases) for cases in found.predicted.values()]
    kernels = _sorted(kernel_rows(compiled), compiled)
    blocks = [f"### perflab: {tally(results)}"]
    blocks += [escape(note) for note in unseen_failures(document)]
    blocks += [escape(" · ".join(facts)) for facts in [document.preface, *environments(document)] if facts]
    if shown:
        blocks.append("\n".join(_table("case", [row for row, _ in shown])))
        blocks += ["\n".join(lines) for lines in side_by_side_markdown(side_by_side(measured, parameter))]
        blocks += study_markdown(studies(measured, document.findings))
        blocks += [escape(MARKED)] if any(one.judgement.beside for one in measured) else []
    for cases in predicted:
        ones = [result for _, result in cases]
        blocks.append(escape(" · ".join(predicted_by(document, ones))))
        blocks.append("\n".join(_table("case", [row for row, _ in cases])))
        blocks += [escape(note) for note in prediction_notes(ones)]
        detail = the_only_prediction(document, _DETAIL_WIDTH)
        blocks += [_unfolded(f"{cases[0][0].name}: in full", detail)] if detail else []
    if kernels:
        blocks.append(escape(" · ".join(compiled_by(document))))
        blocks.append("\n".join(_table("kernel", [row for row, _ in kernels])))
    blocks += [escape(text) for text in (*what_was_compared(results), *beyond_the_rate(results))]
    blocks += [_failure(row.name, result) for row, result in (*shown, *chain(*predicted), *kernels) if result.failure]
    reasons = [
        escape(said) + (f"<br>{code(command)}" if command else "")
        for said, command in not_run(document, listed=view.every)
    ]
    blocks += ["\n".join(f"- {reason}" for reason in reasons)] if reasons else []
    if hint(document):
        blocks.append(hint(document).strip())
    return "\n\n".join(blocks) + "\n"


def _sorted(rows: list[Row], results: list[Result]) -> list[tuple[Row, Result]]:
    return sorted(zip(rows, results, strict=True), key=lambda pair: _rank(pair[1]))


def _rank(result: Result) -> int:
    """Regressions first, then what failed otherwise; a sort by it keeps the order of the rest."""
    verdict = shown_verdict(result)
    if verdict in _FIRST:
        return _FIRST.index(verdict)
    return len(_FIRST) - (1 if result.failure else 0)


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
        lines = [f"... ({left_out} lines before)", *lines[left_out:]]
    return _unfolded(f"{name}: {result.judgement.verdict}", lines)


def _unfolded(title: str, lines: Sequence[str]) -> str:
    """Lines of plain text below a title that opens them."""
    text = "\n".join(lines)
    fence = "`" * max(3, longest_run(text) + 1)
    return f"<details><summary>{html.escape(title)}</summary>\n\n{fence}text\n{text}\n{fence}\n\n</details>"
