"""The summary table: one line a case, aligned, readable at 80 columns and without colour."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perflab.records import Record, Replicate, Result, Verdict
from perflab.report.counts import changed, count_fact
from perflab.report.drift import drift_sentences
from perflab.units import format_bytes, format_change, format_ns, format_rate

_COLUMNS = (("median", 9), ("spread", 8), ("vs base", 8), ("peak", 9))
_LEAST_NAME_WIDTH = 22
_ORDER = list(Verdict)


@dataclass(frozen=True)
class Line:
    """A line of the table. ``verdict`` is set on the line that carries it, so that it may be coloured."""

    text: str
    verdict: Verdict | None = None


def short_name(case: str) -> str:
    """``tests/perf/test_x.py::TestY::test_step[small]`` -> ``step[small]``."""
    return _parts(case)[-1].removeprefix("test_")


def _parts(case: str) -> list[str]:
    """Folders, module, classes and function of a node id; a parameter may hold any of the separators."""
    path, bracket, parameters = case.partition("[")
    file, *names = path.split("::")
    parts = [*file.removesuffix(".py").split("/"), *names]
    parts[-1] += bracket + parameters
    return parts


def table(results: Sequence[Result], width: int = 80) -> list[Line]:
    """All results as lines no longer than ``width`` (80 at least)."""
    verdict_width = max([len(verdict_text(result)) for result in results], default=0)
    fixed = sum(size for _, size in _COLUMNS) + 2 + max(verdict_width, len("verdict"))
    room = max(_LEAST_NAME_WIDTH, max(width, 80) - fixed)
    names = names_of(results)
    name_width = min(room, max([len(name) for name in names] + [len("case")]))
    header = "".join(title.rjust(size) for title, size in _COLUMNS)
    lines = [Line(f"{'case'.ljust(name_width)}{header}  verdict")]
    for name, result in zip(names, results, strict=True):
        shown = shorten(name, name_width).ljust(name_width)
        in_line = _skipped_in_line(shown, result, max(width, 80))
        if in_line is not None:
            lines.append(Line(in_line))
            continue
        cells = "".join(cell.rjust(size) for cell, (_, size) in zip(_cells(result), _COLUMNS, strict=True))
        lines.append(Line(f"{shown}{cells}  {verdict_text(result)}", result.judgement.verdict))
        lines += [Line(f"  {part}") for part in _details(result, max(width, 80) - 2)]
    return lines


@dataclass(frozen=True)
class Row:
    """A case in words, for tables that are no plain text. ``cells`` are by column; ``details`` say why."""

    name: str
    cells: dict[str, str]
    verdict: str
    details: list[str]


def rows(results: Sequence[Result]) -> list[Row]:
    """What ``table`` shows, cell by cell."""
    titles = [title for title, _ in _COLUMNS]
    return [
        Row(name, dict(zip(titles, _cells(result), strict=True)), verdict_text(result), _details(result, 10_000))
        for name, result in zip(names_of(results), results, strict=True)
    ]


def tally(results: Sequence[Result]) -> str:
    """Counts of verdicts: ``11 ok · 1 regressed · 2 new``."""
    counts = Counter(result.judgement.verdict for result in results)
    return " · ".join(f"{counts[verdict]} {verdict}" for verdict in _ORDER if counts[verdict])


def names_of(results: Sequence[Result]) -> list[str]:
    """Short names; where two cases would read the same, as much of what stands before them as tells them apart."""
    names = [short_name(result.case) for result in results]
    for depth in range(2, max([len(_parts(result.case)) for result in results], default=0) + 1):
        often = Counter(names)
        if len(often) == len(names):
            break
        for index, result in enumerate(results):
            if often[names[index]] > 1:
                names[index] = ":".join([*_parts(result.case)[-depth:-1], short_name(result.case)])
    return names


def shorten(name: str, width: int) -> str:
    """Cut in the middle: the end tells parameters, the beginning what it is."""
    if len(name) <= width:
        return name
    tail = (width - 1) * 2 // 3
    return name[: width - 1 - tail] + "…" + name[-tail:]


def _skipped_in_line(name: str, result: Result, width: int) -> str | None:
    """A skipped case on one line, its reason in place of the numbers that there are not; None if it won't fit."""
    if result.judgement.verdict is not Verdict.SKIPPED:
        return None
    line = f"{name}  skipped: {'; '.join(result.judgement.reasons)}"
    return line if len(line) <= width else None


