"""What could have disturbed a run: its environments, what cases report, how calibration and counters read. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.page.sentences import evidence_of
from perflab.page.table import Cell, Column, PageTable, Row, number_cell, short
from perflab.records import Environment
from perflab.report.contents import CALIBRATION, RunContents
from perflab.units import format_names


def environment_table(given: Sequence[Environment]) -> PageTable:
    """Machine and versions, a column for each environment."""
    plain = [{name: getattr(one, name) for name in one.__struct_fields__} for one in given]
    names = [name for name in plain[0] if any(one[name] is not None for one in plain)]
    columns = [
        Column("what"),
        *(Column(f"environment {at}" if len(given) > 1 else "value") for at in range(1, len(given) + 1)),
    ]
    rows = [
        Row(
            [
                Cell(name.replace("_", " ")),
                *(Cell("–" if one[name] is None else str(one[name])) for one in plain),
            ]
        )
        for name in names
    ]
    return PageTable(columns, rows)


def disturbances_of(run: RunContents) -> list[str]:
    """What went on beside cases, each sentence once with the cases that it is of."""
    found: dict[str, list[str]] = {}
    for case in run.cases:
        for text in evidence_of(case):
            if not text.startswith(("the machine ", CALIBRATION)):
                found.setdefault(text, []).append(case.name)
    return [f"{text}: {format_names([short(name) for name in names])}" for text, names in found.items()]


def machine_table(run: RunContents) -> PageTable | None:
    """How the calibration workloads, whose code never changes, read over the run; and the machine's counters."""
    if not run.machine:
        return None
    columns = [Column("over all cases"), *(Column(one, number=True) for one in ("least", "median", "most"))]
    rows = [
        Row([Cell(one.of), *(number_cell(value, one.unit) for value in (one.least, one.median, one.most))])
        for one in run.machine
    ]
    return PageTable(columns, rows)
