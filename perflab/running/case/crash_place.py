"""Shows failures and skips by perflab's word with a line of the test as their place; of failures the text once.

Such failures have no traceback. pytest shows the place and a message of a failure under ``--tb=line``, in the short
summary, and whole where it finds itself in CI; other plugins annotate code with them.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


def name_the_test(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException], report: pytest.TestReport) -> None:
    """Let a report of a skip, or of a failure without a traceback, name the test as its place if perflab raised it.

    A failure's message becomes its first line.
    """
    shown: Any = report.longrepr
    crash = getattr(shown, "reprcrash", None)
    if isinstance(shown, tuple) and os.path.abspath(shown[0]).startswith(_OWN):
        report.longrepr = (*_place(item, raised), shown[2])
    elif crash is not None and os.path.abspath(crash.path).startswith(_OWN):
        crash.path, crash.lineno = _place(item, raised)
        crash.message = crash.message.partition("\n")[0]


def as_text(item: pytest.Item, text: str, raised: pytest.ExceptionInfo[BaseException] | None = None) -> Any:
    """Return what pytest shows of a failure of the test that ``text`` tells whole, for a report's ``longrepr``."""
    crash = ReprFileLocation(*_place(item, raised), text.partition("\n")[0])
    shown = ReprTraceback([ReprEntryNative([f"{text}\n"])], None, "native")
    return ExceptionChainRepr([(shown, crash, None)])


def _place(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException] | None) -> tuple[str, int]:
    """Return file and line of the test: the line that ran, such as a call that hangs, or else the test's first one."""
    path, first, _ = item.reportinfo()
    entries = raised.traceback if raised is not None else []
    lines = [entry.lineno for entry in entries if os.fspath(entry.path) == os.fspath(path)]
    return os.fspath(path), (lines or [first or 0])[-1] + 1