def _cells(result: Result) -> tuple[str, str, str, str]:
    summary = result.record.summary if result.record else None
    if summary is None:
        return ("–", "–", "–", "–")
    spread = spread_of(result) or "–"
    latency = result.judgement.latency
    peak = format_bytes(summary.memory.peak_bytes) if summary.memory else "–"
    return (
        format_ns(shown_ns(result) or summary.median_ns),
        spread,
        format_change(latency.ratio) if latency else "–",
        peak,
    )


def shown_ns(result: Result) -> float | None:
    """The time of one call that a case is shown with; None where nothing was measured."""
    record, latency = result.record, result.judgement.latency
    if record is None or record.summary is None:
        return None
    # Where other processes were asked, in turns or not, theirs is the time that was judged.
    judged = record.fresh or record.paired or record.paired_to_anchor
    return (latency.now if latency is not None and judged else None) or record.summary.median_ns


def said_instead(result: Result) -> str:
    """What stands in the place of a case's numbers, where there are none: its verdict and why."""
    out_of_memory = result.record.out_of_memory if result.record is not None else None
    if result.judgement.verdict is Verdict.OOM or out_of_memory is not None:
        asked = out_of_memory.asked_bytes if out_of_memory is not None else None
        return "out of memory" + (f" ({format_bytes(asked)} asked for)" if asked is not None else "")
    return ": ".join([str(result.judgement.verdict), *result.judgement.reasons[:1]])


def spread_of(result: Result) -> str | None:
    """Half the width of the median's interval; None where there is nothing to tell it from."""
    summary = result.record.summary if result.record else None
    if summary is None or summary.samples < 2:
        return None
    return f"±{min(999.9, 100 * summary.noise):.1f}%"


def verdict_text(result: Result) -> str:
    """The verdict as the table has it: what fails in capitals."""
    verdict = result.judgement.verdict
    if result.saved:
        return f"{verdict}, saved"
    return verdict.upper() if verdict in (Verdict.REGRESSED, Verdict.FAILED, Verdict.OOM) else str(verdict)


def _details(result: Result, width: int) -> list[str]:
    """Facts below a case's line, and why its verdict is not a plain ok."""
    lines: list[str] = []
    if result.record is not None and result.record.summary is not None:
        lines = wrap_facts(_measured_facts(result.record, result.record.summary), width)
    memory = result.judgement.memory
    if memory is not None and memory.now != memory.before:
        grown = int(memory.now) - int(memory.before)
        lines.append(f"peak memory {'+' if grown > 0 else '-'}{format_bytes(abs(grown))}")
    lines += wrap_facts([count_fact(*item) for item in changed(result.judgement.counts).items()], width)
    if result.judgement.verdict is not Verdict.NEW:  # "new" says it all
        said = [*drift_sentences(result.judgement), *result.judgement.reasons]
        lines += textwrap.wrap("; ".join(said), width, break_long_words=False)
    return lines


def _measured_facts(record: Record, summary: Replicate) -> list[str]:
    several = len(summary.phases_ns) > 1
    facts = [f"{name} {format_ns(phase_ns)}" for name, phase_ns in summary.phases_ns.items() if several]
    if summary.first_ns is not None:
        facts.append(f"first {format_ns(summary.first_ns)}")
    if record.work or summary.first_ns is not None:
        deviation = f" ± {format_ns(summary.std_ns)}" if summary.samples > 1 else ""
        facts.append(f"mean {format_ns(summary.mean_ns)}{deviation}")
        facts += [_rate(unit, amount, summary) for unit, amount in record.work.items()]
    return facts


def _rate(unit: str, amount: float, summary: Replicate) -> str:
    """A unit's rate; one that begins with a phase's name is that phase's work."""
    phase, _, rest = unit.partition("_")
    if rest and phase in summary.phases_ns:
        return f"{phase} {format_rate(amount / (summary.phases_ns[phase] / 1e9), _WORK_UNITS.get(rest, rest))}"
    return format_rate(amount / (summary.median_ns / 1e9), _WORK_UNITS.get(unit, unit))


_WORK_UNITS = {"flops": "FLOP", "bytes": "B"}


def wrap_facts(facts: Sequence[str], width: int) -> list[str]:
    """Join facts by dots into lines no longer than ``width``, breaking only between facts."""
    lines: list[str] = []
    for fact in facts:
        if lines and len(lines[-1]) + 3 + len(fact) <= width:
            lines[-1] += f" · {fact}"
        else:
            lines.append(fact)
    return lines
