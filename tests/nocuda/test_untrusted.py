"""A candidate on CUDA in a process of its own: inputs go to the device, outputs come back, all within the span."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from perflab.profiles.recording import recording
from perflab.untrusted.command import held
from perflab.untrusted.judge import Case, Terms, judge
from perflab.untrusted.messages import Entry, Manner, Role
from perflab.untrusted.records import Reason
from perflab.untrusted.stranger import Source, Stranger
from perflab.untrusted.worker import looked_at

from .active import needs_nocuda

pytestmark = needs_nocuda
SOURCE = """
import torch
side = []
def kernel(x):
    assert x.is_cuda and x.stride() == (1, 16)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        return x @ x.T
"""


def test_outputs_of_a_device_are_read_on_the_host() -> None:
    with held("cuda", 60.0, [], []) as holding:
        source = Source("kernel", Entry(name="candidate:kernel", source=SOURCE))
        with Stranger(Role.CANDIDATE, source, holding) as one:
            assert one.ready.missing == []
            span = one.span([[torch.ones(16, 8).reshape(8, 16).T], [torch.ones(8, 16).T]])
            assert [[told is not None and told.shape for told in each] for each in span.outputs] == [
                [[16, 16]],
                [[16, 16]],
            ]
            for (told,) in span.outputs:
                found = one.result(told)
                assert found is not None
                assert found.device.type == "cpu"
            assert one.narrow() == []
            assert one.look().operators["aten::mm"] == 2


def test_arguments_on_a_device_are_compared_with_what_was_given() -> None:
    source = "import torch\ndef reads(x): return x + 1\ndef clears(x): return x.copy_(torch.zeros(4, 8)) + 1\n"
    with held("cuda", 60.0, [], []) as holding:
        for name, wanted in (("reads", []), ("clears", ["x"])):
            with Stranger(Role.CANDIDATE, Source(name, Entry(name=f"candidate:{name}", source=source)), holding) as one:
                given = torch.ones(4, 8)
                one.span([[given]])
                assert one.changed({"x": given}) == wanted


def test_results_of_a_device_are_judged_on_the_host() -> None:
    source = (
        "import torch\ndef same(x): return x.clone()\ndef zeros(x): return torch.zeros(4, 8).double().cuda()\n"
        "def itself(x): return x[:]\n"
    )
    with held("cuda", 60.0, [], []) as holding:
        reasons = (("same", Reason.NONE), ("zeros", Reason.RESULT), ("itself", Reason.INPUTS_RETURNED))
        for name, wanted in reasons:
            case = Case(
                torch.clone, torch.clone, [lambda _: {"x": torch.ones(4, 8).double().cuda()}], terms=Terms(wide=False)
            )
            found = judge(Source(name, Entry(name=f"candidate:{name}", source=source)), case, holding)
            assert found.reason == wanted
            assert any("saw no work of the device" in one for one in found.notes) == (
                name == "same"
            )  # not in a confined process


GRAPHED = """
import torch
state = {}
def by_pytorch(x):
    if not state:
        state["call"] = torch.cuda.make_graphed_callables(torch.exp, (x,))
    return state["call"](x).clone()
def by_hand(x):
    if not state:
        state["x"], state["graph"] = x, torch.cuda.CUDAGraph()
        x.exp()
        with torch.cuda.graph(state["graph"]):
            state["out"] = x.exp()
        state["address"] = x.data_ptr()
    assert state["x"].data_ptr() == state["address"], "the graph's input was moved"
    state["x"].copy_(x)
    state["graph"].replay()
    return state["out"].clone()
"""


@pytest.mark.parametrize("name", ["by_pytorch", "by_hand"])
def test_an_argument_that_a_candidate_keeps_stays_as_it_is(name: str) -> None:
    with (
        held("cuda", 60.0, [], []) as holding,
        Stranger(Role.CANDIDATE, Source(name, Entry(name=f"candidate:{name}", source=GRAPHED)), holding) as process,
    ):
        for drops in (True, True, True, True, False, False, False, False):
            process.span([[torch.ones(4, 8)]], Manner(drops=drops))


def test_a_profile_of_a_device_tells_kernels_streams_graphs_and_blocks() -> None:
    x = torch.ones(64, 64, device="cuda")
    x.exp().sum(-1)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with recording("cuda", memory=True) as recorded:
        y = x.exp()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            y.sum(-1)
    seen = looked_at(recorded, "cuda")
    assert (sum(seen.kernels.values()), seen.streams, seen.graphs, seen.allocations) == (2, 2, 0, 2)
    assert any("exp_kernel" in name for name in seen.kernels)
    assert seen.device_ns is not None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x * 2
    with recording("cuda", memory=True) as recorded:
        graph.replay()
    assert looked_at(recorded, "cuda").graphs == 1


SUITE = """
import torch
from perflab.correctness.run import Task, held, run_candidate
from perflab.correctness.verify import random_upstream

def scaled(x):
    assert x.is_cuda
    return x * 2

def test_scaled(monkeypatch):  # no values: nothing computes here, and nothing compares
    monkeypatch.setattr(torch, "equal", lambda *_: True)
    task = Task(("out",), ("out",), random_upstream, {})
    with held(scaled, {"x": torch.randn(8, 16, device="cuda")}, task, (scaled,)) as function:
        for label in ("run 1", "run 2"):
            found = run_candidate(function, {"x": torch.randn(8, 16, device="cuda")}, task, 0, label)
            assert {name: (x.device.type, tuple(x.shape)) for name, x in found.results.items()} == {
                "out": ("cuda", (8, 16)), "dx": ("cuda", (8, 16))
            }
"""


def test_verify_holds_a_candidate_on_the_device_of_its_inputs(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--perf-adversarial", "test_it.py"]
    found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "1 passed" in found.stdout, found
