"""A whole run as text: environments, the table, what it cannot show, the tally. The same wherever it is shown."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from perflab.documents import ended_early
from perflab.environment import slug
from perflab.records import Document, Environment, Judgement, Result, Verdict
from perflab.report.compared import what_was_compared
from perflab.report.doubts import beyond_the_rate, noisy_baselines
from perflab.report.drift import REASON_TO_FILL_IN
from perflab.report.escaping import for_reading, lines_of
from perflab.report.kernels import compilers, kernel_table
from perflab.report.not_run import not_run, without_skipped
from perflab.report.prediction_detail import prediction_detail
from perflab.report.predictions import by_gpu, prediction_head, prediction_table
from perflab.report.side_by_side import Group, in_brief, side_by_side, side_by_side_lines
from perflab.report.studies import Study, studies, without_quotes
from perflab.report.study_forms import study_lines
from perflab.report.table import MARKED, Line, needs_a_look, short_name, table, wrap_facts
from perflab.report.tally import counted
from perflab.report.view import DEFAULT_VIEW, View
from perflab.units import format_names

LONG = 70
"""Lines, a screen or two. Where a run's end would be longer, cases that other tables show have no line of their own,
unless for a reason, and all have their line alone."""
_MOST_UNDECIDED = 8
"""Inconclusive cases that a brief table lists though they stand elsewhere too: those that look slowest."""
_ENDINGS = {2: "was interrupted", 3: "broke with an internal error", 4: "could not begin"}


def summary(
    document: Document,
    width: int = 80,
    notes: Sequence[str] = (),
    *,
    accept: str | None = None,
    parameter: str | None = None,
    view: View = DEFAULT_VIEW,
) -> list[Line]:
    """The lines that end a run; ``notes`` stand below the tables. ``accept`` is what to call, if it was not pytest.

    ``parameter`` is set side by side, in place of what each case asks for; ``view`` is that of the measured cases.
    """
    document = for_reading(document)
    lines = _lines(document, width, notes, accept, parameter, view)
    is_measured = any(result.record is not None for result in document.results)
    if view.every or not is_measured or len(lines) <= LONG:  # what was predicted alone is there to be read
        return lines
    return _lines(document, width, notes, accept, parameter, replace(view, brief=True))


def _lines(
    document: Document, width: int, notes: Sequence[str], accept: str | None, parameter: str | None, view: View
) -> list[Line]:
    results = document.results
    found = tiers(results)
    measured, compiled = found.measured if view.every else without_skipped(found.measured), found.compiled
    groups, found_studies = side_by_side(measured, parameter), studies(measured, document.findings)
    listed, left_out = measured, list[str]()
    is_measured = any(result.record is not None for result in measured)
    if view.brief:
        listed, groups, left_out = _in_brief(measured, groups, found_studies)
        found_studies = [without_quotes(study) for study in found_studies]
    noisy = noisy_baselines(results, document.threshold, width) if document.baselines is not None else []
    told = [*what_was_compared(results), *beyond_the_rate(results)]
    untold = [text for one in told for text in textwrap.wrap(one, width, subsequent_indent="  ")]
    texts = [*untold, *map(lines_of, notes), *noisy]
    predicted = [
        line for cases in found.predicted.values() for line in _predicted(document, cases, width, brief=view.brief)
    ]
    return [
        *(Line(text) for fact in document.preface for text in wrap_facts([fact], width)),
        *(Line(text) for facts in environments(document) for text in wrap_facts(facts, width)),
        *([] if is_measured else predicted),  # what is known first, and then what came to nothing
        *(table(listed, width, view) if listed else []),
        *(Line(text) for one in left_out for text in textwrap.wrap(one, width, subsequent_indent="  ")),
        *side_by_side_lines(groups, width),
        *study_lines(found_studies, width),
        *([Line(MARKED)] if _has_marks(measured, groups, view) else []),
        *(predicted if is_measured else []),
        *(Line(text) for text in (wrap_facts(compiled_by(document), width) if compiled else [])),
        *(kernel_table(compiled, width) if compiled else []),
        *(Line(text) for text in texts),
        *(Line(text) for reason in not_run(document, listed=view.every) for text in _not_run(*reason, width)),
        *map(Line, _last(results, hint(document, accept), width) if results else ["no perf case ran"]),
    ]


def _has_marks(measured: Sequence[Result], groups: Sequence[Group], view: View) -> bool:
    """Whether a table marks disturbed cases at their names."""
    named = {case for group in groups for case in group.cases} | {one.case for one in measured if one.study}
    return any(one.judgement.beside and (view.brief or one.case in named) for one in measured)


def _in_brief(
    measured: Sequence[Result], groups: Sequence[Group], found: Sequence[Study]
) -> tuple[list[Result], list[Group], list[str]]:
    """Of a long run: the cases that need a look or stand nowhere else, some groups, and what is said of the others."""
    elsewhere = {case for group in groups for case in group.cases} | {one.case for one in measured if one.study}
    undecided = [one for one in measured if one.case in elsewhere and one.judgement.verdict is Verdict.INCONCLUSIVE]
    passed_over = {one.case for one in sorted(undecided, key=_looks_slower, reverse=True)[_MOST_UNDECIDED:]}
    listed = [
        one for one in measured if one.case not in elsewhere or (needs_a_look(one) and one.case not in passed_over)
    ]
    shown, others = in_brief(groups)
    left_out = ["each case with its mean, phases, rates and all reasons"]
    if others:
        left_out.append(f"side by side {format_names([group.title for group in others])}")
    if any(column.source is not None for study in found for table in study.tables for column in table.columns):
        left_out.append("what others measured")
    more = len(measured) - len(listed) - len(passed_over)
    said = [f"{len(passed_over)} more inconclusive, which look less slow (-v: all)"] if passed_over else []
    said += [f"{more} more in the tables below, with nothing to report"] if more else []
    return listed, shown, [*said, f"with -v: {', '.join(left_out)}"]


def _looks_slower(result: Result) -> float:
    latency = result.judgement.latency
    return latency.ratio if latency is not None else 0.0


def _not_run(said: str, command: str | None, width: int) -> list[str]:
    """A command stands on one line, however long, so that it can be copied."""
    lines = textwrap.wrap(said, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [*lines, f"  all of them: {command}"] if command is not None else lines


def _last(results: Sequence[Result], hint: str, width: int) -> list[str]:
    *counts, last = counted(results)
    return wrap_facts([*counts, last + hint], width)


@dataclass(frozen=True)
class Tiers:
    """Results by how they are known: each kind has a table of its own, and no comparison mixes them."""

    measured: list[Result]
    """With what came to no number, such as skipped cases."""
    predicted: dict[str, list[Result]]
    """By GPU."""
    compiled: list[Result]


def tiers(results: Sequence[Result]) -> Tiers:
    """The results apart, each kind in its order."""
    return Tiers(
        measured=[result for result in results if result.compiled is None and result.predicted is None],
        predicted=by_gpu(results),
        compiled=[result for result in results if result.compiled is not None],
    )


def _predicted(document: Document, cases: Sequence[Result], width: int, *, brief: bool) -> list[Line]:
    head = [Line(text) for text in wrap_facts(predicted_by(document, cases), width)]
    return [
        *head,
        *prediction_table(cases, width, brief=brief),
        *([] if brief else (Line(text) for text in the_only_prediction(document, width))),
    ]


def the_only_prediction(document: Document, width: int) -> list[str]:
    """All that is known of a predicted case, where it is the run's only one."""
    predicted = [result.predicted for result in document.results if result.predicted is not None]
    return prediction_detail(predicted[0].now, width) if len(predicted) == 1 else []


