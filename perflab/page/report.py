"""Renders a report of runs as one page: verdicts, failures, the table, every case, and possible disturbances."""

from __future__ import annotations

from collections.abc import Sequence

import perflab
from perflab.base.git import commit_page
from perflab.page.case_tables import compared_table, identity, rank, run_table
from perflab.page.case_view import case_view, disturbances_of
from perflab.page.pictures import differences
from perflab.page.render import render
from perflab.page.sets import sets_of
from perflab.page.table import TONES, Cell, Column, PageTable, Row, number_cell, short
from perflab.results.records import Environment, Verdict
from perflab.tables.beside_text import run_facts
from perflab.tables.contents import Contents, RunContents
from perflab.tables.lines import ACCEPTED, MARKED, said_of
from perflab.units import format_names

MOST_FINDINGS = 60
"""The most cases whose evidence stands above the table; the section of each case has the evidence too."""
MOST_UNFOLDED = 10
"""The most cases that are shown open above the table. If more verdicts are bad, all sections in the list of cases are
closed, and the table is the overview."""
MOST_UNDECIDED = 12


def report_page(contents: Contents) -> str:
    """Render the page of one run, or of several runs side by side."""
    several = len(contents.runs) > 1
    runs = [_run_view(run, number, several) for number, run in enumerate(contents.runs, 1)]
    names = format_names([run.label for run in contents.runs], most=3)
    return render(
        "report.html",
        title=f"perflab: {names}",
        runs=runs,
        several=several,
        compared=compared_table(contents) if several else None,
        legend=next(filter(None, map(_legend, contents.runs)), ""),
        differences=differences(contents) if several else [],
        version=perflab.__version__,
    )


def _run_view(run: RunContents, number: int, several: bool) -> dict[str, object]:
    """Return the data of a run, by their names in the template."""
    few = sum(TONES.get(said_of(case.verdict, saved=case.saved)) == "bad" for case in run.cases) <= MOST_UNFOLDED
    cases = [case_view(case, identity(number, at, several), is_open=few) for at, case in enumerate(run.cases)]
    cases.sort(key=lambda one: rank(one.verdict))
    failed = [one for one in cases if one.tone == "bad" or (one.case.failure and one.verdict != ACCEPTED)]
    undecided = [one for one in cases if one.verdict == Verdict.INCONCLUSIVE and not one.case.failure]
    disturbed: dict[str, list[str]] = {}
    for case in run.cases:
        for text in disturbances_of(case):
            disturbed.setdefault(text, []).append(case.name)
    order = [*Verdict, ACCEPTED]
    commit, *others = run_facts(run)
    tally = sorted(run.verdicts.items(), key=lambda pair: rank(pair[0], order))
    return dict(
        number=number,
        run=run,
        # They distinguish the run from other runs; the commit links to its page.
        facts=[Cell(commit, href=commit_page(run.repository, run.commit)), *map(Cell, others)],
        tally=[(verdict, many, TONES.get(verdict, "")) for verdict, many in tally],
        findings=failed[:MOST_UNFOLDED],
        folded=failed[MOST_UNFOLDED:MOST_FINDINGS],
        more_findings=max(0, len(failed) - MOST_FINDINGS),
        undecided=undecided[:MOST_UNDECIDED],
        more_undecided=max(0, len(undecided) - MOST_UNDECIDED),
        table=run_table(run, cases),
        sets=sets_of(run, {one.case.case: one.id for one in reversed(cases)}),
        cases=cases,
        environments=_environment_table(run.environments) if run.environments else None,
        disturbances=[f"{text}: {format_names(list(map(short, names)))}" for text, names in disturbed.items()],
        calibration=_machine_table(run),
        legend=_legend(run),
    )


def _legend(run: RunContents) -> str:
    """Return the meaning of the mark behind a case's name; empty if no case has the mark."""
    return MARKED if any(case.beside for case in run.cases) else ""


def _environment_table(given: Sequence[Environment]) -> PageTable:
    """Return the table of machine and versions, with a column for each environment."""
    values = {name: [getattr(one, name) for one in given] for name in Environment.__struct_fields__}
    rows = [
        Row([Cell(name.replace("_", " ")), *(Cell("–" if one is None else str(one)) for one in found)])
        for name, found in values.items()
        if any(one is not None for one in found)
    ]
    titles = [f"environment {at}" for at in range(1, len(given) + 1)] if len(given) > 1 else ["value"]
    return PageTable([Column("what"), *map(Column, titles)], rows)


def _machine_table(run: RunContents) -> PageTable | None:
    """Return the table of the machine over the run; None without data.

    The rows are the times of the calibration workloads, whose code never changes, and the machine's counters.
    """
    if not run.machine:
        return None
    columns = [Column("over all cases"), *(Column(one, number=True) for one in ("least", "median", "most"))]
    rows = [
        Row([Cell(one.of), *(number_cell(value, one.unit) for value in (one.least, one.median, one.most))])
        for one in run.machine
    ]
    return PageTable(columns, rows)
