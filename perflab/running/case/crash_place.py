"""Tells where a test failed by perflab's word: a line of the test, as ``--tb=line`` and annotations of CI show it."""

from __future__ import annotations

import os
from typing import Any

import pytest

_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "")


def name_the_test(item: pytest.Item, raised: pytest.ExceptionInfo[BaseException], longrepr: Any) -> None:
    """Let ``longrepr`` name the test as the place of a failure without a traceback that perflab raised.

    The line is the one of the test that ran then, such as a call that hangs, or else the test's first line.
    """
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None and os.path.abspath(crash.path).startswith(_OWN):
        path, first, _ = item.reportinfo()
        lines = [entry.lineno for entry in raised.traceback if os.fspath(entry.path) == os.fspath(path)]
        crash.path, crash.lineno = os.fspath(path), (lines or [first or 0])[-1] + 1
