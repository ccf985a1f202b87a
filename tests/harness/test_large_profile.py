"""A large profile, as ``large_profile`` records it: every event is read."""

from __future__ import annotations

import torch

from perflab.profiles.records import GAPS
from tests.harness.large_profile import recorded, step_of


def test_every_operator_of_the_step_is_read_in_every_recording() -> None:
    cpu = torch.device("cpu")
    step, events = step_of(1500, cpu)
    profile = recorded(step, cpu)()
    ranges = len(("call", "forward", "backward", "optimizer", "Optimizer.step"))
    assert events >= 1500
    assert sum(row.instances for row in profile.rows if row.category not in GAPS) == events - ranges
    assert profile.notes == []
