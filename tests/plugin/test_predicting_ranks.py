"""One rank of many, predicted: the user's own FSDP2 and DDP on fake tensors, gated like any other case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.plugin.conftest import Folder

CASE = """
import pytest, torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard

def net(width=1024):
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width, bias=False), nn.GELU()) for _ in range(4)])

def phases(model, x):
    optimizer = torch.optim.AdamW(model.parameters())
    def update():
        optimizer.step()
        optimizer.zero_grad()
    return dict(forward=lambda: model(x).square().mean(), backward=torch.Tensor.backward, optimizer=update)

def sharded(model):
    for layer in model:
        fully_shard(layer)
    return fully_shard(model)

@pytest.mark.perf(world_size=[4, 16])
def test_sharded(perf, process_group, device, world_size):
    x = torch.randn(8, 1024, device=device)
    perf.fits(lambda **_: phases(sharded(net().to(device)), x), sizes={"world_size": world_size})
    perf.step(**phases(sharded(net().to(device)), x))

@pytest.mark.perf(world_size=8)
def test_replicated(perf, process_group, device, rank):
    assert (rank, distributed.get_world_size()) == (0, 8)
    model = nn.parallel.DistributedDataParallel(net().to(device), bucket_cap_mb=8)
    perf.step(**phases(model, torch.randn(8, 1024, device=device)))

@pytest.mark.perf(world_size=8)
def test_exchange(perf, process_group, device):
    x = torch.ones(1 << 20, device=device)
    def call():
        distributed.all_reduce(x)
    perf(call)
"""
WEIGHTS = 4 * 1024 * 1024 * 4
"""Bytes of the model's parameters."""


class Ranks(Folder):
    """A project whose cases run in ranks that nobody starts."""

    def predict(self, *arguments: str, **expected: int) -> tuple[str, dict[str, Any]]:
        done = self.pytest("-m", "perf", "--perf-predict", "--perf-json=out.json", *arguments, **expected)
        found = json.loads((self.pytester.path / "out.json").read_text())["results"]
        return done.stdout.str(), {one["case"].partition("::")[2]: one for one in found}


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, python_with_compiler: str) -> Ranks:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(test_ranks=CASE)
    return Ranks(pytester, python_with_compiler)


def test_a_rank_has_its_share_and_what_it_communicates_is_gated(project: Ranks) -> None:
    said, found = project.predict("--perf-update", "--perf-network=dgx-h100", passed=4)
    four, sixteen, replicated = (
        found[name]["outcome"]["now"] for name in ("test_sharded[world4]", "test_sharded[world16]", "test_replicated")
    )
    for now, ranks in ((four, 4), (sixteen, 16)):
        assert now["world_size"] == ranks
        assert now["composition"]["parameters"] == WEIGHTS // ranks
        assert now["composition"]["optimizer state"] == pytest.approx(2 * WEIGHTS // ranks, rel=1e-3)
        assert now["composition"]["gathered"] >= WEIGHTS // 4, "a layer at work is whole"
        assert now["collectives"]["collectives:reduce_scatter:float32"] == 4
        assert now["collectives"]["collectives:all_gather:float32"] == 8, "before a layer's forward, and its backward"
    assert replicated["composition"]["parameters"] == WEIGHTS
    assert replicated["collectives"]["collective_bytes"] == WEIGHTS
    assert replicated["communication"]["sent_bytes"] == 2 * 7 * WEIGHTS // 8
    assert f"{replicated['communication']['bound_ns']:.0f}" == f"{2 * 7 / 8 * WEIGHTS / 450e9 * 1e9:.0f}"
    assert "rank 0 of 16" in said

    # From two worlds the others follow: here every block is a share or none, so exactly.
    worlds = {int(ranks): size for ranks, size in four["fit"]["worlds"].items()}
    assert worlds[4] == four["peak_bytes"]
    assert worlds[16] == sixteen["peak_bytes"]
    assert sorted(worlds.values(), reverse=True) == list(worlds.values())

    project.edit(
        "distributed.all_reduce(x)", "distributed.all_reduce(x); distributed.all_reduce(x[:8])", "test_ranks.py"
    )
    said, found = project.predict("-k", "exchange", failed=1)
    judgement = found["test_exchange"]["judgement"]
    assert set(judgement["worse"]) >= {"collectives", "collective_bytes", "collectives:all_reduce:float32"}
    assert "all_reduce of 4.00 MiB, 2 times" in " ".join(said.split())


def test_a_baseline_of_another_world_or_rank_is_not_compared(project: Ranks) -> None:
    project.predict("--perf-update", "-k", "exchange", passed=1)
    assert project.predict("-k", "exchange", passed=1)[1]["test_exchange"]["judgement"]["verdict"] == "ok"
    said, found = project.predict("-k", "exchange", "--perf-world=64", "--perf-ranks=3", passed=1)
    assert "rank 3 of 64" in said
    judgement = found["test_exchange"]["judgement"]
    assert judgement["verdict"] == "incomparable"
    assert judgement["reasons"] == ["baseline of rank 0 of 8, and this is rank 3 of 64"]


def test_a_rank_that_is_not_there_is_refused_and_another_world_that_cannot_be_built_is_a_note(project: Ranks) -> None:
    said = project.pytest("-m", "perf", "--perf-predict", "-k", "exchange", "--perf-ranks=8", errors=1).stdout.str()
    assert "--perf-ranks=8: the case has 8 ranks, 0 to 7" in said
    project.edit("lambda **_: phases", "lambda world_size: 1 / (16 - world_size) and phases", "test_ranks.py")
    _, found = project.predict("-k", "sharded and world4", passed=1)
    now = found["test_sharded[world4]"]["outcome"]["now"]
    assert "worlds" not in now["fit"]
    assert now["notes"] == [
        "no other worlds are known: build of perf.fits() raised ZeroDivisionError: division by zero"
    ]


IN_PARTS = """
import itertools
import pytest, torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

@pytest.mark.perf(world_size=4)
def test_sum(perf, process_group, device):
    mesh = init_device_mesh(device.type, (4,))
    x = DTensor.from_local(torch.ones(256, 1024, device=device), mesh, [Shard(0)])
    numbers = itertools.count()
    perf(lambda: x.sum(next(numbers) % 2))
"""


def test_whole_tensors_that_pytorch_asks_for_a_shape_are_none_of_the_rank_s(project: Ranks) -> None:
    """Each call sums over another dimension, so none finds its shape kept from the call before."""
    (project.pytester.path / "test_ranks.py").write_text(IN_PARTS)
    _, found = project.predict(passed=1)
    now = found["test_sum"]["outcome"]["now"]
    assert [row["operator"] for row in now["costs"]] == ["aten::sum"]
    assert 2**20 < now["peak_bytes"] < 2**20 + 2**14, "this rank's quarter of 4 MiB, and its sums"
