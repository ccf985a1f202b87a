"""Tests that read what kernels would have written: in a dry run that is zero, so they cannot pass, nor fail by it.

Only what is copied from the device to the host can reach a test: each ``.item()``, ``==`` in an ``if``, ``allclose``
does that. A test that has copied nothing knows shapes, sizes and errors, which are real.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from perflab.plugin.config.kinds import is_perf_case
from perflab.user_lines import line_of

if TYPE_CHECKING:
    from nocuda import Seen

VALUES = "perflab-values-read"
"""Name under which ``ValuesRead`` is registered as a plugin."""


class ValuesRead:
    """Knows the first line of the running test that read a value; skips tests whose outcome may rest on it."""

    def __init__(self) -> None:
        self.line: str | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """Note what fixtures read: the body may rest on it."""
        self.line = None
        with self._watching():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Note what the body reads. A perf case is judged by what it needs, whatever it reads."""
        with self._watching():
            if is_perf_case(item):
                return (yield)
            try:
                outcome = yield
            except AssertionError:
                if self.line is None:
                    raise
        if self.line is not None:
            pytest.skip(f"dry run: {self.line} reads values of CUDA tensors, and nothing is computed")
        return outcome

    def _watching(self) -> AbstractContextManager[None]:
        import nocuda

        return nocuda.library().observing(nocuda.Seen.COPY, self._note)

    def _note(self, what: Seen, function: str, size_bytes: int, source: int, target: int) -> None:
        if self.line is not None or not source >= 0 > target:
            return
        line = line_of(sys._getframe(1)) or "backward"
        if "/_pytest/" not in line:  # it shows a tensor of an assertion that has failed already
            self.line = line
