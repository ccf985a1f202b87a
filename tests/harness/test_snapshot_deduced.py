"""What a file does not say is deduced where that can be, stages from marks and categories from stacks, or said."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from perflab.base.errors import SnapshotError
from perflab.measure.memory.histories import record_memory
from perflab.snapshots.analysis import is_user_s, levels, peak_moment
from perflab.snapshots.deduced import of_marks, steps_of
from perflab.snapshots.model import Stage
from perflab.snapshots.reading import read_snapshots
from perflab.snapshots.summary import stage_at, summarize
from tests.harness.made_snapshots import ENGINE, MIB, MODEL, TRAIN, Recording, block, content, read, segment, written

CPU = torch.device("cpu")
MAIN = ("/home/me/project/train.py", 30, "<module>")
OPERATOR = ("/build/aten/src/ATen/Operators_1.cpp", 700, "at::_ops::mm::call(at::Tensor const&, at::Tensor const&)")
HOOK = ("/home/me/project/train.py", 70, "hook")


def test_a_moment_without_a_mark_ends_a_stage_and_one_of_another_thread_does_not() -> None:
    assert of_marks(["a", "", "a"]) == [Stage("a", 0, 1), Stage("a", 2, 3)]
    assert of_marks([None, "a", None, None, "a", None]) == [Stage("a", 1, 5)]
    assert of_marks(["a", None, "b", "b"]) == [Stage("a", 0, 1), Stage("b", 2, 4)]


def test_a_step_that_marks_its_optimizer_alone_has_no_optimizer_around_its_backward(tmp_path: Path) -> None:
    """``torch.optim`` marks its steps by itself."""
    net = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
    optimizer, data = torch.optim.AdamW(net.parameters()), torch.randn(512, 256)

    def step() -> None:
        net(data).square().mean().backward()
        optimizer.step()
        net.zero_grad()

    step()
    with record_memory(tmp_path / "cpu", CPU, lambda: (net, optimizer)) as recorded:
        for _ in range(3):
            step()
    found = read(recorded.path)
    assert [one.name for one in found.stages] == ["Optimizer.step#AdamW.step"] * 3
    assert len(found.steps) == 3
    assert stage_at(found, peak_moment(levels(found))) == "unmarked"
    assert "outliving" in {table.key for table in summarize(found, "cpu").tables}


def test_what_is_allocated_between_two_ranges_of_a_name_is_in_neither(tmp_path: Path) -> None:
    weight = torch.randn(256, 256, requires_grad=True)
    with record_memory(tmp_path / "cpu", CPU, lambda: (weight,)) as recorded:
        for _ in range(3):
            with torch.profiler.record_function("forward"):
                loss = (torch.randn(64, 256) @ weight).square().mean()
            torch.empty(1 << 20)
            loss.backward()  # type: ignore[no-untyped-call]
            weight.grad = None
    found = read(recorded.path)
    (peak,) = [fact.value for fact in summarize(found, "cpu").facts if fact.key == "peak_stage"]
    assert peak == "unmarked"
    assert [one.name for one in found.stages] == ["forward"] * 3


@pytest.mark.parametrize("main", [(), (MAIN,)], ids=["train", "module"])
def test_a_mark_that_is_cleared_marks_nothing_until_it_is_set_again(
    tmp_path: Path, main: tuple[tuple[str, int, str], ...]
) -> None:
    made = Recording()
    for _ in range(3):
        made.mark = "forward"
        made.alloc(0, 4 * MIB, MODEL, TRAIN, *main)
        made.mark = ""
        made.alloc(32 * MIB, 9 * MIB, ENGINE, TRAIN, *main).free(0, 4 * MIB, ENGINE, TRAIN, *main)
        made.free(32 * MIB, 9 * MIB, TRAIN, *main)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert [tuple(one) for one in found.stages] == [("forward", at, at + 1) for at in (0, 4, 8)]
    assert stage_at(found, peak_moment(levels(found))) == "unmarked"
    assert found.notes == []


@pytest.mark.parametrize("stack", [(), (OPERATOR,), (HOOK,)], ids=["none", "C++", "hook"])
def test_a_backward_holds_what_autograd_s_threads_do_in_it(
    tmp_path: Path, stack: tuple[tuple[str, int, str], ...]
) -> None:
    made = Recording()
    made.mark = "forward"
    made.alloc(0, 4 * MIB, MODEL, TRAIN)
    made.mark = "backward"
    made.alloc(64 * MIB, 512, TRAIN)
    made.mark = ""
    made.alloc(32 * MIB, 9 * MIB, *stack).free(0, 4 * MIB, *stack)
    made.mark = "backward"
    made.free(64 * MIB, 512, TRAIN)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert found.stages == [Stage("forward", 0, 1), Stage("backward", 1, 5)]
    assert stage_at(found, peak_moment(levels(found))) == "backward"


def test_where_frees_have_the_stacks_of_their_blocks_they_end_no_stage(tmp_path: Path) -> None:
    """With context="alloc" a free in an autograd thread bears the main thread's stack."""
    made = Recording()
    made.mark = "backward"
    made.alloc(0, MIB, MODEL, TRAIN).alloc(64 * MIB, MIB, TRAIN)
    made.mark = ""
    made.free(0, MIB, MODEL, TRAIN)
    made.mark = "backward"
    made.free(64 * MIB, MIB, TRAIN)
    assert read(written(tmp_path / "a.pickle", content(made))).stages == [Stage("backward", 0, 4)]


