"""Renders a whole run as text and as GitHub Markdown: tables of all tiers, notes, skipped cases, the tally."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from perflab.results.documents import ended_early
from perflab.results.records import Verdict
from perflab.results.result import Document, Result
from perflab.tables.escaping import code, escape, fenced, fitting, for_reading, in_html, lines_of, link
from perflab.tables.failing import REASON_TO_FILL_IN, not_run
from perflab.tables.lines import LOOK_FIRST, Line, Row, counted, short_name, shown_verdict, tally, wrap_facts
from perflab.tables.view import DEFAULT_VIEW, View
from perflab.tiers.interface import by_table, tier
from perflab.units import format_count, format_names

LONG = 70
"""The most lines of a full summary, a screen or two. In a longer one, each case has at most one line, and a case that
another table shows has a line only if there is a reason."""
_ENDINGS = {2: "was interrupted", 3: "stopped with an internal error", 4: "could not start"}


_LONGEST_FAILURE = 80
"""The most lines of a failure: its last ones, where the error stands. GitHub limits a whole summary to 1 MiB."""
_ONE_LINE = 10_000
"""A width in characters that no note reaches: a page wraps text by itself."""


def summary(
    document: Document,
    width: int = 80,
    notes: Sequence[str] = (),
    *,
    accept: str | None = None,
    view: View = DEFAULT_VIEW,
) -> list[Line]:
    """Return the lines that end a run, with ``notes`` below the tables.

    ``accept`` is the command to suggest for accepting numbers, if the run was not pytest's. ``view`` applies to the
    measured cases.
    """
    document = for_reading(document)
    lines = _lines(document, width, notes, accept, view)
    runs = any(result.outcome is not None and result.outcome.runs for result in document.results)
    if view.every or not runs or len(lines) <= LONG:  # a run that ran no case is shown in full
        return lines
    return _lines(document, width, notes, accept, replace(view, brief=True))


def _lines(document: Document, width: int, notes: Sequence[str], accept: str | None, view: View) -> list[Line]:
    found = by_table(document.results)
    # Tables with outcomes stand first, then tables of cases without an outcome.
    known = sorted(found, key=lambda name: all(result.outcome is None for result in found[name]))
    *counts, last = counted(document.results) or [""]
    said = [text for name in known for text in tier(name).notes(document, found[name], width)]
    skipped: list[str] = []
    for why, command in not_run(document, listed=view.every):
        skipped += textwrap.wrap(why, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        skipped += [f"  all of them: {command}"] if command is not None else []  # on one line, so it can be copied
    return [
        *(Line(text) for fact in document.preface for text in wrap_facts([fact], width)),
        *(line for name in known for line in tier(name).lines(document, found[name], width, view)),
        *(Line(text) for text in (*said, *(lines_of(note) for note in notes))),
        *map(Line, skipped),
        *map(Line, wrap_facts([*counts, last + hint(document, accept)], width) if found else ["no perf case ran"]),
    ]


def hint(document: Document, accept: str | None = None) -> str:
    """Return the hint that ends a run: the option of pytest, or ``accept``, that saves or accepts the numbers.

    For inconclusive cases, the hint is the option that settles them. The hint is empty if no option would change
    anything.
    """
    if document.baselines is None:
        return ""
    # Results that this run refused to save get no hint to save them: a note says why, and what to do.
    unsaved = [one.judgement for one in document.results if not (one.saved or one.not_saved)]
    verdicts = {judgement.verdict for judgement in unsaved}
    if verdicts & {Verdict.NEW, Verdict.INCOMPARABLE}:
        return f"   (save: {accept or '--perf-update-new'})"
    worse = [judgement for judgement in unsaved if judgement.verdict is Verdict.REGRESSED]
    if any(drift.decides for judgement in worse for drift in judgement.drift.values()) or _by_turns(document):
        return f"   (accept: --perf-update {REASON_TO_FILL_IN})"
    if verdicts & {Verdict.REGRESSED, Verdict.IMPROVED}:
        others = "; outputs differ, see above" if any(one.outputs_differ for one in unsaved) else ""
        return f"   (accept: {accept or '--perf-update'}{others})"
    open_ones = [one for one in unsaved if one.verdict is Verdict.INCONCLUSIVE]
    # Inconclusive cases that look faster, perhaps because of the machine, need no hint.
    if not all(one.latency is not None and one.latency.is_faster for one in open_ones):
        return "   (settle: --perf-against=COMMIT)"
    return ""


def _by_turns(document: Document) -> bool:
    """Whether an interleaved comparison found a slowdown that the stored baseline let pass.

    Saving a new baseline without a reason would then not move the anchor.
    """
    return any(
        result.record is not None
        and result.record.paired is not None
        and result.judgement.verdict is Verdict.REGRESSED
        and result.not_saved is None
        and "latency" in result.judgement.worse
        for result in document.results
    )


def unseen_failures(document: Document) -> list[str]:
    """Return lines on failures of a run that its table does not show: an early end, other failures, stale cases.

    While pytest runs, it reports these itself.
    """
    lines = [*ending(document), *other_failures(document)]
    if document.stale:
        many = format_count(len(document.stale), "case")
        lines.append(
            f"{many} with a baseline no longer exist: {format_names(document.stale)} (remove it: --perf-prune)"
        )
    return lines


def ending(document: Document) -> list[str]:
    """Return a line on how a run ended early; empty if the run reached its end."""
    if not ended_early(document):
        return []
    how = _ENDINGS.get(document.exitstatus, "ended early")
    return [f"the run {how} (exit status {document.exitstatus}): cases may be missing"]


def other_failures(document: Document) -> list[str]:
    """Return a line on failures other than those of perf cases, or on cases that never ran; empty if there are none."""
    others = document.other_failures
    if others:
        return [f"other tests failed: {format_names(others)}"]
    if missing := document.unreached:
        return [f"the run stopped before {format_count(len(missing), 'case')}, not run: {format_names(missing)}"]
    if document.exitstatus == 1 and not any(result.failure for result in document.results):
        return ["the run failed (exit status 1), but none of its perf cases did: see pytest's own output"]
    return []


def measured_elsewhere(parts: Sequence[Document], merged: Document) -> list[str]:
    """Return a line on cases whose results from another environment are left out of the merged run."""
    standing = {result.case: result.record.environment for result in merged.results if result.record is not None}
    measured = [result for part in parts for result in part.results if result.record is not None]
    others = {
        result.case: None
        for result in measured
        if result.record is not None
        and result.record.environment != standing.get(result.case, result.record.environment)
    }
    if not others:
        return []
    named = format_names([short_name(case) for case in others])
    return [f"also measured in another environment, by an earlier part that is not used: {named}"]


def findings_left_out(parts: Sequence[Document], merged: Document) -> list[str]:
    """Return a line on studies whose findings were left out, because each part had only some of the study's results."""
    lost = dict.fromkeys(study for part in parts for study in part.findings if study not in merged.findings)
    if not lost:
        return []
    return [f"findings left out, because no part has all results of the study: {format_names(list(lost))}"]


def show(document: Document, notes: Sequence[str], *, accept: str | None = None) -> None:
    """Print a run as text; see ``summary``."""
    for line in summary(document, page_width(), notes, accept=accept):
        print(line.text)


def page_width() -> int:
    """Return the width of text in columns: the terminal's, but at least 80."""
    return max(80, shutil.get_terminal_size((80, 24)).columns)


def progress(text: str) -> None:
    """Write a line of progress over the last one on a terminal; write nothing to a log."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def markdown(
    document: Document, view: View = DEFAULT_VIEW, *, notes: Sequence[str] = (), page: str | None = None
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
        for row, result in shown:
            lines = (result.failure or "").splitlines()
            if len(lines) > _LONGEST_FAILURE:
                left_out = format_count(len(lines) - _LONGEST_FAILURE, "line")
                lines = [f"... ({left_out} before)", *lines[-_LONGEST_FAILURE:]]
            failures += [_unfolded(f"{row.name}: {result.judgement.verdict}", lines)] if lines else []
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


def _unfolded(title: str, lines: Sequence[str]) -> str:
    """Return lines of plain text as a collapsed block that its title opens."""
    return f"<details><summary>{in_html(title)}</summary>\n\n{fenced(lines)}\n\n</details>"
