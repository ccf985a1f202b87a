"""A whole run as text: tables of all tiers, notes, skipped cases, the tally. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import replace

from perflab.documents import ended_early
from perflab.records import Verdict
from perflab.report.drift import REASON_TO_FILL_IN
from perflab.report.escaping import for_reading, lines_of
from perflab.report.lines import Line, short_name, wrap_facts
from perflab.report.not_run import not_run
from perflab.report.tally import counted
from perflab.report.view import DEFAULT_VIEW, View
from perflab.results import Document
from perflab.tiers import by_table, tier
from perflab.units import format_count, format_names

LONG = 70
"""Lines, a screen or two. Where a run's end would be longer, cases that other tables show have no line of their own,
unless for a reason, and all have their line alone."""
_ENDINGS = {2: "was interrupted", 3: "stopped with an internal error", 4: "could not start"}


def summary(
    document: Document,
    width: int = 80,
    notes: Sequence[str] = (),
    *,
    accept: str | None = None,
    view: View = DEFAULT_VIEW,
) -> list[Line]:
    """The lines that end a run; ``notes`` stand below the tables. ``accept`` is what to call, if it was not pytest.

    ``view`` is that of the measured cases.
    """
    document = for_reading(document)
    lines = _lines(document, width, notes, accept, view)
    runs = any(result.outcome is not None and result.outcome.runs for result in document.results)
    if view.every or not runs or len(lines) <= LONG:  # of a run that measured nothing, all is there to be read
        return lines
    return _lines(document, width, notes, accept, replace(view, brief=True))


def _lines(document: Document, width: int, notes: Sequence[str], accept: str | None, view: View) -> list[Line]:
    found = by_table(document.results)
    # What is known first, and then what came to nothing.
    known = sorted(found, key=lambda name: all(result.outcome is None for result in found[name]))
    *counts, last = counted(document.results) or [""]
    said = [text for name in known for text in tier(name).notes(document, found[name], width)]
    return [
        *(Line(text) for fact in document.preface for text in wrap_facts([fact], width)),
        *(line for name in known for line in tier(name).lines(document, found[name], width, view)),
        *(Line(text) for text in (*said, *(lines_of(note) for note in notes))),
        *(Line(text) for reason in not_run(document, listed=view.every) for text in _not_run(*reason, width)),
        *map(Line, wrap_facts([*counts, last + hint(document, accept)], width) if found else ["no perf case ran"]),
    ]


def _not_run(said: str, command: str | None, width: int) -> list[str]:
    """A command stands on one line, however long, so that it can be copied."""
    lines = textwrap.wrap(said, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [*lines, f"  all of them: {command}"] if command is not None else lines


def hint(document: Document, accept: str | None = None) -> str:
    """What takes the numbers as baselines, where that would change something: pytest's option, or ``accept``."""
    if document.baselines is None:
        return ""
    # What this run was to save and refused, it does not ask to save: a note says why, and what to do.
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
    # What looks faster, and may have its cause elsewhere, needs nothing.
    if not all(one.latency is not None and one.latency.is_faster for one in open_ones):
        return "   (settle: --perf-against=COMMIT)"
    return ""


def _by_turns(document: Document) -> bool:
    """Whether a stored number let pass what turns found: saving a new one by itself would not move its anchor."""
    return any(
        result.record is not None
        and result.record.paired is not None
        and result.judgement.verdict is Verdict.REGRESSED
        and result.not_saved is None
        and "latency" in result.judgement.worse
        for result in document.results
    )


def unseen_failures(document: Document) -> list[str]:
    """What the table does not show of a run that was no success; pytest itself says it where it runs."""
    return [*ending(document), *other_failures(document), *stale_cases(document)]


def stale_cases(document: Document) -> list[str]:
    """The cases that the run found to be gone, while their baselines are there."""
    if not document.stale:
        return []
    many = format_count(len(document.stale), "case")
    return [f"{many} with a baseline no longer exist: {format_names(document.stale)} (remove it: --perf-prune)"]


def ending(document: Document) -> list[str]:
    """How a run ended that did not reach its end."""
    if not ended_early(document):
        return []
    how = _ENDINGS.get(document.exitstatus, "ended early")
    return [f"the run {how} (exit status {document.exitstatus}): cases may be missing"]


def other_failures(document: Document) -> list[str]:
    """What failed beside the results of perf cases."""
    others = document.other_failures
    if others:
        return [f"other tests failed: {format_names(others)}"]
    if document.exitstatus == 1 and not any(result.failure for result in document.results):
        return ["the run failed (exit status 1), but none of its perf cases did: see pytest's own output"]
    return []


def measured_elsewhere(parts: Sequence[Document], merged: Document) -> list[str]:
    """Cases of which results from another environment were left out of the merged run: one run has one of each."""
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
    """Studies of which each part saw only some of what stands in the merged run."""
    lost = dict.fromkeys(study for part in parts for study in part.findings if study not in merged.findings)
    if not lost:
        return []
    return [f"findings left out, because no part has all results of the study: {format_names(list(lost))}"]
