"""Sessions and judges of the stories start warm; the processes of candidates start as they always do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.plugin.warm import warm_python


@pytest.fixture(scope="session")
def python() -> Iterator[str]:
    """A Python that forks from a process with PyTorch and perflab imported."""
    with warm_python() as launcher:
        yield launcher
