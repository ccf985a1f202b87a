"""Skips tests that read values written by kernels: in a dry run the values are zero, so the outcome means nothing.

A test can see only values that are copied from the device to the host: ``.item()``, ``==`` in an ``if`` and
``allclose`` do so. A test that copies nothing sees shapes, sizes and errors, which are real.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import pytest

from perflab.base.user_lines import line_of
from perflab.running.config.kinds import is_perf_case

if TYPE_CHECKING:
    from nocuda import Seen

VALUES = "perflab-values-read"
"""The name under which ``ValuesRead`` is registered as a plugin."""


class ValuesRead:
    """Plugin that notes the running test's first line that reads a value, and then skips the test.

    A perf case is not skipped, nor is a test that raises another error than a failed assertion.
    """

    def __init__(self) -> None:
        self.line: str | None = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        """Note the first value that fixtures read, since the test's body may depend on the value."""
        self.line = None
        with self._watching():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None]:
        """Note the first value that the body reads. A perf case is judged by what it needs, so it is never skipped."""
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
        if "/_pytest/" not in line:  # pytest reads a tensor to show an assertion that has failed already
            self.line = line
