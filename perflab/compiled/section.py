"""The tables of compiled kernels in a run's report. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from perflab.compiled.records import CompiledCase
from perflab.compiled.report import compilers, kernel_rows, kernel_table
from perflab.report.lines import Line, wrap_facts
from perflab.report.section import Section
from perflab.report.view import View
from perflab.results import Document, Result


def lines(document: Document, results: Sequence[Result], width: int, view: View) -> list[Line]:
    """The table with its head."""
    return [*map(Line, wrap_facts(_head(document, results), width)), *kernel_table(results, width)]


def sections(document: Document, results: Sequence[Result], view: View) -> list[Section]:
    """The same for a page."""
    return [Section("kernel", kernel_rows(results), list(results), [_head(document, results)])]


def _head(document: Document, results: Sequence[Result]) -> list[str]:
    """Facts of what compiled the kernels, the directory of their baselines (if any) last."""
    tritons = {result.outcome.now.triton for result in results if isinstance(result.outcome, CompiledCase)}
    folders = sorted(tritons) if document.baselines is not None else []
    return [
        *compilers(results),
        *(f"{PurePath(document.baselines or '', f'triton-{version}').as_posix()}/" for version in folders),
    ]
