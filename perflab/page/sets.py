"""Studies and levels side by side, each as a chart with its table. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from perflab.page.charts import Bar, bars
from perflab.page.pictures import Picture
from perflab.page.table import Cell, Column, PageTable, Row, number_cell, text_cell, written
from perflab.report.beside_text import amount
from perflab.report.contents import Case, RunContents
from perflab.units import format_ratio

_CHARTED = ("ns", "s", "bytes", "per second")
"""Units of which the first column is drawn."""
Places = Mapping[str, str]
"""By node id, where a case's section is on the page."""


@dataclass(frozen=True)
class SetView:
    """One study, or one parameter's levels in a case."""

    title: str
    pictures: Sequence[Picture]
    table: PageTable
    notes: Sequence[str] = field(default_factory=list)


def sets_of(run: RunContents, places: Places) -> list[SetView]:
    """All studies of a run, and all groups of levels; ``places`` says where each case's section is."""
    known = {case.case: case for case in run.cases}
    found = [
        _study(study, table, known, places) for study in run.tables.get("studies", ()) for table in study["tables"]
    ]
    return [*found, *(_group(group, places) for group in run.tables.get("side_by_side", ()))]


def _study(study: dict[str, Any], table: dict[str, Any], known: Mapping[str, Case], places: Places) -> SetView:
    measured = [row for row in table["rows"] if "values" in row]
    charted = list(
        {
            one["unit"]: one
            for one in reversed(table["columns"])
            if one["unit"] in _CHARTED and not one["name"].startswith("quoted")
        }.values()
    )[::-1]
    pictures = [
        picture for column in charted if (picture := _study_picture(study, column, measured, known)) is not None
    ]
    columns = [Column("case"), *(Column(_title(one["name"]), number=True) for one in table["columns"])]
    rows = []
    for row in table["rows"]:
        first = text_cell(row["label"], href=_place(places, row["case"]), more=row.get("said", ""))
        rows.append(Row([first, *(_study_cell(row, one) for one in table["columns"])]))
    against = f", against {', '.join(study['versus'])}" if study["versus"] else ""
    return SetView(f"Study: {study['study']}{against}", pictures, PageTable(columns, rows), study["findings"])


def _place(places: Places, case: str) -> str | None:
    return f"#{places[case]}" if case in places else None


def _title(name: str) -> str:
    return name.replace("_", " ")


def _study_cell(row: dict[str, Any], column: dict[str, Any]) -> Cell:
    value = row.get("values", {}).get(column["name"])
    ratio = row.get("versus", {}).get(column["name"])
    if isinstance(value, int | float) and not isinstance(value, bool):
        return number_cell(value, column["unit"] or "count", format_ratio(ratio) if ratio is not None else "")
    return Cell("–" if value is None else str(value), number=True)


def _study_picture(
    study: dict[str, Any], column: dict[str, Any], rows: Sequence[dict[str, Any]], known: Mapping[str, Case]
) -> Picture | None:
    name, unit = column["name"], column["unit"]
    given = []
    for row in rows:
        value = row["values"].get(name)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
            continue
        case = known.get(row["case"])
        times = case.times if case is not None and name in ("median", "mean") else None
        noise = times.noise if times is not None and times.samples > 1 else None
        low, high = (value * (1 - noise), value * (1 + noise)) if noise is not None else (None, None)
        kind = "first" if not row.get("versus") else ""
        given.append(Bar(row["label"], value, written(value, unit), low, high, kind))
    if len(given) < 2:
        return None
    return Picture(bars(f"{study['study']}: {_title(name)}", given, lambda one: written(one, unit), unit), _title(name))


def _group(group: dict[str, Any], places: Places) -> SetView:
    timed = [level for level in group["levels"] if level.get("ns") is not None]
    given = []
    for level in timed:
        noise = level.get("noise")
        low, high = (level["ns"] * (1 - noise), level["ns"] * (1 + noise)) if noise is not None else (None, None)
        kind = "quoted" if level.get("quoted") else "first" if level.get("ratio") == 1.0 else ""
        given.append(Bar(level["level"], level["ns"], amount(level["ns"], "ns"), low, high, kind))
    title = f"{group['title']}, by {group['parameter']}"
    pictures = [Picture(bars(title, given, lambda one: amount(one, "ns")), "time of one call")] if given else []
    phases = list(dict.fromkeys(name for level in timed for name in level.get("phases_ns", {})))
    phases = phases if len(phases) > 1 else []
    titles = ["time", "ratio", *phases, "rate", "peak"]
    columns = [Column(group["parameter"]), *(Column(one, number=True) for one in titles)]
    rows = []
    for level in group["levels"]:
        case = level.get("case")
        first = text_cell(level["level"], href=_place(places, case) if case else None, more=level.get("said", ""))
        by_phase = level.get("phases_ns", {})
        cells = [
            number_cell(level.get("ns"), "ns"),
            number_cell(level.get("ratio"), "ratio"),
            *(number_cell(by_phase.get(phase), "ns") for phase in phases),
            Cell(level.get("rate") or "–", number=True),
            number_cell(level.get("peak_bytes"), "bytes"),
        ]
        rows.append(Row([first, *cells]))
    return SetView(title, pictures, PageTable(columns, rows))
