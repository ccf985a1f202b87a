"""Prints a run, and the progress of a run, for commands."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence

from perflab.report.summary import summary
from perflab.results.result import Document


def show(document: Document, notes: Sequence[str], *, accept: str | None = None) -> None:
    """Print a run as text; see ``summary``."""
    for line in summary(document, page_width(), notes, accept=accept):
        print(line.text)


def page_width() -> int:
    """Return the width of text in columns: the terminal's, but at least 80."""
    return max(80, shutil.get_terminal_size((80, 24)).columns)


def progress(text: str) -> None:
    """Write a line of progress over the last one on a terminal; write nothing to a log."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
