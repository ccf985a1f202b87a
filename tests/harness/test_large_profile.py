"""A training step of many events, recorded as a profile does, with tiny tensors: every event is read."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from perflab.attribution.places import Places, module_names
from perflab.attribution.reachable import collector_off, reachable
from perflab.measure.calls.workload import Step
from perflab.profiles.events import entered
from perflab.profiles.reading import Reading, known_of
from perflab.profiles.recording import recorded_calls, recording, run_marked
from perflab.results.profile import GAPS, Profile

ROUNDS, CALLS = 2, 4
"""As few as a profile makes, but for the first call of each round, which is not read."""


class Block(nn.Module):
    """A block of a transformer, as far as its operators go."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        """x: (B, N, D)."""
        normed = self.norm(x)
        x = x + self.attention(normed, normed, normed)[0]
        out: Tensor = x + self.feed_forward(x)
        return out


def training_step(layers: int, device: torch.device) -> Step:
    """Forward, backward and AdamW's loop over parameters."""
    model = nn.Sequential(*(Block(8) for _ in range(layers))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    x = torch.ones(1, 4, 8, device=device)
    return Step(lambda: model(x).square().sum(), Tensor.backward, optimizer.step)


def step_of(events: int, device: torch.device) -> tuple[Step, int]:
    """A training step of so many events of the host at least, and how many it has."""
    one, two = (_count(training_step(layers, device), device) for layers in (1, 2))
    step = training_step(1 + max(0, -(-(events - one) // (two - one))), device)
    return step, _count(step, device)


def recorded(step: Step, device: torch.device) -> Callable[[], Profile]:
    """Record the step as a profile does; what comes reads it."""
    places = Places(module_names(reachable(step.roots)))
    with recording(device.type, shapes=True) as marked, places.marking():
        run_marked(step)
    rounds = []
    for _ in range(ROUNDS):
        with recording(device.type) as profiler:
            for _ in range(CALLS):
                run_marked(step)
        rounds.append(profiler)

    def read() -> Profile:
        reading = Reading(known_of(recorded_calls(marked, 1, details=True)[0], places.named))
        with collector_off():
            for one in rounds:
                reading.add(device.type, recorded_calls(one, CALLS))
        return reading.profile(device.type, reading.profiled_ns, [])

    return read


def _count(step: Step, device: torch.device) -> int:
    step.run()
    with recording(device.type) as profiler:
        run_marked(step)
    events = [call for root in recorded_calls(profiler, 1)[0].roots for call in root.walk()]
    return len({id(one) for one in entered(events)})  # what is recorded twice is one call


def test_every_operator_of_the_step_is_read_in_every_recording() -> None:
    cpu = torch.device("cpu")
    step, events = step_of(1500, cpu)
    profile = recorded(step, cpu)()
    ranges = len(("call", "forward", "backward", "optimizer", "Optimizer.step"))
    assert events >= 1500
    assert sum(row.instances for row in profile.rows if row.category not in GAPS) == events - ranges
    assert profile.notes == []
