"""Stories of ``--perf-snapshots`` in measured cases, where a failure shows what is new, and of ``memory_snapshot``."""

from __future__ import annotations

from perflab.cli import main
from perflab.snapshots.analysis import alive_at
from perflab.snapshots.reading import read_snapshots
from tests.plugin.conftest import Project


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
