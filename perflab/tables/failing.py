"""The text of cases that failed, or did not run: lines of one width, a table, counts that changed. Pure.

The table has each quantity before and now. Quantities that failed the case stand first and are marked. A sentence says
what the machine code of both sides' Triton kernels leaves as the cause. Skipped cases have a line for each reason, with
the command that runs them.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perflab.results.measurement import KernelCode
from perflab.results.records import Change, Drift, Judgement, Shortage, Verdict
from perflab.results.result import Document, Result
from perflab.tables.lines import columns, in_words, names_of
from perflab.units import format_bytes, format_change, format_interval, format_names, format_ns, format_percent

REASON_TO_FILL_IN = '--perf-reason="…"'
"""The option with a reason to fill in; it is refused as it stands, since the reason must be in the user's words."""

WORSE = {"latency": "is slower", "memory": "needs more memory", "counts": "has higher counts"}
_BRIEFLY = {"latency": "slower", "memory": "more memory", "counts": "higher counts"}


IMPROVED = "is better than its baseline, and --perf-fail-improved fails such cases: save the new numbers"


def headline(judgement: Judgement, base: str) -> str:
    """Return in words how a case is worse: ``is slower than its baseline``.

    A quantity whose drift decides is worse than its anchor, by the sum of its accepted steps. Time and memory may both
    be named, one against the baseline and the other against the anchor.

    ``base`` is what the case was compared with: ``its baseline``, or ``in main (8009b65)``.
    """
    deciding = _deciding(judgement)
    plain = [WORSE[name] for name in judgement.worse if name not in deciding]
    parts = [f"{' and '.join(plain)} than {base}"] if plain else []
    parts += [f"{WORSE[name]} than {_since(name, drift)}" for name, drift in deciding.items()]
    return " and ".join(parts) or f"is worse than {base}"


def drift_sentences(judgement: Judgement) -> list[str]:
    """Return why a case is ``regressed`` although it passes against its last baseline; empty for every other case."""
    return [f"{_BRIEFLY[name]} than {_since(name, drift)}" for name, drift in _deciding(judgement).items()]


def _deciding(judgement: Judgement) -> dict[str, Drift]:
    drift = judgement.drift
    return {name: drift[name] for name in judgement.worse if name in drift and drift[name].decides}


def _since(name: str, drift: Drift) -> str:
    change = drift.change
    much = f"+{format_bytes(int(change.now - change.before))}" if name == "memory" else format_change(change.ratio)
    steps = (
        "1 accepted step, which did not pass the limit"
        if drift.steps == 1
        else f"{drift.steps} accepted steps, none of which passed the limit"
    )
    return f"its anchor of {drift.recorded[:10]} by {much}, in {steps}"


WIDTH = 80
"""Width of a failure's text, in characters."""
MARK = "failed"
_NOTICED = 0.01
"""The share by which instructions must differ to be shown; smaller differences occur in every run."""


def wrapped(text: str, indent: str = "  ") -> list[str]:
    """Wrap the text into lines of ``WIDTH``, with ``indent`` before all lines but the first."""
    return textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


@dataclass(frozen=True)
class Quantity:
    """A row of the table: the quantity's name, then a cell for each further column."""

    cells: Sequence[str]
    failed: bool = False


def failing_table(head: Sequence[str], rows: Sequence[Quantity]) -> list[str]:
    """Return the table's lines, with ``head`` first; names are aligned left, all other cells right."""
    ordered = sorted(rows, key=lambda row: not row.failed)
    cells = [(*head, ""), *((*row.cells, MARK if row.failed else "") for row in ordered)]
    return columns(cells, range(1, len(head)), indent="")


def changed(counts: Mapping[str, Change]) -> dict[str, Change]:
    """Return the counts that changed; of instructions only those that changed by more than ``_NOTICED``."""
    return {
        name: change
        for name, change in counts.items()
        if change.now != change.before and (not _wobbles(name) or abs(change.ratio - 1.0) > _NOTICED)
    }


def count_fact(name: str, change: Change) -> str:
    """Return the change of a count in words: ``operators 112 -> 118``."""
    return f"{in_words(name)} {int(change.before):,} -> {int(change.now):,}"


