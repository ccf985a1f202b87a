"""Sessions and judges of the stories start warm; the processes of candidates are forked from one for all tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from perflab.processes.child import Launch
from perflab.untrusted import command
from perflab.untrusted.stranger import Holding


@pytest.fixture(scope="session")
def ancestor() -> Iterator[Launch]:
    """What starts processes of candidates; importing PyTorch for each judge would be most of what judging costs."""
    with command.forking() as start:
        yield start


@pytest.fixture
def one_ancestor(ancestor: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """All judges in this process fork from the session's ancestor."""
    monkeypatch.setattr(command, "forking", lambda: contextlib.nullcontext(ancestor))


@pytest.fixture
def holding(one_ancestor: None) -> Iterator[Holding]:
    """How candidates are held that see no files."""
    with command.held("cpu", 60.0, [], []) as found:
        yield found
