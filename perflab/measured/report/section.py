"""The tables of cases that ran, in a run's report, and what to doubt in them. Pure.

The tables have one line for each case, cases side by side, and studies.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import PurePath

from perflab.measured.report.columns import ordered, own_columns
from perflab.measured.report.facts import what_was_compared
from perflab.measured.report.judged import NO_TELLING, judged, share_of_rate, with_best_rates
from perflab.measured.report.side_by_side import (
    Group,
    in_brief,
    side_by_side,
    side_by_side_data,
    side_by_side_lines,
    side_by_side_markdown,
)
from perflab.measured.report.studies import Study, studies, study_data, study_lines, study_markdown, without_quotes
from perflab.measured.report.table import needs_a_look, rows, table
from perflab.profiles.text import lines as profile_lines
from perflab.results.environment import slug
from perflab.results.profile import Profile
from perflab.results.records import Environment, Verdict
from perflab.results.result import Document, Result
from perflab.tables.failing import without_skipped
from perflab.tables.lines import MARKED, Line, Section, name_of, names_of, short_name, wrap_facts
from perflab.tables.view import View, unknown_columns
from perflab.units import format_count, format_names, format_ns, format_percent, format_rate

_PAGE = 160
"""Characters in a line of a report page."""
_OTHER_TIME, _OTHER_TIME_OF_MODE = 0.25, 0.05
"""Smallest shares by which the profiled calls' time must differ from the case's to be reported.

The second applies to a case in another mode than the default: the mode is then the reason.
"""
_NO_TENSORS = "peak –: no tensor memory"
_MOST_UNDECIDED = 8
"""Number of inconclusive cases that a brief table lists although other tables have them too: the slowest-looking."""


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """Return the report's lines: environments, the table, levels side by side, studies, profiles."""
    measured = list(results) if view.every else without_skipped(results)
    groups, found = side_by_side(measured, view.side_by_side), studies(measured, document.findings)
    listed, left_out = measured, list[str]()
    if view.brief:
        listed, groups, left_out = _in_brief(measured, groups, found)
        found = [without_quotes(study) for study in found]
    memories = [
        one.record.summary.memory for one in listed if one.record is not None and one.record.summary is not None
    ]
    without_tensors = any(memory is not None and memory.exact_bytes == 0 for memory in memories)
    return [
        *(Line(text) for facts in environments(document) for text in wrap_facts(facts, width)),
        *(table(listed, width, view) if listed else []),
        *(Line(text) for one in _unknown(measured, view) for text in textwrap.wrap(one, width, subsequent_indent="  ")),
        *(Line(text) for one in left_out for text in textwrap.wrap(one, width, subsequent_indent="  ")),
        *side_by_side_lines(groups, width),
        *study_lines(found, width),
        *(Line(text) for text in _profiles(measured, width, brief=view.brief)),
        *([Line(MARKED)] if _has_marks(measured, groups, brief=view.brief) else []),
        *([Line(_NO_TENSORS)] if "peak" in view.columns and without_tensors else []),
    ]


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """Return the sections of a report page; empty if no case has a line."""
    measured = ordered(list(results) if view.every else without_skipped(results), view)
    if not measured:
        return []
    in_collected_order = [one for one in results if any(one is other for other in measured)]
    groups = side_by_side(in_collected_order, view.side_by_side)
    blocks = side_by_side_markdown(groups) + study_markdown(studies(in_collected_order, document.findings))
    marks = _has_marks(measured, groups, brief=False)  # rows have a line for it
    notes = [*([MARKED] if marks else []), *_unknown(measured, view)]
    unfolded = {
        f"profile of {name_of(one)}": _profiles([one], _PAGE, brief=False)
        for one in in_collected_order
        if one.record is not None and one.record.measurement is not None and one.record.measurement.profile is not None
    }
    facts = environments(document)
    return [Section("case", rows(measured, view), measured, facts, notes, blocks, unfolded)]


def notes(document: Document, results: Sequence[Result], width: int) -> list[str]:
    """Return lines below the tables: quantities that were not compared, and slowdowns that noise hides."""
    said = [*what_was_compared(results), *beyond_the_rate(results)]
    noisy = noisy_baselines(results, document.threshold, width) if document.baselines is not None else []
    return [*(text for one in said for text in textwrap.wrap(one, width, subsequent_indent="  ")), *noisy]


def data(document: Document, results: Sequence[Result]) -> dict[str, object]:
    """Return the data of studies and of levels side by side, each only if there are any."""
    found = {
        "studies": study_data(studies(results, document.findings)),
        "side_by_side": side_by_side_data(side_by_side(results)),
    }
    return {key: data for key, data in found.items() if data}


def _unknown(measured: Sequence[Result], view: View) -> list[str]:
    """Return a line on columns that are left out because no case has them; nothing if no case has numbers."""
    known = any(one.record is not None and one.record.summary is not None for one in measured)
    said = unknown_columns(view, own_columns(measured)) if known else []
    return [f"left out: {'; '.join(said)}"] if said else []


