"""The tables of predictions in a run's report, one per GPU. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from perflab.predicted.report.detail import prediction_detail
from perflab.predicted.report.table import by_gpu, prediction_head, prediction_notes, prediction_rows, prediction_table
from perflab.results.predicted import PredictedCase
from perflab.results.result import Document, Result
from perflab.tables.lines import Line, Section, wrap_facts
from perflab.tables.not_run import without_skipped
from perflab.tables.view import View

_DETAIL_WIDTH = 100
"""The width, in columns, of the detail that a page unfolds."""


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """Return each GPU's table with its head; if the run has a single prediction, also the prediction in full."""
    found: list[Line] = []
    for cases in by_gpu(results if view.every else without_skipped(results)).values():
        found += map(Line, wrap_facts(_head(document, cases), width))
        found += prediction_table(cases, width, brief=view.brief)
        found += [] if view.brief else map(Line, _the_only_one(results, width))
    return found


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """Return each GPU's table as a page's section; if the run has a single prediction, the detail unfolds."""
    found = []
    for cases in by_gpu(results if view.every else without_skipped(results)).values():
        rows, detail = prediction_rows(cases), _the_only_one(results, _DETAIL_WIDTH)
        unfolded = {f"{rows[0].name}: in full": detail} if detail else {}
        found.append(Section("case", rows, cases, [_head(document, cases)], prediction_notes(cases), unfolded=unfolded))
    return found


def _the_only_one(results: Sequence[Result], width: int) -> list[str]:
    predicted = [result.outcome for result in results if isinstance(result.outcome, PredictedCase)]
    return prediction_detail(predicted[0].now, width) if len(predicted) == 1 else []


def _head(document: Document, cases: Sequence[Result]) -> list[str]:
    """Return the facts of one GPU's predictions; the directory of the baselines (if any) comes last."""
    gpus = by_gpu(cases)
    folders = [PurePath(document.baselines, f"predicted-{gpu}") for gpu in gpus] if document.baselines else []
    return [*prediction_head(cases), *(f"{folder.as_posix()}/" for folder in folders)]
