"""The table of measured cases: one line a case, readable at 80 columns and without colour.

A ``View`` determines the columns. Columns that do not fit beside each other stand in blocks, one below the other; the
last block ends with the verdict, and has the reasons.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perflab.measured.report.columns import (
    Column,
    in_blocks,
    named,
    ordered,
    own_columns,
    own_phases,
    phase_in,
    phases_of,
    quantiles_of,
    rate,
    told_of_tokens,
    whole,
    work_title,
)
from perflab.measured.report.facts import launching_fact, ranks_facts
from perflab.measured.report.judged import Reading, judged
from perflab.results.measurement import PER_TOKEN, Record
from perflab.results.records import Verdict
from perflab.results.result import Result
from perflab.tables.failing import changed, count_fact, drift_sentences
from perflab.tables.lines import Line, Row, names_of, shorten, shown_verdict, verdict_text, with_mark, wrap_facts
from perflab.tables.view import DEFAULT_VIEW, OF_TOKENS, QUANTILES, View, without_unknown
from perflab.units import format_bytes, format_names, format_ns, format_rate, format_signed

_LEAST_WIDTH = {"ns": 9, "bytes": 9}
_LEAST_OTHER_WIDTH = 8
_LEAST_NAME_WIDTH = 22
WORTH_TELLING = 0.05
"""Share of a cold call's time from which the report shows the time of an empty call."""
_REMEDY = "-> give each call fresh arguments, untimed: perf(fn, setup=make)"


def table(results: Sequence[Result], width: int = 80, view: View = DEFAULT_VIEW) -> list[Line]:
    """Return the table of all results, as lines no longer than ``width`` (80 at least)."""
    width = max(width, 80)
    view = without_unknown(view, own_columns(results))
    results = ordered(results, view)
    verdict_width = 2 + max([len(verdict_text(result)) for result in results] + [len("verdict")])
    names = names_of(results)
    if view.brief:  # no room for disturbances: ``MARKED`` explains the mark below the table
        names = [with_mark(name, disturbed=is_disturbed(result)) for name, result in zip(names, results, strict=True)]
    phases = phases_of(results)
    columns = [_Cells.of(named(name, phases), results) for name in view.columns]
    widths = [cells.width + verdict_width * (cells is columns[-1]) for cells in columns]
    blocks = in_blocks(widths, width - _name_width(names, 0))
    *before, last = ([columns[at] for at in block] for block in blocks)
    lines = []
    for block in before:
        name_width = _name_width(names, width - sum(cells.width for cells in block))
        lines.append(Line(_joined("case", [cells.column.title for cells in block], block, name_width)))
        for at, (name, result) in enumerate(zip(names, results, strict=True)):
            if result.record is not None and result.record.summary is not None:
                lines.append(Line(_joined(name, [cells.texts[at] for cells in block], block, name_width)))
    name_width = _name_width(names, width - verdict_width - sum(cells.width for cells in last))
    header = _joined("case", [cells.column.title for cells in last], last, name_width)
    lines.append(Line(f"{header}  verdict"))
    often = Counter((one.judgement.verdict, reason) for one in results for reason in one.judgement.reasons)
    shared = {reason: many for reason, many in often.items() if many > 1 and view.brief}
    for at, (name, result) in enumerate(zip(names, results, strict=True)):
        in_line = _skipped_in_line(shorten(name, name_width).ljust(name_width), result, width)
        if in_line is not None:
            lines.append(Line(in_line))
            continue
        row = _joined(name, [cells.texts[at] for cells in last], last, name_width)
        lines.append(Line(f"{row}  {verdict_text(result)}", shown_verdict(result)))
        facts, beside = ([], []) if view.brief else (_facts(result, width - 2, view), _beside(result, width - 2))
        lines += [Line(f"  {part}") for part in [*facts, *_why(result, width - 2, shared, brief=view.brief), *beside]]
    said = (f"{many} {verdict}: {reason}" for (verdict, reason), many in shared.items())
    return [*lines, *(Line(text) for one in said for text in textwrap.wrap(one, width, subsequent_indent="  "))]


