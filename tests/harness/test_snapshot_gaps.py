"""What a recorder was told to leave out is deduced where that is possible, and else said."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from perflab.base.errors import SnapshotError
from perflab.snapshots.analysis import is_user_s
from perflab.snapshots.reading import choose, read_snapshots
from perflab.snapshots.stages import of_marks, steps_of
from tests.harness.made_snapshots import ENGINE, MIB, MODEL, TRAIN, Recording, block, content, read, segment, written


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


def test_stacks_of_frees_that_are_those_of_their_blocks_say_nothing(tmp_path: Path) -> None:
    """PyTorch writes them so with context="alloc"."""
    made = Recording()
    made.alloc(0, MIB, MODEL).free(0, MIB, MODEL).free(32 * MIB, MIB, MODEL).alloc(8 * MIB, MIB, ENGINE)
    made.free(8 * MIB, MIB, ENGINE)
    found = read(written(tmp_path / "alloc.pickle", content(made)))
    assert [one.category for one in found.blocks] == ["unknown", "unknown", "unknown"]
    assert [one.freed_by for one in found.blocks] == [(), (), ()]
    assert found.blocks[0].stack[0].line == MODEL[1]  # it was there before, and its free has its own stack
    assert "who let blocks go was not recorded" in found.notes[0]
    made.alloc(0, MIB, MODEL).free(0, MIB, ENGINE)
    both = read(written(tmp_path / "all.pickle", content(made)))
    assert [one.category for one in both.blocks] == ["unknown", "temporaries", "temporaries", "activations"]
    assert both.notes == []


def test_the_gradient_that_a_backward_begins_with_is_no_gradient_of_a_parameter(tmp_path: Path) -> None:
    seed = ("/usr/lib/python3/site-packages/torch/autograd/__init__.py", 200, "_make_grads")
    made = Recording().alloc(0, 512, seed, ENGINE, TRAIN).alloc(MIB, MIB, ENGINE, TRAIN).free(0, 512, TRAIN)
    found = read(written(tmp_path / "a.pickle", content(made)))
    assert [one.category for one in found.blocks] == ["temporaries", "gradients"]


def test_what_was_not_recorded_is_said(tmp_path: Path) -> None:
    alone = segment([block(MIB), block(MIB, "inactive")])
    frees = Recording().free(8 * MIB, MIB).free(4 * MIB, MIB)  # these were there before
    assert read(written(tmp_path / "frees.pickle", content(frees, segments=[alone]))).notes == []
    frees.free(8 * MIB, 2 * MIB)  # this was not
    (note,) = read(written(tmp_path / "again.pickle", content(frees, segments=[alone]))).notes
    assert note.startswith("blocks that came without an event (skip_actions): 1, 2,097,152 bytes;")
    allocs = Recording().alloc(0, MIB).alloc(MIB, MIB).alloc(16 * MIB, MIB)
    (note,) = read(written(tmp_path / "allocs.pickle", content(allocs, segments=[alone]))).notes
    assert note.startswith("blocks that were let go without an event (skip_actions): 2, 2,097,152 bytes;")
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
HOOK = ("/home/me/project/train.py", 70, "hook")
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


def test_a_script_in_a_folder_of_programs_is_the_user_s() -> None:
    assert is_user_s("/home/me/project/bin/train.py")
    assert not is_user_s("/usr/bin/python3.11")


def test_a_prediction_s_device_is_the_first(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"schema": 1, "device": "cuda", "events": [[0, 5]]}')
    found = read_snapshots(path)
    assert choose(found, "0", path) is choose(found, "cuda", path) is found[0]
    with pytest.raises(SnapshotError, match="nothing of device 1"):
        choose(found, "1", path)


def test_numbers_of_events_are_no_times(tmp_path: Path) -> None:
    about = {"kind": "prediction", "times": "event"}
    path = written(tmp_path / "a.pickle", content(Recording().alloc(0, MIB, MODEL), perflab=about))
    assert list(read(path).times_ns) == []
    path = written(tmp_path / "b.pickle", content(Recording().alloc(0, MIB, MODEL), perflab={**about, "times": "ns"}))
    assert len(read(path).times_ns) == 1
