"""Makes the charts and tables of studies, and of levels side by side. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perflab.page.charts import Bar, bars
from perflab.page.pictures import Picture
from perflab.page.table import Cell, Column, PageTable, Row, number_cell, short, written
from perflab.tables.beside_text import amount
from perflab.tables.contents import RunContents
from perflab.tables.lines import MARKED, with_mark
from perflab.tables.view import CHARTED
from perflab.units import format_between, format_ratio

INTERVAL = "a line at the end of a bar: 95 % interval of the median, by the noise within its process"
_UNTOLD = "can't tell"
_WHY_UNTOLD = f"{_UNTOLD}: the noise is as large as the median"
Places = Mapping[str, str]
"""The id of each case's section on the page, by node id."""


@dataclass(frozen=True)
class SetView:
    """The pictures, the table and the notes of one study, or of one parameter's levels in a case."""

    title: str
    pictures: Sequence[Picture]
    table: PageTable
    notes: Sequence[str] = field(default_factory=list)


def sets_of(run: RunContents, places: Places) -> list[SetView]:
    """Return all studies of a run and all groups of levels; ``places`` has the ids of the cases' sections."""
    found = [_study(study, table, places) for study in run.tables.get("studies", ()) for table in study["tables"]]
    return [*found, *(_group(group, places) for group in run.tables.get("side_by_side", ()))]


def _study(study: dict[str, Any], table: dict[str, Any], places: Places) -> SetView:
    measured = [row for row in table["rows"] if "values" in row]
    charted = list(
        {
            one["unit"]: one
            for one in reversed(table["columns"])
            if one["unit"] in CHARTED and not one["name"].startswith("quoted")
        }.values()
    )[::-1]
    pictures = [picture for column in charted if (picture := _study_picture(study, column, measured)) is not None]
    columns = [Column("case"), *(Column(_title(one["name"]), number=True) for one in table["columns"])]
    rows = []
    for row in table["rows"]:
        first = Cell(_marked(row, "label"), href=_place(places, row["case"]), more=row.get("said", ""))
        rows.append(Row([first, *(_study_cell(row, one) for one in table["columns"])]))
    against = f", against {', '.join(study['versus'])}" if study["versus"] else ""
    notes = [*table.get("no_ratios", []), *study["findings"]]
    return SetView(f"Study: {study['study']}{against}", pictures, PageTable(columns, rows), notes)


def _place(places: Places, case: str) -> str | None:
    return f"#{places[case]}" if case in places else None


def _title(name: str) -> str:
    return name.replace("_", " ")


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


def _untold(row: dict[str, Any], low: float | None) -> str:
    """Return the text behind a median whose noise leaves no interval; empty for any other median."""
    return f", {_UNTOLD}" if low is None and row.get("noise") is not None else ""


def _captioned(what: str, given: Sequence[Bar], rows: Sequence[dict[str, Any]]) -> str:
    """Return the caption of a chart: its content, and the meaning of the marks that occur in the chart."""
    told = [what]
    told += [INTERVAL] if any(bar.low is not None for bar in given) else []
    told += [_WHY_UNTOLD] if any(bar.text.endswith(_UNTOLD) for bar in given) else []
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
        text = f"{written(value, unit)}{_untold(row, low) if name == 'median' else ''}"
        given.append(Bar(_marked(row, "label"), value, text, low, high, kind))
    if len(given) < 2:
        return None
    svg = bars(f"{study['study']}: {_title(name)}", given, lambda one: written(one, unit), unit)
    return Picture(svg, _captioned(_title(name), given, rows))


def _group(group: dict[str, Any], places: Places) -> SetView:
    timed = [level for level in group["levels"] if level.get("ns") is not None]
    given = []
    for level in timed:
        low, high = level.get("low_ns"), level.get("high_ns")
        kind = "quoted" if level.get("quoted") else "first" if level is timed[0] else ""
        text = f"{amount(level['ns'], 'ns')}{_untold(level, low)}"
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
    return SetView(title, pictures, PageTable(columns, rows), group.get("no_ratios", []))
