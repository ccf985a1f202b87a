"""A large profile, as ``large_profile`` records it: every event is read, in time that grows with their number."""

from __future__ import annotations

from perflab.profiles.records import GAPS
from tests.harness.large_profile import recorded, step_of


def test_every_operator_of_the_step_is_read_in_every_recording() -> None:
    step, events = step_of(1500)
    profile = recorded(step)()
    ranges = len(("call", "forward", "backward", "optimizer", "Optimizer.step"))
    assert events >= 1500
    assert sum(row.instances for row in profile.rows if row.category not in GAPS) == events - ranges
    assert profile.notes == []
