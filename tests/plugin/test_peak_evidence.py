"""What a user is told of a case that needs more memory: which blocks are new at its peak, by module and line.

Also ``--perf-snapshots`` in measured cases, and ``memory_snapshot``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from perflab.cli import main
from perflab.snapshots.analysis import alive_at
from perflab.snapshots.reading import read_snapshots
from tests.plugin.conftest import Project, begin_repository, commit, one_line

STEP = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        mask = torch.ones(ROWS, 16)
        return torch.tanh(self.inner(x)) * mask

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, WIDTH)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()
"""
CASE = """
import torch
from conftest import Virtual
from net import Net

def test_step(perf):
    net, data = Net(), torch.ones(64, 16)
    optimizer = torch.optim.AdamW(net.parameters())

    def forward():
        Virtual.now_ns += 20_000_000
        return net(data)

    perf.step(forward=forward, backward=lambda loss: loss.backward(),
              optimizer=lambda: (optimizer.step(), optimizer.zero_grad()))
"""
ROW = 16 * 4
"""Bytes of a row of a mask."""


@pytest.fixture
def python(python_with_compiler: str) -> str:
    return python_with_compiler  # optimizers import it


@pytest.fixture
def step(project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project whose case trains a model that stands in a file of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project.test_file.write_text(CASE)
    model(project)
    return project


def model(project: Project, *, rows: int = 1, width: int = 4, first: str = "") -> None:
    """What it is from now on: ``rows`` of each mask, ``width`` of the head, lines that come before all others."""
    text = first + STEP.replace("ROWS", str(rows)).replace("WIDTH", str(width))
    (project.pytester.path / "net.py").write_text(text)


def saved(project: Project) -> None:
    """With a baseline that is committed with its code."""
    begin_repository(project)
    project.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    commit(project, "baseline")


def grown(project: Project) -> int:
    """By how much the gate found that the peak has grown."""
    memory = project.result()["judgement"]["memory"]
    return int(memory["now"] - memory["before"])


def test_a_case_that_needs_more_memory_names_what_is_new_at_its_peak(step: Project) -> None:
    saved(step)
    model(step, rows=64, first="# two lines\n# that move all others\n")
    said = one_line(step.run("--perf-json=results.json", failed=1))
    assert "blocks of aten::ones in blocks.* (net.py:13 < net.py:24 < test_story.py:12), activations" in said
    found = step.result()["outcome"]["explained_peak"]
    largest = found["parts"][0]
    assert (largest["category"], largest["operator"], largest["module"], largest["line"]) == (
        "activations",
        "aten::ones",
        "blocks.*",
        "net.py:13",
    )
    assert largest["change_bytes"] == 3 * 63 * ROW
    assert found["now_bytes"] - found["before_bytes"] == grown(step) == sum(x["change_bytes"] for x in found["parts"])


def test_a_larger_model_is_seen_in_all_that_is_kept_for_its_parameters(step: Project) -> None:
    saved(step)
    model(step, width=64)
    step.run("--perf-json=results.json").assert_outcomes(failed=1)
    parts = step.result()["outcome"]["explained_peak"]["parts"]
    held = {part["category"]: part["change_bytes"] for part in parts if not part.get("operator")}
    more = 4 * (60 * 16 + 60)
    assert held == {"parameters": more, "optimizer state": 2 * more}
    assert {part["module"] for part in parts if not part.get("operator")} == {"head"}
    assert sum(part["change_bytes"] for part in parts) == grown(step)


def test_two_versions_that_are_compared_are_told_apart_in_the_same_way(step: Project) -> None:
    begin_repository(step)
    model(step, rows=64)
    result = step.run("--perf-against=HEAD", "--perf-budget=0.5", "--perf-json=results.json", failed=1)
    assert "aten::ones in blocks.* (net.py:11 < net.py:22 < test_story.py:12)" in one_line(result)
    assert step.result()["outcome"]["explained_peak"]["parts"][0]["change_bytes"] == 3 * 63 * ROW


def test_a_step_that_runs_out_of_memory_says_what_was_alive_and_what_would_free_it(step: Project) -> None:
    model(step, rows=64)
    text = (step.pytester.path / "net.py").read_text()
    (step.pytester.path / "net.py").write_text(
        text.replace("return self.head(x)", "torch.empty(2**50, dtype=torch.uint8)\n        return self.head(x)")
    )
    result = step.run("--perf-json=results.json", "-v", skipped=1)
    assert "out of memory: 1024 TiB asked for, by aten::empty in Net (net.py:23 < test_story.py:12)" in one_line(result)
    alive = one_line(result).partition("alive then: ")[2]
    assert alive.startswith("43.5 KiB, of which 36.0 KiB made by the forward in blocks.*, ")
    assert "checkpointing blocks.* would free up to 36.0 KiB of it" in alive
    (one,) = step.results()
    assert sum(part["size_bytes"] for part in one["outcome"]["out_of_memory"]["alive"]) > 36 * 1024


def test_a_baseline_that_is_not_committed_is_a_reason_and_evidence_can_be_turned_off(step: Project) -> None:
    begin_repository(step)
    model(step, first="# not committed\n")
    step.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    model(step, rows=64)
    assert "at the peak: could not look, because its baseline is not committed" in one_line(step.run(failed=1))
    assert "at the peak" not in one_line(step.run("--perf-evidence=off", failed=1))


def test_a_base_that_does_not_run_is_a_reason_and_hides_no_regression(step: Project) -> None:
    needed = step.pytester.path / "needed.txt"
    model(step, first="open(__file__.replace('net.py', 'needed.txt'))\n")
    begin_repository(step)
    needed.write_text("")
    with (step.pytester.path / ".gitignore").open("a") as file:
        file.write("needed.txt\n")
    step.run("--perf-update", "--perf-replicates=1").assert_outcomes(passed=1)
    commit(step, "baseline")
    needed.unlink()
    model(step, rows=64)
    assert "at the peak: could not look, because" in one_line(step.run(failed=1))


def test_a_case_that_needs_more_memory_leaves_both_snapshots_and_shows_what_is_new(project: Project) -> None:
    project.run("--perf-update", "--perf-snapshots").assert_outcomes(passed=1)
    folder = project.pytester.path / ".perflab/snapshots"
    assert [path.name for path in folder.iterdir()] == ["test_story.py_test_work-measured.json"]
    project.cost(ms=100, kib=1536)
    project.run("--perf-snapshots", "--perf-check=off").assert_outcomes(passed=1)  # and takes nobody's place
    project.run("--perf-snapshots", failed=1).stdout.fnmatch_lines(
        [
            "*work needs more memory than its baseline*",
            "memory: peak of the snapshot +1.00 MiB, of which",
            "  +1.00 MiB *: test_story.py:10",
            "in full: perflab memory .perflab/snapshots/test_story.py_test_work-measured.json *-measured-now.json",
        ]
    )
    both = sorted(str(path) for path in folder.iterdir())
    assert len(both) == 2
    assert main(["memory", *both]) == 0
    project.cost(ms=100, kib=512)
    project.run("--perf-snapshots").assert_outcomes(passed=1)
    assert len([*folder.iterdir()]) == 1


def test_phases_of_a_step_are_stages_of_its_snapshot(project: Project) -> None:
    project.pytester.makepyfile(
        test_step="""
        import torch
        from conftest import Virtual

        def test_step(perf):
            def forward():
                Virtual.now_ns += 100_000_000
                return layer(data).square().sum()

            layer, data = torch.nn.Linear(64, 64), torch.randn(32, 64)
            optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
            perf.step(
                forward=forward, backward=lambda loss: loss.backward(),
                optimizer=lambda: (optimizer.step(), optimizer.zero_grad()),
            )
        """
    )
    project.run("--perf-snapshots", "--perf-check=off", "test_step.py").assert_outcomes(passed=1)
    (path,) = (project.pytester.path / ".perflab/snapshots").iterdir()
    (found,) = read_snapshots(path)
    assert [stage.name for stage in found.stages] == ["forward", "backward", "optimizer"]
    assert "Linear" in {block.module for block in found.blocks}


def test_the_fixture_knows_the_models_in_a_test_s_hands(project: Project) -> None:
    project.pytester.makepyfile(
        test_block="""
        import torch

        def test_block(memory_snapshot):
            model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
            data = torch.randn(32, 64)
            with memory_snapshot("block"):
                model(data).sum().backward()
        """
    )
    project.pytester.runpytest_subprocess("test_block.py").assert_outcomes(passed=1)
    (path,) = (project.pytester.path / ".perflab/snapshots").iterdir()
    (found,) = read_snapshots(path)
    of_weights = 2 * 4 * 64 * 65
    for category, moment in (("parameters", 0), ("gradients", found.moments)):
        sizes = [block.size_bytes for block in alive_at(found, moment) if block.category == category]
        assert sum(sizes) == of_weights, category
    assert {"0", "1"} <= {block.module for block in found.blocks if block.allocated_at}


def test_a_case_that_runs_out_of_memory_leaves_both_snapshots(project: Project) -> None:
    project.run("--perf-update", "--perf-snapshots").assert_outcomes(passed=1)
    folder = project.pytester.path / ".perflab/snapshots"
    (good,) = folder.iterdir()
    before = good.read_bytes()
    project.cost(ms=100, kib=2**41)
    project.run("--perf-snapshots", failed=1).stdout.fnmatch_lines(
        [
            "work ran out of memory, and its baseline did not",
            "why: out of memory: * asked for, by aten::empty (test_story.py:10)",
            "memory: peak of the snapshot -*",
            "in full: perflab memory *-measured-now.json",
        ]
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "test_story.py_test_work-measured-now.json",
        "test_story.py_test_work-measured.json",
    ]
    assert good.read_bytes() == before
    good.unlink()
    project.run("--perf-snapshots", "--perf-check=off").assert_outcomes(skipped=1)
    assert not good.exists()  # no later case is compared with a call that did not come to its end