@dataclass(frozen=True)
class _Cells:
    """A column with the text of each case, and the width of these texts with a gap before them."""

    column: Column
    texts: list[str]
    width: int

    @classmethod
    def of(cls, column: Column, results: Sequence[Result]) -> _Cells:
        texts = [column.text(column.value(result)) for result in results]
        least = _LEAST_WIDTH.get(column.unit, _LEAST_OTHER_WIDTH)
        return cls(column, texts, max([least, *(1 + len(text) for text in [column.title, *texts])]))


def _name_width(names: Sequence[str], room: int) -> int:
    """Return the width of the column of names, if other columns leave ``room``."""
    return min(max(room, _LEAST_NAME_WIDTH), max(map(len, [*names, "case"])))


def _joined(name: str, cells: Sequence[str], block: Sequence[_Cells], name_width: int) -> str:
    aligned = (cell.rjust(one.width) for cell, one in zip(cells, block, strict=True))
    return "".join([shorten(name, name_width).ljust(name_width), *aligned])


def rows(results: Sequence[Result], view: View = DEFAULT_VIEW) -> list[Row]:
    """Return the content of ``table`` cell by cell; the results must be in the view's order already."""
    view = without_unknown(view, own_columns(results))
    phases = phases_of(results)
    columns = [named(name, phases) for name in view.columns]
    return [
        Row(
            name,
            {column.title: column.text(column.value(result)) for column in columns},
            verdict_text(result),
            [*_facts(result, 10_000, view), *_why(result, 10_000), *_beside(result, 10_000)],
        )
        for name, result in zip(names_of(results), results, strict=True)
    ]


def _skipped_in_line(name: str, result: Result, width: int) -> str | None:
    """Return a skipped case on one line, with its reason in place of numbers; None if not skipped, or if too long."""
    if result.judgement.verdict is not Verdict.SKIPPED:
        return None
    line = f"{name}  skipped: {'; '.join(result.judgement.reasons)}"
    return line if len(line) <= width else None


def said_instead(result: Result) -> str:
    """Return the text in place of the numbers of a case that has none: its verdict and the reason."""
    out_of_memory = result.record.out_of_memory if result.record is not None else None
    if result.judgement.verdict is Verdict.OOM or out_of_memory is not None:
        asked = out_of_memory.asked_bytes if out_of_memory is not None else None
        return "out of memory" + (f" ({format_bytes(asked)} asked for)" if asked is not None else "")
    return ": ".join([str(result.judgement.verdict), *result.judgement.reasons[:1]])


def needs_a_look(result: Result) -> bool:
    """Whether a case needs attention beyond its numbers."""
    judgement, verdict = result.judgement, result.judgement.verdict
    if verdict in (Verdict.NEW, Verdict.INCOMPARABLE):
        return False
    memory = judgement.memory is not None and judgement.memory.now != judgement.memory.before
    said = memory or changed(judgement.counts) or judgement.reasons
    return bool(said) or verdict not in (Verdict.OK, Verdict.UNCHECKED)


def is_disturbed(result: Result) -> bool:
    """Whether anything disturbed the case while it was measured."""
    return bool(result.judgement.beside)


def _facts(result: Result, width: int, view: View) -> list[str]:
    """Return the numbers of a case that have no column, and the intervals of quantiles that have one."""
    reading = judged(result)
    if result.record is None or reading is None:
        return []
    return wrap_facts([*_measured_facts(result.record, reading), *_quantiles(reading, view)], width)


def _why(
    result: Result, width: int, elsewhere: Collection[tuple[Verdict, str]] = (), *, brief: bool = False
) -> list[str]:
    """Return why a case's verdict is not a plain ok, without the reasons that stand ``elsewhere``.

    A ``brief`` table omits the reasons of an inconclusive case: most are a busy machine. It shows shared reasons once.
    """
    lines: list[str] = []
    judgement, memory = result.judgement, result.judgement.memory
    if memory is not None and memory.now != memory.before:
        grown = int(memory.now) - int(memory.before)
        lines.append(f"peak memory {format_signed(grown, format_bytes)}")
    lines += wrap_facts([count_fact(*item) for item in changed(judgement.counts).items()], width)
    if judgement.verdict is not Verdict.NEW:  # "new" says it all
        reasons = [reason for reason in judgement.reasons if (judgement.verdict, reason) not in elsewhere]
        if brief and judgement.verdict is Verdict.INCONCLUSIVE:
            reasons = []
        lines += textwrap.wrap("; ".join([*drift_sentences(judgement), *reasons]), width, break_long_words=False)
    return [*lines, result.not_saved] if result.not_saved is not None else lines


