"""Deduces what a file does not say: stages from marks, and categories of blocks from stacks and times. Pure.

Stages come from texts on events, or from spans of time; none is guessed. Categories are deduced only for files that
have none, from the call stacks and times of each block's allocation and free.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from perflab.results.peak import CATEGORIES, UNKNOWN
from perflab.snapshots.analysis import Thread, once_a_stack, root_of
from perflab.snapshots.model import Block, Stack, Stage

_STEP = re.compile(r"ProfilerStep#\d+$")


def of_marks(marks: Iterable[str | None]) -> list[Stage]:
    """Return runs of the same mark over successive moments.

    Args:
        marks: the mark of each moment, from moment 1 on; empty: no mark; None: unknown, and the stage continues if the
            next known mark equals the last one.
    """
    stages: list[Stage] = []
    before = ""
    for moment, mark in enumerate(marks, start=1):
        if mark is None:
            continue
        if mark and mark == before:
            stages[-1] = stages[-1]._replace(end=moment)
        elif mark:
            stages.append(Stage(mark, moment - 1, moment))
        before = mark
    return stages


def of_threads(marks: Sequence[str], threads: Sequence[Thread | None]) -> tuple[list[Stage], bool]:
    """Return the stages of PyTorch's marks, which are per thread: autograd's threads lack the main thread's marks.

    So a moment without a mark ends a stage only if the moment's thread sets marks.

    Args:
        marks: the mark of each moment, from moment 1 on; empty: no mark.
        threads: the thread of each moment; None if unknown.

    Returns:
        The stages; and whether no mark's thread is known while stages contain moments without a mark.
    """
    marking = {thread for thread, mark in zip(threads, marks, strict=True) if thread and mark}
    stages = of_marks(mark if mark or thread in marking else None for mark, thread in zip(marks, threads, strict=True))
    return stages, not marking and len(stages) < len(of_marks(marks))


def of_annotations(annotations: object, device: int, times_us: Sequence[int]) -> tuple[list[Stage], list[Stage]]:
    """Return the stages and steps of ``record_function``'s spans: the outermost spans, and ``ProfilerStep`` spans.

    Args:
        annotations: PyTorch's list of beginnings and ends, in order; anything else counts as an empty list. Each entry
            names the device that was current, so a device that never was current gets the entries of all devices.
        device: the number of the device whose stages are wanted.
        times_us: the time of each moment from 1 on.
    """
    found = [mark for one in (annotations if isinstance(annotations, list) else ()) if (mark := _mark(one))]
    own = [mark for mark in found if mark[3] in (device, None)]
    steps: list[Stage] = []
    spans: list[tuple[str, bool, int]] = []
    for name, begins, time_us, _ in own or found:
        if not _STEP.match(name):
            spans.append((name, begins, time_us))
        elif begins:
            steps.append(Stage(name, bisect_left(times_us, time_us), len(times_us)))
        elif steps and steps[-1].name == name:
            steps[-1] = steps[-1]._replace(end=bisect_right(times_us, time_us))
    stages: list[Stage] = []
    for name, begin_us, end_us in _outermost(spans):
        end = len(times_us) if end_us is None else bisect_right(times_us, end_us)
        start = bisect_left(times_us, begin_us)
        if end > start and (not stages or start >= stages[-1].end):
            stages.append(Stage(name, start, end))
    return stages, steps


def _outermost(marks: Sequence[tuple[str, bool, int]]) -> Iterator[tuple[str, int, int | None]]:
    """Yield name, beginning and end of the spans that lie in no other span that ends.

    Of a span that was still open when the file was written, the spans within are yielded instead. If the span that
    began last was still open, its end is None: the program was in this span.
    """
    open_spans: list[int] = []
    names: Counter[str] = Counter()
    ends: dict[int, int] = {}
    for number, (name, begins, _) in enumerate(marks):
        if begins:
            open_spans.append(number)
            names[name] += 1
        elif names[name]:  # inner spans without an end of their own end with this span
            while True:
                inner = open_spans.pop()
                names[marks[inner][0]] -= 1
                if marks[inner][0] == name:
                    break
            ends[inner] = number
    last = max((number for number, (_, begins, _) in enumerate(marks) if begins), default=-1)
    still_open, after = {*open_spans}, -1
    for number, (name, begins, begin_us) in enumerate(marks):
        if not begins or number < after:
            continue
        if number in ends:
            after = ends[number]
            yield name, begin_us, marks[after][2]
        elif number == last and number in still_open:
            yield name, begin_us, None


def _mark(one: Any) -> tuple[str, bool, int, object] | None:
    """Return name, whether the mark is a beginning, time in µs and device; None if the entry is no such mark."""
    if type(one) is not dict:
        return None
    name, stage, time_us, device = one.get("name"), one.get("stage"), one.get("time_us"), one.get("device")
    if type(name) is not str or type(time_us) is not int or stage not in ("START", "END"):
        return None
    return name, stage == "START", time_us, device


def steps_of(stages: Sequence[Stage]) -> list[Stage]:
    """Return the steps of repeating stages: each step begins with the first name that repeats, whatever its digits.

    At least two repetitions are needed; a single one counts as no step. Moments between two steps belong to the later
    step: they prepare it. If only the optimizer is marked, as ``torch.optim`` does by itself, these moments are the
    forward and the backward.
    """
    if not stages:
        return []
    names = [re.sub(r"\d+", "#", stage.name) for stage in stages]
    times = Counter(names)
    first = next((name for name in names if times[name] > 1), "")
    starts = [number for number, name in enumerate(names) if name == first]
    if len(starts) < 2:
        return []
    ends = [*(number - 1 for number in starts[1:]), len(stages) - 1]
    of_each = {tuple(names[begin : end + 1]) for begin, end in zip(starts[:-1], ends, strict=False)}
    if starts[0] and len(of_each) > 1:  # after stages that ran once, only identical repetitions count as steps
        return []
    edges = [stages[starts[0]].start, *(stages[end].end for end in ends)]
    return [Stage(f"step {number}", begin, end) for number, (begin, end) in enumerate(pairwise(edges), start=1)]


MOST_FOREIGN = 12
"""The most categories of a file's own that keep their names."""
OTHERS = "others"
"""The category of blocks whose own category comes after the first ``MOST_FOREIGN`` of the file."""
_OPTIMIZER = re.compile(r"(?:^|/)torch/optim/\w+\.py$")
_STATE_MAKERS = ("_init_group", "init_state", "_init_state")
_MODULES = re.compile(r"(?:^|/)torch/nn/(?:modules/\w+|parameter)\.py$")
_PARAMETER_MAKERS = ("_apply", "convert", "to_empty", "<lambda>", "__init__", "reset_parameters", "__new__")
_SEED = "_make_grads"
"""The function that makes the initial gradient of a backward, which is freed when the backward has returned."""
_BACKWARD = ("_engine_run_backward", "run_backward")
_ENGINE = "torch::autograd::Engine"
_NODE = re.compile(r"(?:^|/)torch/autograd/function\.py$")
"""The file whose ``apply`` is the outermost call of a custom function's backward in a thread of autograd's; in a
forward, ``apply`` is called by other Python code."""
_WORKSPACE = ("getCurrentCUDABlasHandle", "getCUDABlasLtWorkspace", "cublasCreate", "getCUDABlasLtHandle")


