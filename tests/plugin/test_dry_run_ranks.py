"""Dry runs of ranks: unchanged code over NCCL without peers, and collectives that do not match are named."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.plugin.test_dry_run import Project, needs_nocuda, started

pytestmark = needs_nocuda
CASES = """
import pytest, torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

pytestmark = pytest.mark.perf(world_size=[8])
FAULTS = {}

def fault(function):
    FAULTS[function.__name__] = function
    return function

@fault
def none(x, rank):
    distributed.all_reduce(x)

@fault
def order(x, rank):
    first, second = distributed.all_reduce, lambda x: distributed.broadcast(x, 0)
    for call in (second, first) if rank else (first, second):
        call(x)

@fault
def size(x, rank):
    distributed.all_reduce(x[: 512 if rank else 1024])

@fault
def group(x, rank):
    distributed.all_reduce(x, group=PAIR if rank == 0 else None)

@fault
def one_more(x, rank):
    distributed.all_reduce(x)
    if rank == 0:
        distributed.barrier()

@fault
def not_taken(x, rank):
    if rank == 0:
        distributed.send(x, 7)
    distributed.all_reduce(x)

@fault
def dtype(x, rank):
    distributed.all_reduce(x.int() if rank else x)

@pytest.mark.parametrize("name", FAULTS)
def test_fault(perf, process_group, device, rank, name):
    global PAIR
    PAIR = distributed.new_group([0, 7])
    x = torch.ones(1024, device=device)
    perf(lambda: FAULTS[name](x, rank))

@pytest.mark.parametrize("waits", [True, False])
def test_background(perf, process_group, device, waits):
    x = torch.ones(1 << 20, device=device)
    def call():
        work = distributed.all_reduce(x, async_op=True)
        if waits:
            work.wait()
        x.mul_(2)
    perf(call)

def test_last_rank(perf, process_group, rank):
    assert rank == 0, "of its own"
    perf(distributed.barrier)

@pytest.mark.parametrize("how", ["ddp", "fsdp2", "tensor"])
def test_step(perf, process_group, device, how):
    layers = [nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)) for _ in range(4)]
    model = nn.Sequential(*layers).to(device)
    if how == "ddp":
        model = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=8)
    else:
        mesh = init_device_mesh("cuda", (4, 2), mesh_dim_names=("dp", "tp"))
        for layer in model:
            if how == "tensor":
                parallelize_module(layer, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
            fully_shard(layer, mesh=mesh["dp"] if how == "tensor" else None)
        fully_shard(model, mesh=mesh["dp"] if how == "tensor" else None)
    x = torch.randn(8, 1024, device=device)
    optimizer = torch.optim.AdamW(model.parameters())
    def step():
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    perf(step)
"""
Found = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    made = Project(tmp_path_factory.mktemp("ranks"))
    (made.folder / "test_it.py").write_text(CASES)
    return made


@pytest.fixture(scope="module")
def found(project: Project) -> Found:
    return project.run("--perf-dry-run=h100", "--perf-update-new")


def line(code: str) -> str:
    return f"test_it.py:{next(at for at, text in enumerate(CASES.splitlines(), 1) if text.strip() == code)}"


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        ("order", "all_reduce of 4.00 KiB float32, all ranks", "broadcast of 4.00 KiB float32, all ranks"),
        ("size", "all_reduce of 4.00 KiB float32, all ranks", "all_reduce of 2.00 KiB float32, all ranks"),
        ("group", "all_reduce of 4.00 KiB float32, ranks 2 of 8 by 7", "all_reduce of 4.00 KiB float32, all ranks"),
        ("one_more", "barrier, all ranks", "all_reduce of 4.00 KiB float32, all ranks"),
        ("not_taken", "send of 4.00 KiB float32, rank 7", ""),
        ("dtype", "all_reduce of 4.00 KiB float32, all ranks", "all_reduce of 4.00 KiB int32, all ranks"),
    ],
)
def test_collectives_that_do_not_match_fail_with_both_lines(found: Found, name: str, first: str, second: str) -> None:
    said, results = found
    result = results[f"test_fault[world8-{name}]"]
    assert result["judgement"]["verdict"] == "failed"
    (one,) = result["outcome"]["now"]["dry_run"]["mismatches"]
    assert (one["rank"], one["collective"], one["other_rank"], one["other_collective"]) == (0, first, 7, second)
    assert one["line"].startswith("test_it.py:")
    assert f"rank 0 calls {first} ({one['line']}), rank 7 calls {f'{second} (' if second else 'no more'}" in said


def test_ranks_that_match_pass_and_are_counted(found: Found) -> None:
    result = found[1]["test_fault[world8-none]"]
    assert result["judgement"]["verdict"] == "new"
    now = result["outcome"]["now"]
    assert now["world_size"] == 8
    assert now["collectives"]["collectives:all_reduce:float32"] == 1
    assert now["dry_run"]["kernels"] == {"ncclAllReduce": 1}
    assert now["exchanged"][0]["line"] == line("distributed.all_reduce(x)")


def test_a_result_that_is_used_before_it_is_waited_for_is_a_race(found: Found) -> None:
    said, results = found
    assert results["test_background[world8-True]"]["judgement"]["verdict"] == "new"
    (race,) = results["test_background[world8-False]"]["outcome"]["now"]["dry_run"]["races"]
    assert race["first"].startswith("c10d::allreduce_ on stream")
    assert race["first_lines"][0] == line("work = distributed.all_reduce(x, async_op=True)")
    assert race["second_lines"][0] == line("x.mul_(2)")
    assert "streams race" in said


def test_an_error_of_another_rank_fails_the_case_and_says_which_rank(found: Found) -> None:
    said, results = found
    assert results["test_last_rank[world8]"]["judgement"]["verdict"] == "failed"
    assert "AssertionError: of its own" in said
    assert "rank 7 of 8 was played" in said


@pytest.mark.parametrize("how", ["ddp", "fsdp2", "tensor"])
def test_the_peak_is_the_predicted_one(project: Project, found: Found, how: str) -> None:
    name = f"test_step[world8-{how}]"
    on_cuda = [sys.executable, "-m", "nocuda", "run", "--", sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    started(project.folder, *on_cuda, "--perf-predict", "--perf-json=predicted.json", "-k", f"step and {how}")
    (predicted,) = json.loads((project.folder / "predicted.json").read_text())["results"]
    assert predicted["case"].endswith(name)
    dry, now = found[1][name]["outcome"]["now"], predicted["outcome"]["now"]
    assert now["peak_bytes"] == dry["peak_bytes"]
    assert now["composition"] == dry["composition"]
    assert now["collectives"] == {name: count for name, count in dry["collectives"].items() if "waits" not in name}


def test_one_more_collective_is_a_regression(project: Project, found: Found) -> None:
    test = project.folder / "test_it.py"
    test.write_text(CASES.replace("\n@fault\ndef order", "    distributed.all_reduce(x)\n\n@fault\ndef order", 1))
    try:
        said, results = project.run("--perf-dry-run=h100", "-k", "fault and none")
    finally:
        test.write_text(CASES)
    assert {"collectives", "launches"} <= set(results["test_fault[world8-none]"]["judgement"]["worse"])
    assert said.count(": all_reduce of 4.00 KiB, 1 time") >= 2, "both lines"


def test_other_ranks_are_played_where_they_are_asked_for(project: Project, found: Found) -> None:
    _, results = project.run("--perf-dry-run=h100", "-k", "fault and one_more", "--perf-ranks=3,5", "--perf-check=off")
    assert "mismatches" not in results["test_fault[world8-one_more]"]["outcome"]["now"]["dry_run"]
