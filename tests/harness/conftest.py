"""What the tests of the pure rooms share: a clock that moves only when it is told to."""

from __future__ import annotations

import pytest

from perflab.measure import clock
from tests.harness.virtual_clock import VirtualClock


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> VirtualClock:
    """Stands in for the host's clock until the test ends."""
    virtual = VirtualClock()
    monkeypatch.setattr(clock, "read_ns", virtual.read_ns)
    return virtual
