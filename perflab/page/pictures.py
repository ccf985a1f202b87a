"""Draws the pictures of a case and of sets of cases: studies, levels side by side, each with its table. Pure.

A case has its readings against the baseline, its pairs, the parts of the peak and live memory. The differences between
runs are drawn too: ratios of the cases that they share, the largest difference first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from perflab.page.charts import Bar, Strand, bars, colour, ratios, stack, steps, strip
from perflab.page.table import Cell, Column, PageTable, Row, number_cell, short, title_of, written
from perflab.results.measurement import Paired
from perflab.results.records import says_nothing
from perflab.tables.beside_text import amount, name_in
from perflab.tables.contents import STEPS, Case, Contents, Quantity, RunContents, Times
from perflab.tables.lines import MARKED, in_words, with_mark
from perflab.tables.view import CHARTED
from perflab.units import format_between, format_change, format_count, format_ns, format_ratio

_SMALLEST = 0.002
"""The least share of a peak that is drawn and listed by itself; smaller parts are drawn and listed as one."""
_MOST_DIFFERENCES = 20
"""The most cases in one chart of the differences between runs; the table has all cases."""
_COMPARED = {"latency": "Time", "peak": "Peak memory"}
_SIDES = {"latency": ("faster", "slower"), "peak": ("less", "more")}


@dataclass(frozen=True)
class Picture:
    """A chart with its caption, and with the meaning of its colours if it has several."""

    svg: Markup
    caption: str = ""
    legend: Sequence[tuple[str, str]] = ()
    """The CSS class and the meaning of each colour."""


def pictures_of(case: Case) -> list[Picture]:
    """Draw all pictures for which the case has data, the readings first."""
    taken = [one for one in (case.paired, case.paired_to_anchor) if one is not None and (one.screen or one.confirm)]
    return [*_readings(case), *(_pair(case, one) for one in taken), *_composition(case), *_timeline(case)]


def _readings(case: Case) -> list[Picture]:
    """Draw the samples of this run, the readings of fresh processes, and the baseline's readings along one axis."""
    times, latency = case.times, case.quantities.get("latency")
    if times is None or latency is None:
        return []
    strands = [
        Strand("samples", "tick", times.samples_ns),
        Strand("quantiles", "tick", times.quantiles_ns),
        Strand("fresh processes", "dot", times.fresh_ns),
        Strand("set aside", "ring", times.set_aside_ns),
        Strand("baseline", "old", times.before_ns),
    ]
    in_turns = case.paired is not None or case.paired_to_anchor is not None
    before = None if in_turns else latency.before  # in an A/B comparison, interval and limit are those of the pairs
    interval = _interval(latency, before) if before is not None else None
    limit = before * latency.limit if before is not None and latency.limit is not None else None
    svg = strip(
        f"Time of one call of {case.name}",
        strands,
        format_ns,
        limit=limit,
        interval=interval,
        middle=latency.now if before is not None else None,
        description=_sampled(times),
    )
    told = [_sampled(times)]
    told += ["each dot is the median of one process"] if times.before_ns or times.fresh_ns else []
    told += ["dashed: the limit"] if limit is not None else []
    told += _no_interval(latency) if before is not None else []
    return [Picture(svg, "; ".join(told) + ".")]


def _interval(latency: Quantity, of: float = 1.0) -> tuple[float, float | None] | None:
    """Return the interval of the ratio, times ``of``; the upper end is None if unbounded.

    None: there is no interval, or it says nothing.
    """
    if latency.low is None or says_nothing(latency.low, latency.high):
        return None
    return of * latency.low, of * latency.high if latency.high is not None else None


def _no_interval(latency: Quantity) -> list[str]:
    """Return the text in place of an interval that says nothing; empty for any other interval."""
    return ["95 % interval: can't tell"] if says_nothing(latency.low, latency.high) else []


def _sampled(times: Times) -> str:
    calls = f" of {times.repetitions} calls" if times.repetitions > 1 else ""
    each = f": {STEPS + 1} of them, 5 % apart by rank" if times.quantiles_ns else ""
    return f"{format_count(times.samples, 'sample')}{calls}{each}, the median {format_ns(times.median_ns)}"


