"""Shows progress: one line that is overwritten, or an occasional line in a log; and whom the run waits for."""

from __future__ import annotations

import contextlib
import os
import time

import pytest

from perflab.measure.sampling import Progress
from perflab.plugin.case.hanging import beat
from perflab.plugin.noting import case_id
from perflab.plugin.stash import is_worker
from perflab.report.escaping import one_line
from perflab.report.lines import short_name

_TERMINAL_EVERY_S = 0.5
_LOG_AFTER_S = 15.0
"""In a log, a case that takes longer than this gets a line, and another each time as much has passed."""


class ProgressLine:
    """Writes progress past pytest's capturing, between samples only."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._reporter = None if is_worker(config) else config.pluginmanager.getplugin("terminalreporter")
        self._label = ""
        self._last_s = 0.0
        self._shown = False
        self._began_s = 0.0

    def for_case(self, item: pytest.Item) -> Progress:
        """The callback for one case."""
        self.begin(case_id(item))
        item.addfinalizer(self.clear)
        return self.show

    def begin(self, case: str) -> None:
        """Speak of this case from here on."""
        self.label(case)
        self._shown = False
        self._last_s = self._began_s = time.monotonic()

    def label(self, case: str) -> None:
        """Speak of this case from here on, and go on counting time."""
        self._label = one_line(short_name(case)) if case else ""

    def show(self, what: str, doing: str = "measuring") -> None:
        """Show what is under way, if something has to be said by now. It is the case's sign of life."""
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
        """Say at once what the run waits for; a worker of pytest-xdist, which has no terminal, says it on stderr."""
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
        """Take the line away; pytest goes on where it was."""
        if self._shown and self._reporter is not None:
            with self._uncaptured():
                self._reporter._tw.write("\r\x1b[2K")
                self._reporter.currentfspath = None  # pytest prints the file's name again before the next dot
        self._shown = False

    def _uncaptured(self) -> contextlib.AbstractContextManager[object]:
        capture = self._config.pluginmanager.getplugin("capturemanager")
        return contextlib.nullcontext() if capture is None else capture.global_and_fixture_disabled()