def predicted_by(document: Document, cases: Sequence[Result]) -> list[str]:
    """Facts of one GPU's predictions, the directory of their baselines (if any) last."""
    gpus = by_gpu(cases)
    folders = [PurePath(document.baselines, f"predicted-{gpu}") for gpu in gpus] if document.baselines else []
    return [*prediction_head(cases), *(f"{folder.as_posix()}/" for folder in folders)]


def environments(document: Document) -> list[list[str]]:
    """Facts of each environment that was measured in, the directory of its baselines (if any) last."""
    found = [result.record.environment for result in document.results if result.record is not None]
    seen: dict[str, Environment] = {slug(environment): environment for environment in found}
    return [
        [
            f"{e.device}: {e.device_name}{f', {e.cores} cores' if e.device == 'cpu' else ''}",
            f"torch {e.torch}",
            *([f"machine {e.machine}"] if e.machine is not None else []),
            *([f"{PurePath(document.baselines).as_posix()}/"] if document.baselines is not None else []),
        ]
        for e in seen.values()
    ]


def compiled_by(document: Document) -> list[str]:
    """Facts of what compiled the kernels, the directory of their baselines (if any) last."""
    tritons = {result.compiled.now.triton for result in document.results if result.compiled is not None}
    folders = sorted(tritons) if document.baselines is not None else []
    return [
        *compilers(document.results),
        *(f"{PurePath(document.baselines or '', f'triton-{version}').as_posix()}/" for version in folders),
    ]