def _pair(case: Case, paired: Paired) -> Picture:
    latency = case.quantities.get("latency")
    strands = [
        Strand("first pairs", "dot", paired.screen),
        Strand("more pairs", "dot", paired.confirm),
        Strand("base / base", "old", paired.control),
    ]
    svg = strip(
        f"{case.name}, A/B with {paired.against}",
        strands,
        format_change,
        limit=latency.limit if latency is not None else None,
        interval=_interval(latency) if latency is not None else None,
        middle=latency.ratio if latency is not None else None,
    )
    told = [f"A/B with {paired.against}: each dot is the ratio of times in a pair of fresh processes"]
    told += _no_interval(latency) if latency is not None else []
    return Picture(svg, "; ".join(told) + ".")


def _composition(case: Case) -> list[Picture]:
    whole = sum(case.memory.values())
    if not whole:
        return []
    ordered = sorted(((name, size) for name, size in case.memory.items() if size > 0), key=lambda one: -one[1])
    large = [(name, float(size)) for name, size in ordered if size >= _SMALLEST * whole]
    rest = whole - sum(size for _, size in large)
    parts = [*large, *([("other", rest)] if rest > 0 else [])]
    svg = stack(f"Peak memory of {case.name}: {_bytes(whole)}", parts, _bytes)
    legend = [(colour(number), f"{name} {_bytes(size)}") for number, (name, size) in enumerate(parts)]
    return [Picture(svg, f"Peak memory of one call, {_bytes(whole)}.", legend)]


def _timeline(case: Case) -> list[Picture]:
    timeline = case.timeline
    if timeline is None or not timeline.highest_bytes:
        return []
    marks = [(name, at) for name, at in timeline.phases.items() if at < len(timeline.highest_bytes)]
    svg = steps(f"Live memory over one call of {case.name}", timeline.highest_bytes, _bytes, marks, "bytes")
    return [Picture(svg, "Live memory over one call: allocations and frees from left to right, the peak marked.")]


def _bytes(size: float) -> str:
    return amount(round(size), "bytes")


def differences(contents: Contents) -> list[Picture]:
    """Draw a chart for each later run and each quantity that differs in a case from the first run with that case."""
    found = []
    for number, name in itertools.product(range(1, len(contents.runs)), _COMPARED):
        shared = [
            (name_in(contents, one), ratio)
            for one in contents.compared
            if (ratio := one.ratios.get(name, [None] * len(contents.runs))[number]) is not None and ratio > 0
        ]
        other = sorted((one for one in shared if one[1] != 1.0), key=lambda one: -abs(math.log(one[1])))
        if not other:
            continue
        given = [Bar(case, ratio, format_change(ratio)) for case, ratio in other[:_MOST_DIFFERENCES]]
        cases = format_count(len(shared), "case")
        if len(given) < len(other):
            drawn = f"the {len(given)} that differ most of {cases}"
        else:
            drawn = f"{len(other)} of {cases} differ" if len(other) < len(shared) else cases
        title = f"{_COMPARED[name]} of run {number + 1}"
        told = [f"{title} against the first run that has numbers of a case, {drawn}"]
        told += ["not judged: noise alone makes times differ"] if name == "latency" else []
        svg = ratios(f"{title}: {title_of(name)}", given, format_change, *_SIDES[name])
        found.append(Picture(svg, "; ".join(told) + "."))
    return found


INTERVAL = "a line at the end of a bar: 95 % interval of the median, by the noise within its process"
_VAGUE = "can't tell"
_WHY_VAGUE = f"{_VAGUE}: the noise is as large as the median"
Places = Mapping[str, str]
"""The id of each case's section on the page, by node id."""


def sets_of(run: RunContents, places: Places) -> list[dict[str, object]]:
    """Return all studies of a run and all groups of levels, by their names in the template.

    Each study, and each parameter's levels in a case, has a title, pictures, a table and notes. ``places`` has the ids
    of the cases' sections.
    """
    found = [_study(study, table, places) for study in run.tables.get("studies", ()) for table in study["tables"]]
    return [*found, *(_group(group, places) for group in run.tables.get("side_by_side", ()))]


def _study(study: dict[str, Any], table: dict[str, Any], places: Places) -> dict[str, object]:
    measured = [row for row in table["rows"] if "values" in row]
    charted = list(
        {
            one["unit"]: one
            for one in reversed(table["columns"])
            if one["unit"] in CHARTED and not one["name"].startswith("quoted")
        }.values()
    )[::-1]
    pictures = [picture for column in charted if (picture := _study_picture(study, column, measured)) is not None]
    columns = [Column("case"), *(Column(in_words(one["name"]), number=True) for one in table["columns"])]
    rows = []
    for row in table["rows"]:
        first = Cell(_marked(row, "label"), href=_place(places, row["case"]), more=row.get("said", ""))
        rows.append(Row([first, *(_study_cell(row, one) for one in table["columns"])]))
    against = f", against {', '.join(study['versus'])}" if study["versus"] else ""
    notes = [*table.get("no_ratios", []), *study["findings"]]
    title = f"Study: {study['study']}{against}"
    return dict(title=title, pictures=pictures, table=PageTable(columns, rows), notes=notes)


