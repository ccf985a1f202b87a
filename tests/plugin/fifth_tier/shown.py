"""Traced cases as text, and as plain data for a report."""

from __future__ import annotations

from collections.abc import Sequence

from perflab.results.traced import TracedCase

from perflab.base.data import changed
from perflab.results.result import Result
from perflab.tables.contents import Case, exact_quantities
from perflab.tables.failing import Quantity, count_row, failing_table
from perflab.tables.lines import Line, Row, Section, name_of, shown_verdict, verdict_text


def explain(result: Result, accept: str | None) -> str:
    """Return the text of a failure: each operator that is called more often."""
    grown = {name: one for name, one in result.judgement.counts.items() if one.now != one.before}
    rows = [Quantity(count_row(name, one)[:4], failed=one.now > one.before) for name, one in grown.items()]
    told = [f"{result.case} calls more operators", *failing_table(("", "before", "now", "change"), rows)]
    return "\n".join([*told, *([f"if intended: {accept}"] if accept is not None else [])])


def _calls(result: Result) -> int:
    assert isinstance(result.outcome, TracedCase)
    return sum(result.outcome.operators.values())


def lines(results: Sequence[Result]) -> list[Line]:
    """Return the table: a case's calls and verdict on a line."""
    rows = [Line(f"{name_of(one)}  {_calls(one):,}  {verdict_text(one)}", shown_verdict(one)) for one in results]
    return [Line("traced  operators  verdict"), *rows]


def sections(results: Sequence[Result]) -> list[Section]:
    """Return the table as a section of a page."""
    rows = [Row(name_of(one), {"operators": f"{_calls(one):,}"}, verdict_text(one), []) for one in results]
    return [Section("traced", rows, list(results))]


def describe(result: Result, case: Case) -> Case:
    """Return a report's case with the calls of each operator."""
    assert isinstance(result.outcome, TracedCase)
    calls = {name: float(calls) for name, calls in result.outcome.operators.items()}
    return changed(case, quantities=exact_quantities(calls, result.judgement.counts, {}))