def count_row(name: str, change: Change) -> tuple[str, ...]:
    """Return a count's cells in the failure's table: name, before, now, change, interval, limit."""
    before, now = int(change.before), int(change.now)
    if change.limit is None:
        limit = "none"
    else:
        limit = f"+{format_percent(change.limit - 1.0)}" if change.limit > 1.0 else "exact"
    if _wobbles(name):
        return (in_words(name), f"{before:,}", f"{now:,}", format_change(change.ratio), "–", limit)
    between = "exact" if change.low is None or change.high is None else format_interval(change.low, change.high)
    return (in_words(name), f"{before:,}", f"{now:,}", f"{now - before:+,}", between, limit)


def _wobbles(name: str) -> bool:
    return name.endswith("instructions")


def kernel_code_text(code: KernelCode) -> str:
    """Return a sentence: the kernels whose machine code differs, or that it is the same and what follows from that."""
    found = {"differs": code.changed, "is new": code.new, "is gone": code.gone}
    differing = [f"{format_names(names)} {how}" for how, names in found.items() if names]
    if differing:
        same = [f"{format_names(code.same)} is the same"] if code.same else []
        return f"the machine code of {', of '.join([*differing, *same])}"
    others = "" if code.is_all else "in other kernels, "
    elsewhere = f"{others}in what kernels are given and how often, in copies, on the host or in the machine"
    return f"the machine code of {format_names(code.same)} is the same: whatever changed is {elsewhere}"


_NAMED = 3
"""The most cases of a reason that are named; more are only counted."""
_TOTAL, _BUDGET, _MEMORY = "--perf-total-budget", "--perf-budget", "memory"


def without_skipped(results: Sequence[Result]) -> list[Result]:
    """Return the results of cases that were not skipped, which have a line of their own."""
    return [result for result in results if result.judgement.verdict is not Verdict.SKIPPED]


def not_run(document: Document, *, listed: bool = False) -> list[tuple[str, str | None]]:
    """Return a line for each reason of skipped cases, and the command that runs the cases if more time is enough.

    ``listed``: each skipped case already has a line with its reason, so only reasons with a command are returned.
    """
    groups: dict[tuple[str, ...], list[Result]] = {}
    for result in document.results:
        if result.judgement.verdict is Verdict.SKIPPED:
            # The cases of one line have in common the limits that were too low, or another reason's words.
            short_of = result.judgement.short_of
            limits = tuple(f"{one.of} {one.given if one.of != _MEMORY else ''}" for one in short_of)
            groups.setdefault(limits or tuple(result.judgement.reasons), []).append(result)
    found: list[tuple[str, str | None]] = []
    for results in groups.values():
        first, many = results[0].judgement, len(results)
        names = f" ({format_names(names_of(results))})" if not listed and many <= _NAMED else ""
        lacks = [max(_all_of(results, one.of), key=lambda one: one.needed) for one in first.short_of]
        if lacks:
            command = _command(document, results, lacks)
            found.append((f"{many} not run: {' and '.join(map(_said, lacks))}{names}", command))
        else:
            found.append((f"{many} skipped: {'; '.join(first.reasons)}{names}", None))
    return [(said, command) for said, command in found if command is not None or not listed]


def _said(short_of: Shortage) -> str:
    given_ns, needed_ns = short_of.given * 1e9, short_of.needed * 1e9
    if short_of.of == _TOTAL:
        return f"the run's {format_ns(given_ns)} were over"
    if short_of.of == _MEMORY:
        return f"{format_bytes(int(short_of.needed))} of memory needed, {format_bytes(int(short_of.given))} free"
    return f"up to {format_ns(needed_ns)} needed, more than {short_of.of} ({format_ns(given_ns)})"


def _command(document: Document, results: Sequence[Result], short_of: Sequence[Shortage]) -> str | None:
    """Return the run's own command with more time; None if it is unknown, or the cases lack more than time."""
    if document.command is None or not {one.of for one in short_of} <= {_BUDGET, _TOTAL}:
        return None
    options = {one.of: f"{math.ceil(one.needed)}" for one in short_of}
    for one in short_of:
        if one.of == _TOTAL:  # in whole minutes, to cover these cases too; no limit if one of their needs is unknown
            needed_s = [found.needed for found in _all_of(results, _TOTAL)]
            options[_TOTAL] = f"{math.ceil((one.given + sum(needed_s)) / 60)}min" if all(needed_s) else ""
    if document.total_budget_s is not None:
        options.setdefault(_TOTAL, "")  # no limit
    return " ".join([document.command, *(f"{option}={value}" for option, value in options.items())])


def _all_of(results: Sequence[Result], limit: str) -> list[Shortage]:
    return [one for result in results for one in result.judgement.short_of if one.of == limit]
