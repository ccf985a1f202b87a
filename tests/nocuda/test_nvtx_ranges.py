"""The ranges that a measurement opens for Nsight Systems, on CUDA's host side."""

from __future__ import annotations

from pathlib import Path

from .active import needs_nocuda, said_by

pytestmark = needs_nocuda

STEP = """
import torch
from torch import nn
from perflab.lab.attention import attention
from perflab.measurement.measurement import measure
from perflab.measure.stopping import Plan
from perflab.measure.calls.workload import Step, Workload

class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(16, 16)
    def forward(self, x):
        q = self.q(x).view(2, 8, 4, 4).transpose(1, 2)
        return attention(q, q, q, impl="naive")

model = nn.Sequential(Head()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.rand(2, 8, 16, device="cuda")
step = Step(lambda: model(x).sum(), torch.Tensor.backward, optimizer.step)
measure(step, torch.device("cuda"), Plan(budget_ns=1e7, warmup=3), lambda text: None, "case[a]")
"""


def ranges(lines: list[str]) -> list[str]:
    """Names of start/end ranges in the order in which they open, indented by how many are open."""
    depth, found = 0, []
    for line in lines:
        if line.startswith("nvtxRangeStart "):
            found.append("  " * depth + line.removeprefix("nvtxRangeStart "))
            depth += 1
        depth -= line.startswith("nvtxRangeEnd ")
    assert depth == 0
    return found


def test_each_call_its_phases_and_the_parts_of_attention_have_ranges_when_they_are_asked_for(tmp_path: Path) -> None:
    said_by(STEP, NOCUDA_TRACE=str(tmp_path / "trace"), PERFLAB_NVTX="1")
    lines = (tmp_path / "trace").read_text().splitlines()
    found = ranges(lines)
    first = found.index("case[a]: warm-up")
    assert found[first : first + 9] == [
        "case[a]: warm-up",
        "  call",
        "    phase forward",
        "      attention: naive",
        "        attention: scores",
        "        attention: softmax",
        "        attention: values",
        "    phase backward",
        "    phase optimizer",
    ]
    assert [one for one in found if not one.startswith(" ")] == [
        f"case[a]: {name}" for name in ("warm-up", "samples", "memory", "operators")
    ]
    assert any(one.startswith("nvtxRangePush perflab: at 0.q | ") for one in lines)
    assert any("nvtxRangePush aten::bmm, seq = " in one for one in lines)


def test_a_measurement_that_nobody_profiles_has_no_range_in_what_it_times(tmp_path: Path) -> None:
    said_by(STEP, NOCUDA_TRACE=str(tmp_path / "trace"), PERFLAB_NVTX="0")
    lines = (tmp_path / "trace").read_text().splitlines()
    assert ranges(lines) == [f"case[a]: {name}" for name in ("warm-up", "samples", "memory")]
    assert not any(line.startswith("nvtxRangePush") for line in lines)