@dataclass(frozen=True)
class Facts:
    """Facts about the allocation or the free of a block, read from the call stack."""

    is_known: bool
    """Whether a call stack was recorded."""
    is_placed: bool
    """Whether the stack or a mark tells if the call was within a backward."""
    is_workspace: bool
    is_optimizer: bool
    is_state: bool
    is_backward: bool
    is_seed: bool
    root: Thread | None
    """File and function with which the thread begins; None if the stack has no call of Python."""
    makes_parameters: bool


def facts_of(stack: Stack) -> Facts:
    """Return the facts that a call stack of Python or C++ frames shows."""
    optimizer = [frame.function for frame in stack if _OPTIMIZER.search(frame.file)]
    innermost = next((frame for frame in stack if frame.file.endswith(".py")), None)
    root = root_of(stack)
    is_node = root is not None and root[1] == "apply" and _NODE.search(root[0]) is not None
    return Facts(
        is_known=bool(stack),
        is_placed=bool(stack),
        is_workspace=any(maker in frame.function for frame in stack for maker in _WORKSPACE),
        is_optimizer=bool(optimizer),
        is_state=any(name in _STATE_MAKERS for name in optimizer),
        is_backward=is_node or any(frame.function in _BACKWARD or _ENGINE in frame.function for frame in stack),
        is_seed=any(frame.function == _SEED for frame in stack),
        root=root,
        makes_parameters=innermost is not None
        and _MODULES.search(innermost.file) is not None
        and innermost.function in _PARAMETER_MAKERS,
    )