def _profiles(results: Sequence[Result], width: int, *, brief: bool) -> list[str]:
    """Return the lines of each profile, or the reason why a case has none."""
    found: list[str] = []
    for result in results:
        measurement = result.record.measurement if result.record is not None else None
        if measurement is None:
            continue
        if measurement.profile is not None:
            found += profile_lines(name_of(result), measurement.profile, width, brief=brief)
            found += [f"  {line}" for line in _other_time(result, measurement.profile)]
        if measurement.not_profiled is not None:
            said = f"no profile of {name_of(result)}: {measurement.not_profiled}"
            found += textwrap.wrap(said, width, subsequent_indent="  ")
    return found


def _other_time(result: Result, profile: Profile) -> list[str]:
    """Return a note if the case's own time differs from the time of the profiled calls."""
    summary = result.record.summary if result.record is not None else None
    most = _OTHER_TIME if result.mode.is_plain else _OTHER_TIME_OF_MODE
    if summary is None or abs(profile.timer_ns / summary.median_ns - 1) <= most:
        return []
    own = format_ns(summary.median_ns)
    if not result.mode.is_plain:
        return [f"plain calls were profiled; with {result.mode} the case takes {own}"]
    return [f"in the case's own measurement a call took {own}: shares hold better than times"]


def environments(document: Document) -> list[list[str]]:
    """Return the facts of each environment of the measurements, the baselines' directory (if any) last."""
    found = [result.record.environment for result in document.results if result.record is not None]
    seen: dict[str, Environment] = {slug(environment): environment for environment in found}
    return [
        [
            f"{e.device}: {e.device_name}" + (f", {format_count(e.cores, 'core')}" if e.device == "cpu" else ""),
            f"torch {e.torch}",
            *([f"machine {e.machine}"] if e.machine is not None else []),
            *([f"{PurePath(document.baselines).as_posix()}/"] if document.baselines is not None else []),
        ]
        for e in seen.values()
    ]


def _has_marks(measured: Sequence[Result], groups: Sequence[Group], *, brief: bool) -> bool:
    """Whether a table marks a disturbed case at its name."""
    named = {case for group in groups for case in group.cases} | {one.case for one in measured if one.study}
    return any(one.judgement.beside and (brief or one.case in named) for one in measured)


def _in_brief(
    measured: Sequence[Result], groups: Sequence[Group], found: Sequence[Study]
) -> tuple[list[Result], list[Group], list[str]]:
    """Shorten a long run: return the cases to list, the groups to show, and notes on what is left out.

    A case is listed if it needs attention or no other table has it.
    """
    elsewhere = {case for group in groups for case in group.cases} | {one.case for one in measured if one.study}
    undecided = [one for one in measured if one.case in elsewhere and one.judgement.verdict is Verdict.INCONCLUSIVE]
    undecided.sort(key=lambda one: -one.judgement.latency.ratio if one.judgement.latency is not None else 0.0)
    passed_over = {one.case for one in undecided[_MOST_UNDECIDED:]}
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


_NO_LIMIT = 1.0
"""A limit this share above the baseline detects nothing: code may take twice as long."""


def beyond_the_rate(results: Sequence[Result]) -> list[str]:
    """Return a line on the cases whose share of the matmul rate is implausible, and why."""
    beyond = []
    for result in with_best_rates(results):
        record, reading = result.record, judged(result)
        if record is not None and reading is not None:
            phases_ns = {f"{phase}_flops": phase_ns for phase, phase_ns in reading.phases_ns.items()}
            times_ns = {"flops": reading.median_ns} | phases_ns
            work = [(record.work[unit], taken_ns) for unit, taken_ns in times_ns.items() if unit in record.work]
            if any(share_of_rate(amount, taken_ns, record) == NO_TELLING for amount, taken_ns in work):
                beyond.append(result)
    if not beyond:
        return []
    rate = max((result.record.matmul_flops_per_second or 0.0) for result in beyond if result.record is not None)
    return [
        f"MFU: {NO_TELLING} for {format_names(names_of(beyond))}: more FLOP/s than plain matrix products reach here "
        f"({format_rate(rate, 'FLOP')}). Either other processes disturbed the measurement of that rate, "
        "or flops= is too large"
    ]


def noisy_baselines(results: Sequence[Result], threshold: float, width: int) -> list[str]:
    """Return lines on slowdowns that the run cannot detect: cases whose limit is more than twice the threshold."""
    limits = {
        result.case: result.judgement.latency.limit - 1.0
        for result in results
        if result.judgement.latency is not None
        and result.judgement.latency.limit is not None
        and not (result.saved or result.judgement.few_runs)
    }
    noisy = {case: limit for case, limit in limits.items() if limit > 2 * threshold}
    if not noisy:
        return []
    worst = max(noisy, key=lambda case: noisy[case])
    bounds = [limit for limit in sorted(noisy.values()) if limit < _NO_LIMIT]
    lost = len(noisy) - len(bounds)
    span = list(dict.fromkeys(format_percent(limit) for limit in (bounds[:1] + bounds[-1:])))
    one = len(noisy) == 1
    said = [f"{'detects' if one else 'detect'} only changes above {' to '.join(span)}"] if span else []
    said += [f"cannot detect a doubled time ({lost})"] if lost else []
    many = f"{len(noisy)} of {len(limits)} baseline{'s' * (len(limits) != 1)}"
    text = f"{many} {'is' if one else 'are'} noisy, and {', or '.join(said)}"
    return [
        *textwrap.wrap(text, width, subsequent_indent="  "),
        f"  (worst: {short_name(worst)}); save {'it' if one else 'them'} again on a quieter machine: --perf-update",
    ]