def test_marks_without_stacks_say_that_nobody_knows_whose_the_moments_between_are(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    made = Recording(frames=False)
    for mark in ("backward", "", "backward"):
        made.mark = mark
        made.alloc(len(made.events) * 8 * MIB, MIB)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert found.stages == [Stage("backward", 0, 3)]
    assert found.notes[0] == snapshot
    made.mark = "optimizer"
    for event in made.events:
        event["user_metadata"] = "backward"
    assert read(written(tmp_path / "b.pickle", content(made.alloc(900 * MIB, MIB)))).notes == []


def test_steps_touch_and_where_torch_optim_alone_marks_they_hold_the_forward() -> None:
    marks = of_marks(["", "", "opt#1", "", "", "", "opt#2", "", "opt#3"])
    assert [(one.start, one.end) for one in marks] == [(2, 3), (6, 7), (8, 9)]
    assert [(one.name, one.start, one.end) for one in steps_of(marks)] == [
        ("step 1", 2, 3),
        ("step 2", 3, 7),
        ("step 3", 7, 9),
    ]
    assert steps_of(marks[:1]) == []


def test_what_was_done_once_before_the_steps_is_no_step() -> None:
    parts = ["forward", "backward", "optimizer"]
    steps = steps_of(of_marks(["setup", "setup", *parts * 3]))
    assert [(one.name, one.start, one.end) for one in steps] == [("step 1", 2, 5), ("step 2", 5, 8), ("step 3", 8, 11)]
    assert steps_of(of_marks(["setup", *parts, "validation", *parts, "save", "forward"])) == []


@pytest.mark.parametrize(
    ("actions", "retries"),
    [
        (["segment_free", "segment_free", "segment_alloc"], 1),
        (["segment_free", "oom"], 1),
        (["segment_unmap", "segment_map"], 1),
        (["segment_alloc", "segment_alloc", "oom"], 0),
        (["segment_free", "alloc", "segment_alloc"], 0),
    ],
    ids=str,
)
def test_a_retry_gave_memory_back_and_asked_again(tmp_path: Path, actions: list[str], retries: int) -> None:
    made = Recording().alloc(900 * MIB, 512)
    for number, action in enumerate(actions):
        made.add(action, number * 64 * MIB, 2 * MIB)
    assert read(written(tmp_path / "a.pickle", content(made))).cache.retries == retries


def test_stacks_of_frees_that_are_those_of_their_blocks_say_nothing(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    """PyTorch writes them so with context="alloc"."""
    made = Recording()
    made.alloc(0, MIB, MODEL).free(0, MIB, MODEL).free(32 * MIB, MIB, MODEL).alloc(8 * MIB, MIB, ENGINE)
    made.free(8 * MIB, MIB, ENGINE)
    found = read(written(tmp_path / "alloc.pickle", content(made)))
    assert [one.category for one in found.blocks] == ["unknown", "unknown", "unknown"]
    assert [one.freed_by for one in found.blocks] == [(), (), ()]
    assert found.blocks[0].stack[0].line == MODEL[1]  # it was there before, and its free has its own stack
    assert found.notes[0] == snapshot
    made.alloc(0, MIB, MODEL).free(0, MIB, ENGINE)
    both = read(written(tmp_path / "all.pickle", content(made)))
    assert [one.category for one in both.blocks] == ["unknown", "temporaries", "temporaries", "activations"]
    assert both.notes == []


def test_the_gradient_that_a_backward_begins_with_is_no_gradient_of_a_parameter(tmp_path: Path) -> None:
    seed = ("/usr/lib/python3/site-packages/torch/autograd/__init__.py", 200, "_make_grads")
    made = Recording().alloc(0, 512, seed, ENGINE, TRAIN).alloc(MIB, MIB, ENGINE, TRAIN).free(0, 512, TRAIN)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert [one.category for one in found.blocks] == ["temporaries", "gradients"]


def test_what_was_not_recorded_is_said(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    alone = segment([block(MIB), block(MIB, "inactive")])
    frees = Recording().free(8 * MIB, MIB).free(4 * MIB, MIB)  # these were there before
    assert read(written(tmp_path / "frees.pickle", content(frees, segments=[alone]))).notes == []
    frees.free(8 * MIB, 2 * MIB)  # this was not
    assert read(written(tmp_path / "again.pickle", content(frees, segments=[alone]))).notes == snapshot
    allocs = Recording().alloc(0, MIB).alloc(MIB, MIB).alloc(16 * MIB, MIB)
    assert read(written(tmp_path / "allocs.pickle", content(allocs, segments=[alone]))).notes == snapshot
    assert read(written(tmp_path / "all.pickle", content(Recording().alloc(0, MIB), segments=[alone]))).notes == []


def test_stacks_of_what_is_alive_at_the_end_are_taken_from_the_segments(tmp_path: Path) -> None:
    made = Recording(frames=False).alloc(0, MIB)
    kept = segment([block(MIB, frames=Recording().stack(MODEL, TRAIN)), block(MIB, "inactive")])
    found = read(written(tmp_path / "state.pickle", content(made, segments=[kept])))
    assert [(one.allocated_at, one.stack[0].line) for one in found.blocks] == [(1, MODEL[1])]


def test_the_public_list_of_segments_is_read(tmp_path: Path) -> None:
    """Of ``torch.cuda.memory_snapshot()``."""
    path = tmp_path / "segments.pickle"
    path.write_bytes(pickle.dumps([segment([block(2 * MIB), block(18 * MIB, "inactive", 0)])]))
    found = read(path)
    assert (found.moments, [one.size_bytes for one in found.blocks], len(found.segments)) == (0, [2 * MIB], 1)
    path.write_bytes(pickle.dumps([]))
    with pytest.raises(SnapshotError, match=r"segments\.pickle: it is a pickle, but no memory snapshot"):
        read_snapshots(path)


SGD = ("/usr/lib/python3/site-packages/torch/optim/sgd.py", 361, "_single_tensor_sgd")
WRAPPER = ("/usr/lib/python3/site-packages/torch/optim/optimizer.py", 516, "wrapper")
MINE = ("/home/me/project/adamw.py", 30, "step")


@pytest.mark.parametrize("maker", [(SGD,), (MINE, WRAPPER)], ids=["SGD", "of the user's"])
def test_what_a_step_makes_and_leaves_is_the_optimizer_s_state(
    tmp_path: Path, maker: tuple[tuple[str, int, str], ...]
) -> None:
    made = Recording().alloc(0, MIB, *maker, TRAIN).alloc(8 * MIB, MIB, *maker, TRAIN).free(8 * MIB, MIB, *maker)
    made.alloc(16 * MIB, MIB, *maker, TRAIN).free(16 * MIB, MIB, TRAIN)  # the optimizer itself was let go
    made.alloc(24 * MIB, MIB, ENGINE, *maker, TRAIN)  # of a closure
    found = read(written(tmp_path / "a.pickle", content(made)))
    told = [one.category for one in found.blocks]
    assert told == ["optimizer state", "temporaries", "optimizer state", "gradients"]


APPLY = ("/usr/lib/python3/site-packages/torch/autograd/function.py", 315, "apply")
"""Of a backward; the forward's is another one, and is called."""
KERNEL = ("/home/me/project/fused.py", 40, "backward")
AGAIN = ("/usr/lib/python3/site-packages/torch/utils/checkpoint.py", 1128, "unpack_hook")


@pytest.mark.parametrize(
    ("within", "is_marked"),
    [((KERNEL, APPLY), True), ((KERNEL, APPLY), False), ((HOOK,), True), ((MODEL, AGAIN), True)],
    ids=["a function's", "a function's, unmarked", "a hook's", "a checkpoint's"],
)
def test_what_python_makes_in_a_thread_of_autograd_s_is_of_the_backward(
    tmp_path: Path, within: tuple[tuple[str, int, str], ...], is_marked: bool
) -> None:
    """Such a stack begins in the thread, and no frame of the engine's stands in it."""
    forward = (MODEL, APPLY, TRAIN)
    made = Recording(marks=is_marked)
    made.mark = "forward"
    made.alloc(0, 4 * MIB, *forward).alloc(16 * MIB, MIB, *forward).free(16 * MIB, MIB, *forward)
    made.mark = "backward"
    made.alloc(900 * MIB, 512, TRAIN)  # a loss that is made beside it
    made.mark = ""
    made.alloc(32 * MIB, 8 * MIB, *within).alloc(64 * MIB, 2 * MIB, *within).free(64 * MIB, 2 * MIB, *within)
    made.free(0, 4 * MIB, *within)
    made.mark = "backward"
    made.free(900 * MIB, 512, TRAIN)
    found = read(written(tmp_path / "a.pickle", content(made)))
    told = [one.category for one in found.blocks]
    assert told == ["activations", "temporaries", "temporaries", "gradients", "temporaries"]


def test_a_stage_of_forward_and_backward_together_says_nothing_of_either(tmp_path: Path) -> None:
    made = Recording()
    made.mark = "forward_backward"
    made.alloc(0, MIB, MODEL, TRAIN).alloc(8 * MIB, 2 * MIB).free(0, MIB).free(8 * MIB, 2 * MIB)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert [one.category for one in found.blocks] == ["unknown", "unknown"]


def test_a_script_in_a_folder_of_programs_is_the_user_s_and_what_runs_a_test_is_not() -> None:
    assert is_user_s("/home/me/project/bin/train.py")
    assert not is_user_s("/usr/bin/python3.11")
    assert not is_user_s("perflab/running/case/perf.py")
    assert not is_user_s("/home/me/perflab/turns/served.py")
    assert not is_user_s("_pytest/python.py")
    assert is_user_s("perflab/lab/models/transformer.py")
    assert is_user_s("/home/me/perflab/model.py")