def _beside(result: Result, width: int) -> list[str]:
    """Return lines on differences between a case's calls, and on disturbances that the verdict's reasons omit."""
    memory = result.record.summary.memory if result.record is not None and result.record.summary is not None else None
    what = "these are not" if memory is not None and memory.exact_bytes is not None else "no peak or count is"
    differ = [*memory.calls_differ, f"{what} exact {_REMEDY}"] if memory is not None and memory.calls_differ else []
    beside = [text for text in result.judgement.beside if text not in result.judgement.reasons]
    told = [f"{name}: {'; '.join(said)}" for name, said in (("calls differ", differ), ("disturbed", beside)) if said]
    return [line for one in told for line in textwrap.wrap(one, width, break_long_words=False)]


def _measured_facts(record: Record, reading: Reading) -> list[str]:
    several = len(reading.phases_ns) > 1
    empty_ns = record.measurement.empty_call_ns if record.measurement is not None else None
    facts = [f"{name} {format_ns(phase_ns)}" for name, phase_ns in reading.phases_ns.items() if several]
    if reading.first_ns is not None:
        facts.append(f"first {format_ns(reading.first_ns)}")
    facts += launching_fact(reading.median_ns, record.summary.launch_ns if record.summary is not None else None)
    if reading.mean_ns is not None and (record.work or reading.first_ns is not None):
        deviation = f" ± {format_ns(reading.std_ns)}" if reading.std_ns is not None else ""
        facts.append(f"mean {format_ns(reading.mean_ns)}{deviation}")
    facts += _of_tokens(reading)
    facts += [text for text in (_rate(unit, record, reading) for unit in record.work) if text is not None]
    if record.measurement is not None and record.measurement.ran_on:
        names = format_names(record.measurement.ran_on)
        facts.append(f"{names} ran on after a call; the time excludes that work")
    facts += ranks_facts(record)
    if empty_ns is not None and empty_ns >= WORTH_TELLING * reading.median_ns:
        facts.append(f"timing alone {format_ns(empty_ns)}")
    return facts


def _quantiles(reading: Reading, view: View) -> list[str]:
    """Return the quantiles whose columns are shown, with their intervals."""
    if reading.measurement is None or not any(name in view.columns for name in QUANTILES):
        return []
    found = quantiles_of(reading.measurement).items()
    return [f"{name} {_with_interval(named(name), *numbers)}" for name, numbers in found if name in view.columns]


def _of_tokens(reading: Reading) -> list[str]:
    """Return the statistics of a generation, and its problems."""
    if reading.measurement is None or reading.measurement.generation is None:
        return []
    facts = []
    for name, one in told_of_tokens(reading).items():
        column = named(name)
        if name.endswith(PER_TOKEN):
            facts.append(f"{column.text(whole(one))} {column.title}")
        elif name in OF_TOKENS:
            facts.append(f"{column.title} {_with_interval(column, one.value, one.low, one.high)}")
        else:
            facts.append(format_rate(one.value, column.title.removesuffix("/s")))
    return [*facts, *reading.measurement.generation.problems]


def _with_interval(column: Column, value: float, low: float | None, high: float | None) -> str:
    return column.text(value) + (f" ({column.text(low)}…{column.text(high)})" if low is not None else "")


def _rate(unit: str, record: Record, reading: Reading) -> str | None:
    """Return a unit's rate in words; a unit that begins with a phase's name is the work of that phase."""
    per_second = rate(unit, record, reading)
    if per_second is None:
        return None
    phase = phase_in(unit, own_phases(record))
    said = format_rate(per_second, work_title(unit.removeprefix(f"{phase}_") if phase else unit, ()))
    return f"{phase} {said}" if phase else said