def deduced_category(given: Facts, taken: Facts, *, is_freed: bool) -> str:
    """Deduce the category of a block from the facts about its allocation (``given``) and its free (``taken``).

    A block that a forward made and a backward freed was kept for the backward: ``activations``. A block that a backward
    made and left is ``gradients``. A block that was made and freed on the same side is ``temporaries``. Workspaces,
    optimizer state and parameters are recognised by functions in the stack of the allocation. Other blocks are
    ``unknown``.
    """
    if given.is_workspace:
        return "workspace"
    if given.is_state:
        return "optimizer state"
    if given.is_seed:
        return "temporaries"
    if given.is_optimizer and not given.is_backward:  # a backward in an optimizer's closure counts as a backward
        # A block that a step leaves is kept for later steps: SGD's momentum, and all state of a user's own optimizer.
        is_kept = not is_freed or (taken.is_known and not taken.is_optimizer and not taken.is_backward)
        return "optimizer state" if is_kept else "temporaries"
    if given.is_backward:
        if is_freed and taken.is_backward:
            return "temporaries"
        if is_freed and not taken.is_placed:
            return UNKNOWN
        # Without a stack, a block of a marked backward that is never freed may also be one that a library keeps.
        return "gradients" if given.is_known or is_freed else UNKNOWN
    if not given.is_known:
        return UNKNOWN
    if taken.is_backward:
        return "activations"
    if is_freed:
        return "temporaries" if taken.is_placed else UNKNOWN
    return "parameters" if given.makes_parameters else UNKNOWN


def deduced(blocks: Sequence[Block], stages: Sequence[Stage]) -> Iterator[Block]:
    """Yield the blocks with categories deduced from call stacks and marked backwards.

    On CUDA, a backward runs in autograd's own threads. Allocations there have no stack, or a stack whose outermost call
    begins no stack outside of backwards: a custom function, a hook, or the recomputation of a checkpoint. Blocks that
    have a category keep it.
    """
    backward = [stage for stage in stages if "backward" in (name := stage.name.lower()) and "forward" not in name]
    starts = [stage.start for stage in backward]
    of_stack = once_a_stack(facts_of)

    def is_within(moment: int) -> bool:
        number = bisect_left(starts, moment) - 1
        return number >= 0 and moment <= backward[number].end

    other_threads = {
        of_stack(block.stack).root
        for block in (blocks if backward else ())
        if block.stack and (block.phase or not is_within(block.allocated_at))
    }

    def seen(stack: Stack, moment: int | None) -> Facts:
        found = of_stack(stack)
        if not moment or not backward or found.is_backward or found.is_optimizer:
            return found
        if stack and (found.root in other_threads or not is_within(moment)):
            return found
        return replace(found, is_placed=True, is_backward=is_within(moment))

    for block in blocks:
        if block.category:
            yield block
            continue
        given, taken = seen(block.stack, block.allocated_at), seen(block.freed_by, block.freed_at)
        yield block._replace(category=deduced_category(given, taken, is_freed=block.freed_at is not None))


def without_stacks_of_frees(blocks: Sequence[Block]) -> list[Block] | None:
    """Return the blocks without the stacks of frees, if the recorder did not keep these stacks.

    None: the recorder kept the stacks of frees, or no block has a stack for both its allocation and its free.

    With ``context="alloc"`` PyTorch writes the stack of the block's own allocation with each free. So the stack of the
    allocation is known even for a block that was alive before the recording.
    """
    both = [block for block in blocks if block.stack and block.freed_by]
    if not both or any(block.stack != block.freed_by for block in both):
        return None
    return [block._replace(stack=block.stack or block.freed_by, freed_by=()) for block in blocks]


def as_told(blocks: Sequence[Block]) -> list[Block]:
    """Return the blocks with the categories of their file, of which few can be shown: later ones become ``OTHERS``.

    A block without a category gets ``unknown``. A file may have as many categories as blocks.
    """
    foreign: set[str] = set()
    told = []
    for block in blocks:
        name = block.category or UNKNOWN
        if name not in CATEGORIES and name not in foreign:
            if len(foreign) < MOST_FOREIGN:
                foreign.add(name)
            else:
                name = OTHERS
        told.append(block if name == block.category else block._replace(category=name))
    return told
