"""Shows progress, as one line that is overwritten or as occasional lines in a log, and what the run waits for."""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from perflab.measure.stopping import Progress
from perflab.noting import case_id
from perflab.running.case.hanging import beat
from perflab.running.config.kinds import is_worker
from perflab.tables.escaping import one_line
from perflab.tables.lines import short_name

_TERMINAL_EVERY_S = 0.5
_LOG_AFTER_S = 15.0
"""The interval in seconds between a case's progress lines in a log, from the beginning of the case."""


class ProgressLine:
    """Writes progress directly to the terminal, past pytest's capturing, and only between samples."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reporter = None if is_worker(config) else config.pluginmanager.getplugin("terminalreporter")
        self._label = ""
        self._last_s = 0.0
        self._shown = False
        self._began_s = 0.0

    def for_case(self, item: pytest.Item) -> Progress:
        """Return the progress callback for one case."""
        self.begin(case_id(item))
        item.addfinalizer(self.clear)
        return self.show

    def begin(self, case: str) -> None:
        """Show this case's name from now on, and restart its clock."""
        self.label(case)
        self._shown = False
        self._last_s = self._began_s = time.monotonic()

    def label(self, case: str) -> None:
        """Show this case's name from now on, without restarting the clock."""
        self._label = one_line(short_name(case)) if case else ""

    def show(self, what: str, doing: str = "measuring") -> None:
        """Show the current step if the last line is old enough. Every call counts as a sign of life of the case."""
        beat(self._config)
        reporter, now_s = self._reporter, time.monotonic()
        if reporter is None:
            return
        terminal = reporter._tw.hasmarkup
        if now_s - self._last_s < (_TERMINAL_EVERY_S if terminal else _LOG_AFTER_S):
            return
        self._last_s = now_s
        so_far = "" if terminal else f", {now_s - self._began_s:.0f} s so far"
        self._write(f"{doing} {self._label}: {what}{so_far}")

    def waiting(self, what: str) -> None:
        """Print at once what the run waits for; a worker of pytest-xdist, which has no terminal, prints to stderr."""
        self._write(f"perf: {one_line(what)}")

    def _write(self, text: str) -> None:
        reporter = self._reporter
        with self._uncaptured():
            if reporter is None:
                with contextlib.suppress(OSError):
                    os.write(2, f"\n{text}\n".encode("utf-8", "replace"))
                return
            if reporter._tw.hasmarkup:
                reporter._tw.write("\r\x1b[2K" + text[: reporter._tw.fullwidth - 1])
            else:
                reporter.ensure_newline()
                reporter.write_line(text)
            reporter._tw.flush()
        self._shown = reporter._tw.hasmarkup

    def clear(self) -> None:
        """Erase the progress line, so that pytest's own output continues."""
        if self._shown and self._reporter is not None:
            with self._uncaptured():
                self._reporter._tw.write("\r\x1b[2K")
                self._reporter.currentfspath = None  # makes pytest print the file's name again before the next dot
        self._shown = False

    def _uncaptured(self) -> contextlib.AbstractContextManager[object]:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        return contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled()