def _place(places: Places, case: str) -> str | None:
    return f"#{places[case]}" if case in places else None


def _study_cell(row: dict[str, Any], column: dict[str, Any]) -> Cell:
    value = row.get("values", {}).get(column["name"])
    if column["name"] == "spread":
        return number_cell(value, "noise")
    if isinstance(value, int | float) and not isinstance(value, bool):
        ratio, between = (row.get(of, {}).get(column["name"]) for of in ("versus", "versus_intervals"))
        told = [format_ratio(ratio)] if ratio is not None else []
        return number_cell(
            value, column["unit"] or "count", " ".join([*told, *([format_between(*between)] if between else [])])
        )
    return Cell("–" if value is None else str(value), number=True)


def _marked(row: dict[str, Any], name: str) -> str:
    return with_mark(short(row[name]), disturbed=row.get("disturbed", False))


def _vague_mark(row: dict[str, Any], low: float | None) -> str:
    """Return the text behind a median whose noise leaves no interval; empty for any other median."""
    return f", {_VAGUE}" if low is None and row.get("noise") is not None else ""


def _captioned(what: str, given: Sequence[Bar], rows: Sequence[dict[str, Any]]) -> str:
    """Return the caption of a chart: its content, and the meaning of the marks that occur in the chart."""
    told = [what]
    told += [INTERVAL] if any(bar.low is not None for bar in given) else []
    told += [_WHY_VAGUE] if any(bar.text.endswith(_VAGUE) for bar in given) else []
    told += [MARKED] if any(row.get("disturbed") for row in rows) else []
    return "; ".join(told)


def _study_picture(study: dict[str, Any], column: dict[str, Any], rows: Sequence[dict[str, Any]]) -> Picture | None:
    name, unit = column["name"], column["unit"]
    given = []
    for row in rows:
        value = row["values"].get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            continue
        low, high = row.get("intervals", {}).get(name, (None, None))
        kind = "first" if not row.get("versus") else ""
        text = f"{written(value, unit)}{_vague_mark(row, low) if name == 'median' else ''}"
        given.append(Bar(_marked(row, "label"), value, text, low, high, kind))
    if len(given) < 2:
        return None
    svg = bars(f"{study['study']}: {in_words(name)}", given, lambda one: written(one, unit), unit)
    return Picture(svg, _captioned(in_words(name), given, rows))


def _group(group: dict[str, Any], places: Places) -> dict[str, object]:
    timed = [level for level in group["levels"] if level.get("ns") is not None]
    given = []
    for level in timed:
        low, high = level.get("low_ns"), level.get("high_ns")
        kind = "quoted" if level.get("quoted") else "first" if level is timed[0] else ""
        text = f"{amount(level['ns'], 'ns')}{_vague_mark(level, low)}"
        given.append(Bar(_marked(level, "level"), level["ns"], text, low, high, kind))
    title = f"{group['title']}, by {group['parameter']}"
    pictures = []
    if given:
        pictures.append(
            Picture(bars(title, given, lambda one: amount(one, "ns")), _captioned("time of one call", given, timed))
        )
    phases = list(dict.fromkeys(name for level in timed for name in level.get("phases_ns", {})))
    phases = phases if len(phases) > 1 else []
    titles = ["time", "ratio", *phases, "rate", "peak"]
    columns = [Column(group["parameter"]), *(Column(one, number=True) for one in titles)]
    rows = []
    for level in group["levels"]:
        case = level.get("case")
        place = _place(places, case) if case else None
        first = Cell(_marked(level, "level"), href=place, more=level.get("said", ""))
        by_phase = level.get("phases_ns", {})
        cells = [
            number_cell(level.get("ns"), "ns"),
            number_cell(
                level.get("ratio"), "ratio", format_between(*between) if (between := level.get("between")) else ""
            ),
            *(number_cell(by_phase.get(phase), "ns") for phase in phases),
            Cell(level.get("rate") or "–", number=True),
            number_cell(level.get("peak_bytes"), "bytes"),
        ]
        rows.append(Row([first, *cells]))
    table = PageTable(columns, rows)
    return dict(title=title, pictures=pictures, table=table, notes=group.get("no_ratios", []))