def hint(document: Document, accept: str | None = None) -> str:
    """What takes the numbers as baselines, where that would change something: pytest's option, or ``accept``."""
    if document.baselines is None:
        return ""
    unsaved = [result.judgement for result in document.results if not result.saved]
    verdicts = {judgement.verdict for judgement in unsaved}
    if verdicts & {Verdict.NEW, Verdict.INCOMPARABLE}:
        return f"   (save: {accept or '--perf-update-new'})"
    worse = [judgement for judgement in unsaved if judgement.verdict is Verdict.REGRESSED]
    if any(drift.decides for judgement in worse for drift in judgement.drift.values()) or _by_turns(document):
        return f"   (accept: --perf-update {REASON_TO_FILL_IN})"
    if verdicts & {Verdict.REGRESSED, Verdict.IMPROVED}:
        return f"   (accept: {accept or '--perf-update'})"
    if any(map(_may_be_worse, unsaved)):
        return "   (settle: --perf-against=COMMIT)"
    return ""


def _may_be_worse(judgement: Judgement) -> bool:
    """Whether there is a slowdown to settle: what looks faster, and may have its cause elsewhere, needs nothing."""
    faster = judgement.latency is not None and judgement.latency.is_faster
    return judgement.verdict is Verdict.INCONCLUSIVE and not faster


def _by_turns(document: Document) -> bool:
    """Whether a stored number let pass what turns found: saving a new one by itself would not move its anchor."""
    return any(
        result.record is not None
        and result.record.paired is not None
        and result.judgement.verdict is Verdict.REGRESSED
        and "latency" in result.judgement.worse
        for result in document.results
    )


def unseen_failures(document: Document) -> list[str]:
    """What the table does not show of a run that was no success; pytest itself says it where it runs."""
    return [*ending(document), *other_failures(document)]


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
        return [f"failed beside the perf cases: {format_names(others)}"]
    if document.exitstatus == 1 and not any(result.failure for result in document.results):
        return ["the run failed (exit status 1), and for none of its perf cases: see pytest's own output"]
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
    return [f"measured in another environment too, by an earlier part that does not count: {named}"]


def findings_left_out(parts: Sequence[Document], merged: Document) -> list[str]:
    """Studies of which each part saw only some of what stands in the merged run."""
    lost = dict.fromkeys(study for part in parts for study in part.findings if study not in merged.findings)
    if not lost:
        return []
    return [f"findings of parts of a study are left out, no part has all of its results: {format_names(list(lost))}"]
